"""Several adapters on one model, experts that are one parameter, trained rows, and rounding."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lbrx
from lbrx.jobs.lora import open_with_adapter
from lbrx.jobs.lora.parts import PREFIX
from support.peft_fixture import random_array
from support.small_models import HIDDEN, config, tensors, write_model

Q = "model.layers.0.self_attn.q_proj"


def write_adapter(directory: Path, factors: dict[str, Any], **settings: Any) -> Path:
    directory.mkdir()
    lbrx.save(directory / "adapter_model.safetensors", {PREFIX + name: value for name, value in factors.items()})
    whole = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, **settings}
    (directory / "adapter_config.json").write_text(json.dumps(whole))
    return directory


def pair(seed: int) -> dict[str, Any]:
    return {
        f"{Q}.lora_A.weight": random_array(seed, 2, HIDDEN),
        f"{Q}.lora_B.weight": random_array(seed + 9, HIDDEN, 2),
    }


def test_several_adapters_add_up_and_are_rounded_once(tmp_path: Path) -> None:
    given = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors(1).items()}
    write_model(tmp_path / "base", given, config("llama"))
    factors = [pair(1), pair(2)]
    for name, each in zip("ab", factors, strict=True):
        write_adapter(tmp_path / name, each)
    exact = given[f"{Q}.weight"].astype(np.float32)
    for each in factors:
        exact = exact + each[f"{Q}.lora_B.weight"] @ each[f"{Q}.lora_A.weight"]
    recipe = "{merge_method: passthrough, models: [{model: base+a+b}]%s}"
    for dtype, out in (("", "own"), (", dtype: float32", "wide")):
        (tmp_path / "recipe.yml").write_text(recipe % dtype)
        lbrx.merge(tmp_path / "recipe.yml", tmp_path / out)
    np.testing.assert_allclose(lbrx.open(tmp_path / "wide")[f"{Q}.weight"].numpy(), exact, rtol=0, atol=1e-6)
    own = lbrx.open(tmp_path / "own")[f"{Q}.weight"]
    assert own.dtype.name == "bf16"
    np.testing.assert_array_equal(own.numpy(), exact.astype(ml_dtypes.bfloat16))
    lbrx.merge_lora(tmp_path / "base", [tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert (lbrx.open(tmp_path / "merged")[f"{Q}.weight"] == own).numpy().all()


def test_a_list_of_adapters_in_a_mapping(tmp_path: Path) -> None:
    write_model(tmp_path / "base", tensors(1), config("llama"))
    for name in "ab":
        write_adapter(tmp_path / name, pair(ord(name)))
    (tmp_path / "recipe.yml").write_text(
        "{merge_method: passthrough, models: [{model: {model: base, lora: [a, {path: b}]}}]}"
    )
    lbrx.merge(tmp_path / "recipe.yml", tmp_path / "out")
    lbrx.merge_lora(tmp_path / "base", [tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    found, expected = (lbrx.open(tmp_path / name)[f"{Q}.weight"].numpy() for name in ("out", "merged"))
    np.testing.assert_array_equal(found, expected)


OWNER, EXPERTS, INNER, RANK = "model.layers.0.mlp.experts", 3, 6, 2
TARGETS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def expert_factors() -> dict[str, Any]:
    """As PEFT nests them: the outer factors belong to the last parameter, the inner ones to the first."""
    shapes = {"lora_A": (RANK * EXPERTS, INNER), "lora_B": (HIDDEN, RANK * EXPERTS)}
    inner = {"lora_A": (RANK * EXPERTS, HIDDEN), "lora_B": (2 * INNER, RANK * EXPERTS)}
    made = {
        f"{OWNER}.{part}.weight": random_array(number, *shape) for number, (part, shape) in enumerate(shapes.items())
    }
    return made | {
        f"{OWNER}.base_layer.{part}.weight": random_array(5 + number, *shape)
        for number, (part, shape) in enumerate(inner.items())
    }


def change(prefix: str) -> Any:
    """[experts, outputs, inputs]; the alpha is twice the rank."""
    factors = expert_factors()
    a, b = factors[f"{prefix}.lora_A.weight"], factors[f"{prefix}.lora_B.weight"]
    a, b = a.reshape(EXPERTS, RANK, -1), b.reshape(b.shape[0], RANK, EXPERTS)
    return 2 * np.einsum("ore,eri->eoi", b, a)


def test_experts_that_are_one_tensor(tmp_path: Path) -> None:
    base = {
        f"{OWNER}.gate_up_proj": lbrx.normal((EXPERTS, 2 * INNER, HIDDEN), 0, "gate"),
        f"{OWNER}.down_proj": lbrx.normal((EXPERTS, HIDDEN, INNER), 0, "down"),
    }
    adapter = write_adapter(tmp_path / "a", expert_factors(), lora_alpha=4, target_parameters=TARGETS)
    patched = open_with_adapter(base, adapter)
    for name, prefix in (("gate_up_proj", f"{OWNER}.base_layer"), ("down_proj", OWNER)):
        expected = base[f"{OWNER}.{name}"].numpy() + change(prefix)
        np.testing.assert_allclose(patched[f"{OWNER}.{name}"].numpy(), expected, atol=1e-5)
    turned = {name: value.permute(0, 2, 1) for name, value in base.items()}
    patched = open_with_adapter(turned, adapter, {"model_type": "gpt_oss"})
    expected = base[f"{OWNER}.down_proj"].numpy() + change(OWNER)
    np.testing.assert_allclose(patched[f"{OWNER}.down_proj"].numpy(), expected.swapaxes(1, 2), atol=1e-5)


@pytest.mark.parametrize("is_mixtral", [False, True])
def test_experts_that_are_a_tensor_each(tmp_path: Path, is_mixtral: bool) -> None:
    block = OWNER.replace("mlp", "block_sparse_moe") if is_mixtral else OWNER
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"} if is_mixtral else {}
    shapes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    base = {
        f"{block}.{expert}.{names.get(part, part)}.weight": lbrx.normal(shape, 0, f"{expert} {part}")
        for expert in range(EXPERTS)
        for part, shape in shapes.items()
    }
    adapter = write_adapter(tmp_path / "a", expert_factors(), lora_alpha=4, target_parameters=TARGETS)
    patched = open_with_adapter(base, adapter)
    gate_up, down = change(f"{OWNER}.base_layer"), change(OWNER)
    changes = {"gate_proj": gate_up[:, :INNER], "up_proj": gate_up[:, INNER:], "down_proj": down}
    for expert in range(EXPERTS):
        for part, whole in changes.items():
            name = f"{block}.{expert}.{names.get(part, part)}.weight"
            np.testing.assert_allclose(patched[name].numpy(), base[name].numpy() + whole[expert], atol=1e-5)


def test_rows_that_were_trained_alone(tmp_path: Path) -> None:
    rows = random_array(3, 2, HIDDEN)
    factors = pair(1) | {"model.embed_tokens.token_adapter.trainable_tokens_delta": rows}
    adapter = write_adapter(tmp_path / "a", factors, trainable_token_indices={"embed_tokens": [4, 1]})
    base = {f"{Q}.weight": lbrx.normal((HIDDEN, HIDDEN), 0, "q"), "model.embed_tokens.weight": lbrx.zeros((6, HIDDEN))}
    patched = open_with_adapter(base, adapter)["model.embed_tokens.weight"].numpy()
    np.testing.assert_array_equal(patched[[4, 1]], rows)
    assert not patched[[0, 2, 3, 5]].any()
    with pytest.raises(lbrx.ShapeError, match="for rows up to 4, but"):
        open_with_adapter({**base, "model.embed_tokens.weight": lbrx.zeros((4, HIDDEN))}, adapter)


def test_an_extracted_adapter_with_new_tokens(tmp_path: Path) -> None:
    given = tensors(1)
    write_model(tmp_path / "base", given, config("llama"))
    longer = {
        name: np.concatenate([given[name], random_array(1, 2, HIDDEN)])
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    changed = {f"{Q}.weight": given[f"{Q}.weight"] + np.outer(random_array(2, HIDDEN), random_array(3, HIDDEN))}
    rows = longer["lm_head.weight"].shape[0]
    write_model(tmp_path / "tuned", given | longer | changed, config("llama", vocab_size=rows), has_tokenizer=True)
    extraction = lbrx.extract_lora(
        tmp_path / "tuned", tmp_path / "base", tmp_path / "a", rank=1, save_module=["embed_tokens", "lm_head"]
    )
    assert [tensor.name for tensor in extraction.captured] == [f"{Q}.weight"]
    for name in ("tokenizer.json", "tokenizer_config.json"):  # without them nobody knows the new tokens
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "tuned" / name).read_bytes()
    lbrx.merge_lora(tmp_path / "base", tmp_path / "a", tmp_path / "out")
    found, expected = lbrx.open(tmp_path / "out"), lbrx.open(tmp_path / "tuned")
    assert found.config["vocab_size"] == rows
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), atol=1e-5, err_msg=name)


def test_modules_that_are_left_out(tmp_path: Path) -> None:
    given = tensors(1)
    write_model(tmp_path / "base", given, config("llama"))
    write_model(tmp_path / "tuned", {name: value * 1.5 for name, value in given.items()}, config("llama"))
    extraction = lbrx.extract_lora(
        tmp_path / "tuned", tmp_path / "base", tmp_path / "a", rank=1, exclude="mlp|k_proj", save_module=["norm"]
    )
    assert not any("mlp" in each.name or "k_proj" in each.name for each in extraction.captured)
    assert extraction.saved == ["model.norm.weight"]
    assert {each.reason for each in extraction.left_out} >= {"its module was excluded"}


def test_experts_of_another_shape(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", expert_factors(), lora_alpha=4, target_parameters=TARGETS)
    base = {
        f"{OWNER}.gate_up_proj": lbrx.zeros((EXPERTS, 2 * INNER, HIDDEN)),
        f"{OWNER}.down_proj": lbrx.zeros((EXPERTS, HIDDEN, INNER + 1)),
    }
    shape = (EXPERTS, HIDDEN, INNER)
    with pytest.raises(
        lbrx.ShapeError,
        match=re.escape(f"make a stack of shape {shape}, but the model has {base[f'{OWNER}.down_proj'].shape}"),
    ):
        open_with_adapter(base, adapter)


def test_factors_that_belong_to_no_parameter(tmp_path: Path) -> None:
    targets = [f"{OWNER}.{name}".removeprefix("model.") for name in ("gate_up_proj", "other_proj")]
    adapter = write_adapter(tmp_path / "a", expert_factors(), lora_alpha=4, target_parameters=targets)
    base = {f"{OWNER}.{name}": lbrx.zeros((EXPERTS, 2 * INNER, HIDDEN)) for name in ("gate_up_proj", "other_proj")}
    with pytest.raises(lbrx.FormatError, match="cannot be assigned to its parameters gate_up_proj, other_proj"):
        open_with_adapter(base, adapter)
