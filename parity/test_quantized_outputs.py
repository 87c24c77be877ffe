"""Models that lbrx quantizes for transformers and vLLM: transformers loads them, and they have the bytes of libraries.

Libraries that are not installed are skipped.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import lbrx

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 320, "head_dim": 32}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE, **HEADS),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, **HEADS, tie_word_embeddings=True),
    "mixture": lambda: transformers.Qwen3MoeConfig(
        **SHAPE, **HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=1
    ),
}
ERRORS = {  # of logits: the largest relative error, with weights of a normal distribution
    "ct_int4": 0.4,
    "ct_int4_asym": 0.4,
    "ct_int8_a16": 0.03,
    "ct_int8": 0.1,
    "ct_fp8": 0.15,
    "ct_fp8_block": 0.15,
    "ct_nvfp4": 0.4,
    "ct_mxfp4": 0.5,
    "gptq_4": 0.4,
    "gptq_8": 0.03,
    "awq_4": 0.4,
}
COMPRESSED = [name for name in ERRORS if name.startswith("ct_")]
PACKED = [name for name in ERRORS if name.startswith(("ct_int4", "ct_int8_", "gptq", "awq"))]
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
NO_EXPERTS = ("ct_int4_asym", "ct_int8", "ct_nvfp4")
TOKENS = torch.arange(3, 43).reshape(2, 20)


@cache
def _source(kind: str, dtype: torch.dtype, folder: Path) -> Path:
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    path = folder / f"{kind}-{str(dtype)[6:]}"
    model.to(dtype).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def quantized(
    kind: str, name: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> tuple[Path, Path]:
    """A model, and the same model quantized."""
    source = _source(kind, dtype, folder)
    out = folder / f"{source.name}-{name}-{'-'.join(map(str, options.values()))}"
    if not out.exists():
        size = {"group_size": 32} if name in PACKED else {}
        lbrx.quantize(source, out, name, **size, **options)
    return source, out


@torch.no_grad()
def logits(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **options).eval()
    return model(TOKENS).logits.float()


@torch.no_grad()
def decoded_logits(out: Path) -> torch.Tensor:
    """What the values are that lbrx reads from its output."""
    plain = out.with_name(f"{out.name}-plain")
    if not plain.exists():
        lbrx.convert(out, plain, type="f32")
    return logits(plain)


def assert_close(found: torch.Tensor, expected: torch.Tensor, error: float) -> None:
    assert float((found - expected).norm() / expected.norm()) < error


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_loads_compressed_tensors(kind: str, name: str, folder: Path) -> None:
    pytest.importorskip("compressed_tensors")
    if kind == "mixture" and name in NO_EXPERTS:
        pytest.skip("transformers joins experts without these parts; the bytes are compared below")
    source, out = quantized(kind, name, folder)
    settings = transformers.CompressedTensorsConfig(dequantize=True)
    found, expected = logits(out, quantization_config=settings), decoded_logits(out)
    assert_close(found, expected, 0.01)
    assert_close(found, logits(source), ERRORS[name])


@pytest.mark.parametrize("name", [name for name in COMPRESSED if name != "ct_int4_asym"])  # packed zero points: not yet
def test_transformers_runs_compressed_weights(name: str, folder: Path) -> None:
    """The activations are rounded, too, where the settings say so."""
    pytest.importorskip("compressed_tensors")
    _, out = quantized("llama", name, folder)
    has_activations = name in ("ct_int8", "ct_fp8", "ct_fp8_block")
    assert_close(logits(out, torch.bfloat16), decoded_logits(out), 0.15 if has_activations else 0.05)


@pytest.mark.parametrize("name", ["gptq_4", "gptq_8", "awq_4"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_transformers_loads_gptq_and_awq(kind: str, name: str, folder: Path) -> None:
    pytest.importorskip("gptqmodel")
    source, out = quantized(kind, name, folder)
    found = logits(out)
    assert_close(found, decoded_logits(out), 0.01)
    assert_close(found, logits(source), ERRORS[name])


# -- bytes -------------------------------------------------------------------------------------------------------------


def _qparams(weight: torch.Tensor, args: Any, fused: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Scales and zero points of the smallest and largest value."""
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    if args.strategy == "block":
        height, width = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % width, 0, -weight.shape[0] % height))
        tiles = padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width).transpose(1, 2)
        tiles = tiles.flatten(-2)
    else:
        tiles = weight.unflatten(-1, (-1, args.group_size or weight.shape[1]))
    number = None
    if args.strategy == "tensor_group":
        limit = torch.stack([each.abs().max() for each in fused]).max()
        number = generate_gparam(-limit.reshape(1), limit.reshape(1))
    scale, zero_point = calculate_qparams(tiles.amin(-1), tiles.amax(-1), args, number)
    found = {"weight_scale": scale, "weight_zero_point": zero_point}
    return found if number is None else {**found, "weight_global_scale": number}


