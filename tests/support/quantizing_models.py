"""Models as headers see them: names, shapes and metadata of what is to be quantized, with values that cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lbrx
from lbrx.files.output.contents import Contents, PlannedTensor

Values = Callable[[str, tuple[int, ...]], lbrx.Tensor]


def zeros(_name: str, shape: tuple[int, ...]) -> lbrx.Tensor:
    return lbrx.full(shape, 0.0, "bf16")


def noise(name: str, shape: tuple[int, ...]) -> lbrx.Tensor:
    """Values that differ in size from tensor to tensor, and have outliers in some."""
    values = lbrx.normal(shape, 3, name)
    return (values * values * values if "attn" in name else values).to("f32")


def gguf_model(
    layers: int = 2,
    *,
    heads: int = 8,
    key_heads: int = 8,
    columns: int = 256,
    hidden: int = 512,
    experts: int = 0,
    tied: bool = False,
    architecture: str = "llama",
    values: Values = zeros,
    metadata: Mapping[str, Any] | None = None,
) -> Contents:
    """A model with llama's names; with experts, those of Mixtral."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, columns)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block(columns, hidden, experts).items()}
    shapes |= {"output_norm.weight": (columns,)} | ({} if tied else {"output.weight": (64, columns)})
    tensors = tuple(PlannedTensor.of(name, values(name, shape)) for name, shape in shapes.items())
    own = {
        "general.architecture": architecture,
        f"{architecture}.block_count": layers,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": key_heads,
        **({f"{architecture}.expert_count": experts} if experts else {}),
    }
    return Contents("gguf", tensors, own | dict(metadata or {}))


def block(columns: int, hidden: int, experts: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (columns,),
        **{f"attn_{part}.weight": (columns, columns) for part in ("q", "k", "v", "output")},
        "ffn_norm.weight": (columns,),
    }
    if not experts:
        return shapes | {
            "ffn_gate.weight": (hidden, columns),
            "ffn_up.weight": (hidden, columns),
            "ffn_down.weight": (columns, hidden),
        }
    return shapes | {
        "ffn_gate_inp.weight": (experts, columns),
        "ffn_gate_exps.weight": (experts, hidden, columns),
        "ffn_up_exps.weight": (experts, hidden, columns),
        "ffn_down_exps.weight": (experts, columns, hidden),
    }


def hf_model(
    layers: int = 2,
    *,
    columns: int = 128,
    hidden: int = 256,
    model_type: str = "llama",
    experts: int = 0,
    values: Values = noise,
) -> Contents:
    """A model with Hugging Face names."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (64, columns)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (columns,)
        shapes |= {f"{prefix}.self_attn.{part}_proj.weight": (columns, columns) for part in "qkvo"}
        stack, place = ((experts,), "mlp.switch_mlp") if experts else ((), "mlp")
        shapes |= {f"{prefix}.{place}.{part}_proj.weight": (*stack, hidden, columns) for part in ("gate", "up")}
        shapes[f"{prefix}.{place}.down_proj.weight"] = (*stack, columns, hidden)
        if experts:
            shapes[f"{prefix}.mlp.gate.weight"] = (experts, columns)
    shapes |= {"model.norm.weight": (columns,), "lm_head.weight": (64, columns)}
    tensors = tuple(PlannedTensor.of(name, values(name, shape)) for name, shape in shapes.items())
    return Contents("safetensors", tensors, {}, {"model_type": model_type, "num_hidden_layers": layers})
