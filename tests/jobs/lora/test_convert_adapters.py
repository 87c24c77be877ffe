"""Adapters of PEFT, MLX and llama.cpp are the same adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.jobs.lora.parts import PREFIX
from support.peft_fixture import random_array
from support.small_models import HEADS, HIDDEN, INNER, KEY_VALUE_HEADS, LAYERS, config, tensors, write_model
from support.small_models import Array as Values

Array = npt.NDArray[Any]

HEAD_ROWS = HIDDEN // HEADS * KEY_VALUE_HEADS
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HEAD_ROWS, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    # Heads of four rows: those of two have the same order in GGUF.
    heads = {"num_attention_heads": HEADS // 2, "num_key_value_heads": KEY_VALUE_HEADS // 2}
    write_model(tmp_path / "base", tensors(1), config("llama", max_position_embeddings=64, rms_norm_eps=1e-5, **heads))
    return tmp_path / "base"


def adapter_factors(rank: int = 3) -> dict[str, Array]:
    made = {}
    for layer in range(LAYERS):
        for number, (part, (rows, columns)) in enumerate(SHAPES.items()):
            name = f"{PREFIX}model.layers.{layer}.{part}.lora_"
            made[f"{name}A.weight"] = random_array(10 * layer + number, rank, columns)
            made[f"{name}B.weight"] = random_array(100 + 10 * layer + number, rows, rank)
    return made


def write_adapter(directory: Path, factors: dict[str, Array], **settings: Any) -> Path:
    directory.mkdir()
    lbrx.save(directory / "adapter_model.safetensors", factors)
    whole = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, **settings}
    (directory / "adapter_config.json").write_text(json.dumps(whole))
    return directory


def merged(base: Path, adapter: Path, out: Path) -> dict[str, Values]:
    lbrx.merge_lora(base, adapter, out)
    return {name: tensor.numpy() for name, tensor in lbrx.open(out).items()}


@pytest.mark.parametrize("names", [["m"], ["m", "p"], ["g.gguf"], ["g.gguf", "p"], ["m", "g.gguf", "p"]])
def test_a_model_with_it_is_the_same_in_every_format(names: list[str], base: Path, tmp_path: Path) -> None:
    original = write_adapter(tmp_path / "peft", adapter_factors())
    expected, current = merged(base, original, tmp_path / "expected"), original
    for name in names:
        format = {"m": "mlx", "p": "peft"}.get(name)
        current = lbrx.convert_lora(current, tmp_path / name, format=format, base=base)
    found = merged(base, current, tmp_path / "found")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    if names[-1] == "p":
        again = lbrx.open(current / "adapter_model.safetensors")
        assert set(again) == set(adapter_factors())
        for name, value in adapter_factors().items():
            np.testing.assert_array_equal(again[name].numpy(), value)
        settings = json.loads((current / "adapter_config.json").read_text())
        assert (settings["r"], settings["lora_alpha"], settings["alpha_pattern"]) == (3, 6, {})
        assert settings["target_modules"] == ["down_proj", "k_proj", "q_proj"]


def test_the_files_of_mlx(tmp_path: Path) -> None:
    out = lbrx.convert_lora(write_adapter(tmp_path / "peft", adapter_factors()), tmp_path / "mlx")
    settings = json.loads((out / "adapter_config.json").read_text())
    keys = list(SHAPES)
    assert settings["lora_parameters"] == {"rank": 3, "scale": 2.0, "dropout": 0.0, "keys": keys}
    assert (settings["fine_tune_type"], settings["num_layers"]) == ("lora", -1)
    made, name = lbrx.open(out / "adapters.safetensors"), "model.layers.1.mlp.down_proj"
    np.testing.assert_array_equal(made[f"{name}.lora_a"].numpy(), adapter_factors()[f"{PREFIX}{name}.lora_A.weight"].T)
    np.testing.assert_array_equal(made[f"{name}.lora_b"].numpy(), adapter_factors()[f"{PREFIX}{name}.lora_B.weight"].T)


def test_the_file_of_llama_cpp(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "peft", adapter_factors(), base_model_name_or_path=str(base))
    assert run(["lora", "convert", str(adapter), str(tmp_path / "a.gguf"), "--dtype", "f16"]) == 0
    made = lbrx.open(tmp_path / "a.gguf")
    assert made.metadata["general.type"] == "adapter"
    assert (made.metadata["adapter.type"], made.metadata["adapter.lora.alpha"]) == ("lora", 6.0)
    given = adapter_factors()[f"{PREFIX}model.layers.0.self_attn.q_proj.lora_B.weight"]
    order = np.arange(HIDDEN).reshape(HEADS // 2, 2, -1).swapaxes(1, 2).reshape(-1)
    assert order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    found = made["blk.0.attn_q.weight.lora_b"]
    assert found.dtype.name == "f16"
    np.testing.assert_array_equal(found.numpy(), given[order].astype(np.float16))


def test_a_part_that_is_subtracted_stays_so_for_llama_cpp(base: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.down_proj"
    adapter = write_adapter(tmp_path / "peft", adapter_factors(), alpha_pattern={"layers.1.mlp.down_proj": -6})
    made = lbrx.open(lbrx.convert_lora(adapter, tmp_path / "a.gguf", base=base))
    assert made.metadata["adapter.lora.alpha"] == 6.0
    given = adapter_factors()[f"{PREFIX}{name}.lora_B.weight"]
    np.testing.assert_array_equal(made["blk.1.ffn_down.weight.lora_b"].numpy(), -given)
    np.testing.assert_array_equal(
        made["blk.0.ffn_down.weight.lora_b"].numpy(),
        adapter_factors()[f"{PREFIX}{name.replace('1', '0')}.lora_B.weight"],
    )


def test_other_scales_and_ranks_are_put_into_the_factors(base: Path, tmp_path: Path) -> None:
    factors = adapter_factors()
    name = "model.layers.1.mlp.down_proj"
    factors[f"{PREFIX}{name}.lora_A.weight"] = random_array(7, 5, INNER)
    factors[f"{PREFIX}{name}.lora_B.weight"] = random_array(8, HIDDEN, 5)
    patterns = {"rank_pattern": {"layers.1.mlp.down_proj": 5}, "alpha_pattern": {"layers.1.mlp.down_proj": 20}}
    adapter = write_adapter(tmp_path / "peft", factors, **patterns)
    expected = merged(base, adapter, tmp_path / "expected")
    for out, format in (("mlx", "mlx"), ("a.gguf", "gguf")):
        made = lbrx.convert_lora(adapter, tmp_path / out, format=format, base=base)
        found = merged(base, made, tmp_path / f"with {format}")
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)
    settings = json.loads((tmp_path / "mlx" / "adapter_config.json").read_text())
    assert settings["lora_parameters"]["rank"] == 5


def test_an_embedding(base: Path, tmp_path: Path) -> None:
    name = f"{PREFIX}model.embed_tokens.lora_embedding_"
    rows = tensors(1)["model.embed_tokens.weight"].shape[0]
    factors = {f"{name}A": random_array(1, 3, rows), f"{name}B": random_array(2, HIDDEN, 3)}
    adapter = write_adapter(tmp_path / "peft", factors)
    expected = merged(base, adapter, tmp_path / "expected")
    for out, format in (("mlx", "mlx"), ("a.gguf", "gguf")):
        made = lbrx.convert_lora(adapter, tmp_path / out, format=format, base=base)
        found = merged(base, made, tmp_path / f"with {format}")
        np.testing.assert_array_equal(found["model.embed_tokens.weight"], expected["model.embed_tokens.weight"])
    assert lbrx.open(tmp_path / "a.gguf")["token_embd.weight.lora_a"].shape == (rows, 3)


def test_what_a_format_does_not_have(base: Path, tmp_path: Path) -> None:
    factors = {**adapter_factors(), f"{PREFIX}lm_head.weight": tensors(1)["lm_head.weight"]}
    adapter = write_adapter(tmp_path / "peft", factors)
    with pytest.raises(lbrx.UsageError, match="1 tensors are saved as a whole"):
        lbrx.convert_lora(adapter, tmp_path / "mlx")
    with pytest.raises(lbrx.UsageError, match=r"'lm_head.weight' is saved as a whole"):
        lbrx.convert_lora(adapter, tmp_path / "a.gguf", base=base)
    with pytest.raises(lbrx.UsageError, match="does not name its base model; expected it as --base"):
        lbrx.convert_lora(adapter, tmp_path / "a.gguf")
    with pytest.raises(lbrx.UsageError, match="expected the name of a directory"):
        lbrx.convert_lora(adapter, tmp_path / "a.gguf", format="mlx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "peft"]


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"general.type": "model"}, "is of type 'model', 'lora'; expected a LoRA adapter"),
        ({}, {"adapter.lora.alpha": "much"}, "adapter.lora.alpha is 'much'; expected a number"),
        ({"blk.0.attn_q.weight.lora_a": (3,)}, {}, r"is f32 of shape \(3,\); expected a matrix"),
        ({"blk.9.attn_q.weight.lora_a": (3, HIDDEN)}, {}, "belongs to no tensor of the base model"),
        ({"blk.0.attn_q.weight.lora_a": (3, HIDDEN)}, {}, "has no lora_B"),
        ({}, {"general.architecture": "gemma2"}, "is for the architecture 'gemma2', but the base model is 'llama'"),
    ],
)
def test_damaged_gguf_adapters(
    tensors: dict[str, tuple[int, ...]], metadata: dict[str, Any], message: str, base: Path, tmp_path: Path
) -> None:
    usual = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    made = {name: lbrx.zeros(shape, "f32") for name, shape in tensors.items()}
    made = made or {"output_norm.weight": lbrx.zeros(HIDDEN, "f32")}
    lbrx.save(tmp_path / "a.gguf", made, {**usual, "adapter.lora.alpha": 4.0, **metadata})
    with pytest.raises(lbrx.LbrxError, match=message):
        lbrx.merge_lora(base, tmp_path / "a.gguf", tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (("q_proj.lora_a",), {"fine_tune_type": "full"}, "fine_tune_type is 'full'; expected 'lora' or 'dora'"),
        (("q_proj.lora_a",), {"lora_parameters": {"rank": 0, "scale": 1}}, "expected a rank and a scale"),
        (("q_proj.weight",), {}, "is not part of a LoRA adapter of mlx_lm"),
        (("block_sparse_moe.switch_mlp.other.lora_a",), {}, r"not in the model, such as .*experts\.0\.other"),
        (("q_proj.lora_a",), {"lora_parameters": {"rank": 5, "scale": 1.0}}, "has no lora_B"),
    ],
)
def test_damaged_mlx_adapters(
    names: tuple[str, ...], settings: dict[str, Any], message: str, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "mlx").mkdir()
    shapes = {name: (2, HIDDEN, 3) if "switch" in name else (HIDDEN, 3) for name in names}
    tensors_ = {f"model.layers.0.self_attn.{name}": lbrx.zeros(shape, "f32") for name, shape in shapes.items()}
    lbrx.save(tmp_path / "mlx" / "adapters.safetensors", tensors_)
    whole = {"fine_tune_type": "lora", "lora_parameters": {"rank": 3, "scale": 1.0}, **settings}
    (tmp_path / "mlx" / "adapter_config.json").write_text(json.dumps(whole))
    with pytest.raises(lbrx.LbrxError, match=message):
        lbrx.merge_lora(base, tmp_path / "mlx", tmp_path / "out")


def test_the_plan_of_a_merge(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = str(write_adapter(tmp_path / "peft", adapter_factors()))
    assert run(["lora", "merge", str(base), adapter, str(tmp_path / "out"), "--dry-run"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (rows["adapter"], rows["types"]) == (adapter, f"f32 {len(lbrx.open(base))}")
    assert not (tmp_path / "out").exists()
    assert run(["lora", "convert", adapter, str(tmp_path / "out"), "--dry-run"]) == 1
    assert "--dry-run is for 'merge'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("without", "rank", "message"),
    [("B", 3, "q_proj' has no lora_B"), ("A", 3, "q_proj' has no lora_A"), ("", 2, "axis 0 is the rank, which is 2")],
)
def test_incomplete_adapters_are_neither_converted_nor_combined(
    without: str, rank: int, message: str, base: Path, tmp_path: Path
) -> None:
    factors = adapter_factors()
    whole = write_adapter(tmp_path / "whole", factors)
    factors.pop(f"{PREFIX}model.layers.0.self_attn.q_proj.lora_{without}.weight", None)
    adapter = write_adapter(tmp_path / "part", factors, r=rank)
    for out, format in (("m", "mlx"), ("p", "peft"), ("g.gguf", "gguf")):
        with pytest.raises(lbrx.LbrxError, match=message):
            lbrx.convert_lora(adapter, tmp_path / out, format=format, base=base)
    with pytest.raises(lbrx.LbrxError, match=message):
        lbrx.combine_loras([whole, adapter], tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "part", "whole"]


EXPERT = "model.layers.0.block_sparse_moe.experts"


def test_experts_are_stacked_in_mlx_and_separate_in_peft(tmp_path: Path) -> None:
    shapes = {"w1": (INNER, HIDDEN), "w2": (HIDDEN, INNER), "w3": (INNER, HIDDEN)}
    factors: dict[str, Array] = {}
    for expert in range(3):
        for number, (part, (rows, columns)) in enumerate(shapes.items()):
            name = f"{PREFIX}{EXPERT}.{expert}.{part}.lora_"
            factors[f"{name}A.weight"] = random_array(10 * expert + number, 3, columns)
            factors[f"{name}B.weight"] = random_array(100 + 10 * expert + number, rows, 3)
    adapter = write_adapter(tmp_path / "peft", factors)
    mlx = lbrx.convert_lora(adapter, tmp_path / "mlx")
    stacks = lbrx.open(mlx / "adapters.safetensors")
    assert len(stacks) == 6
    for projection, part in {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}.items():
        for ours, theirs in (("a", "A"), ("b", "B")):
            expected = [factors[f"{PREFIX}{EXPERT}.{expert}.{part}.lora_{theirs}.weight"] for expert in range(3)]
            name = f"model.layers.0.block_sparse_moe.switch_mlp.{projection}.lora_{ours}"
            np.testing.assert_array_equal(stacks[name].numpy(), np.stack(expected))
    again = lbrx.open(lbrx.convert_lora(mlx, tmp_path / "again") / "adapter_model.safetensors")
    assert {name: again[name].numpy().tobytes() for name in again} == {
        name: value.tobytes() for name, value in factors.items()
    }
    for name in [name for name in factors if ".1.w" in name]:
        del factors[name]
    with pytest.raises(lbrx.UsageError, match=r"not all experts of .*switch_mlp\.gate_proj' have factors"):
        lbrx.convert_lora(write_adapter(tmp_path / "part", factors), tmp_path / "m")