BYTES = [(kind, dtype) for kind in ("llama", "mixture") for dtype in (torch.bfloat16, torch.float16, torch.float32)][:4]


@pytest.mark.parametrize(("kind", "dtype"), BYTES)
@pytest.mark.parametrize("name", COMPRESSED)
def test_bytes_of_compressed_tensors(name: str, kind: str, dtype: torch.dtype, folder: Path) -> None:
    """The parts that the compressor of the library makes from scales of the smallest and the largest value."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    source, out = quantized(kind, name, folder, dtype)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    own = QuantizationConfig.model_validate(settings)
    (scheme,) = own.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(own.format)
    weights = load_file(source / "model.safetensors")
    stored = lbrx.open(out, raw=True)
    checked = 0
    for full_name, weight in weights.items():
        block, _, last = full_name.removesuffix(".weight").rpartition(".")
        if not last.endswith("_proj"):
            assert stored[full_name].shape == tuple(weight.shape)
            continue
        siblings = next((group for group in FUSED if last in group), (last,))
        fused = [weights[f"{block}.{each}.weight"] for each in siblings]
        state = {"weight": weight, **_qparams(weight, scheme.weights, fused)}
        if scheme.weights.symmetric:
            del state["weight_zero_point"]
        for part, tensor in compressor.compress(state, scheme).items():
            mine = stored[f"{block}.{last}.{part}"]
            assert mine.shape == tuple(tensor.shape), part
            theirs = tensor.contiguous().view(torch.uint8).numpy()
            ours = np.frombuffer(mine.numpy().tobytes(), np.uint8).reshape(theirs.shape)
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{full_name} {part}")
            checked += 1
    assert checked >= 28


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_of_gptq(bits: int, folder: Path) -> None:
    """What GPTQModel packs with the same scales."""
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    source, out = quantized("llama", f"gptq_{bits}", folder)
    name = "model.layers.1.mlp.down_proj"
    weight = load_file(source / "model.safetensors")[f"{name}.weight"].float()
    stored = lbrx.open(out, raw=True)
    rows, columns = weight.shape
    own = linear(
        bits=bits,
        group_size=32,
        sym=True,
        desc_act=False,
        in_features=columns,
        out_features=rows,
        bias=False,
        register_buffers=True,
    )
    module = torch.nn.Linear(columns, rows, bias=False)
    module.weight.data = weight
    scales = torch.from_numpy(stored[f"{name}.scales"].to("f32").numpy()).T.contiguous()
    own.pack_original(module, scales, torch.full_like(scales, 2.0 ** (bits - 1)), own.g_idx)
    for part in ("qweight", "g_idx"):
        np.testing.assert_array_equal(stored[f"{name}.{part}"].numpy(), getattr(own, part).numpy())
    less = stored[f"{name}.qzeros"].numpy().view(np.uint32)  # the first version of the format
    ones = np.uint32(sum(1 << bits * position for position in range(32 // bits)))
    np.testing.assert_array_equal(less + ones, own.qzeros.numpy().view(np.uint32))


def test_settings_are_those_of_the_presets(folder: Path) -> None:
    """The settings mean the presets that llm-compressor knows by these names."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

    presets = {
        "ct_int4": "W4A16",
        "ct_int4_asym": "W4A16_ASYM",
        "ct_int8_a16": "W8A16",
        "ct_int8": "W8A8",
        "ct_fp8": "FP8_DYNAMIC",
        "ct_fp8_block": "FP8_BLOCK",
        "ct_nvfp4": "NVFP4A16",
        "ct_mxfp4": "MXFP4A16",
    }
    for name, preset in presets.items():
        source = _source("llama", torch.bfloat16, folder)
        out = folder / f"preset-{name}"
        lbrx.quantize(source, out, name)
        settings = json.loads((out / "config.json").read_text())["quantization_config"]
        (found,) = QuantizationConfig.model_validate(settings).config_groups.values()
        expected = preset_name_to_scheme(preset, ["Linear"])
        for part in ("weights", "input_activations"):
            mine, theirs = (
                None if each is None else each.model_dump() for each in (getattr(found, part), getattr(expected, part))
            )
            assert mine == theirs, (name, part)
