"""Models whose weights are joined in other tensors than usual: cut up, joined again, merged, converted and run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_repack import with_blocks
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures.layouts import joined, separated
from lbrx.models.inference import open_model
from support.family_goldens import Golden, all_goldens

Arrays = dict[str, npt.NDArray[np.float32]]

GOLDENS = {golden.name: golden for golden in all_goldens()}
# How transformers 5 holds the experts of these models: what replaces what, and the other name of the router.
FUSED: dict[str, tuple[str, str, tuple[str, str, str], tuple[str, str] | None]] = {
    "qwen3_moe": ("mlp.experts", "mlp.experts", ("gate_proj", "up_proj", "down_proj"), None),
    "mixtral": ("block_sparse_moe.experts", "mlp.experts", ("w1", "w3", "w2"), ("block_sparse_moe.gate", "mlp.gate")),
    "deepseek_v3": ("mlp.experts", "mlp.experts", ("gate_proj", "up_proj", "down_proj"), None),
    "phimoe": ("block_sparse_moe.experts", "mlp.experts", ("w1", "w3", "w2"), ("block_sparse_moe.gate", "mlp.router")),
}
AVERAGE = "{{merge_method: linear, models: [{{model: {}}}, {{model: {}}}], parameters: {{weight: 1}}}}"
every_fused = pytest.mark.parametrize("name", FUSED)


def fused(golden: Golden, seed: int = 0) -> Arrays:
    """The arrays of a model with one tensor for all gate and up matrices of a layer, and one for those of down."""
    source, target, matrices, router = FUSED[golden.name]
    arrays = golden.arrays(seed)
    layers = {name.partition(f".{source}.")[0] for name in arrays if f".{source}.0." in name}
    for layer in layers:
        stacks = []
        for matrix in matrices:
            names = [name for name in arrays if name.startswith(f"{layer}.{source}.") and f".{matrix}." in name]
            names.sort(key=lambda name: int(name[len(f"{layer}.{source}.") :].partition(".")[0]))
            stacks.append(np.stack([arrays.pop(name) for name in names]))
        arrays[f"{layer}.{target}.gate_up_proj"] = np.concatenate(stacks[:2], axis=1)
        arrays[f"{layer}.{target}.down_proj"] = stacks[2]
    if router is not None:
        arrays = {name.replace(f".{router[0]}.", f".{router[1]}."): array for name, array in arrays.items()}
    return arrays


def write(folder: Path, golden: Golden, arrays: Arrays) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden.config))
    lbrx.save(folder / "model.safetensors", {name: lbrx.tensor(array) for name, array in arrays.items()})
    return folder


def planned(arrays: Arrays) -> list[PlannedTensor]:
    return [PlannedTensor.of(name, lbrx.tensor(array)) for name, array in arrays.items()]


def assert_equal(tensors: Any, arrays: Arrays) -> None:
    made = {each.name: each.make().numpy() for each in tensors}
    assert set(made) == set(arrays)
    for name, array in arrays.items():
        assert made[name].tobytes() == array.tobytes(), name


@every_fused
def test_joined_experts_are_cut_up(name: str) -> None:
    golden = GOLDENS[name]
    config = golden.family.config(golden.config)
    expected = {each.name: each.make().numpy() for each in separated(planned(golden.arrays()), golden.family, config)}
    assert_equal(separated(planned(fused(golden)), golden.family, config), expected)


@pytest.mark.parametrize("name", ["gpt_oss", "llama4_text", "granitemoe", "granitemoeshared", "deepseek_v2"])
def test_separate_weights_are_joined_again(name: str) -> None:
    golden = GOLDENS[name]
    config = golden.family.config(golden.config)
    parts = separated(planned(golden.arrays()), golden.family, config)
    assert len(parts) > len(golden.shapes)
    assert_equal(joined(parts, golden.family, config), golden.arrays())


def test_gate_and_up_of_gpt_oss_alternate() -> None:
    golden = GOLDENS["gpt_oss"]
    whole = golden.arrays()["model.layers.0.mlp.experts.gate_up_proj"]
    parts = {
        each.name: each
        for each in separated(planned(golden.arrays()), golden.family, golden.family.config({**golden.config}))
    }
    up = parts["model.layers.0.mlp.experts.2.up_proj.weight"].make().numpy()
    np.testing.assert_array_equal(up, whole[2, :, 1::2].T)


@every_fused
def test_models_of_both_layouts_are_merged(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    a = write(tmp_path / "a", golden, golden.arrays())
    b = write(tmp_path / "b", golden, fused(golden, 1))
    for first, second in ((a, b), (b, a)):
        models = f"{{model: {first}, parameters: {{weight: 3}}}}, {{model: {second}, parameters: {{weight: 1}}}}"
        lbrx.merge(f"{{merge_method: linear, models: [{models}]}}", tmp_path / f"from {first.name}")
        weights = (0.75, 0.25) if first is a else (0.25, 0.75)
        merged = lbrx.open(tmp_path / f"from {first.name}")
        own, other = golden.arrays(), golden.arrays(1)
        assert set(merged) == set(own)
        for tensor, values in merged.items():
            expected = weights[0] * own[tensor] + weights[1] * other[tensor]
            np.testing.assert_allclose(values.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=tensor)


@every_fused
def test_models_of_one_layout_keep_it(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    arrays = fused(golden)
    paths = [write(tmp_path / str(seed), golden, fused(golden, seed)) for seed in (0, 1)]
    lbrx.merge(AVERAGE.format(*paths), tmp_path / "out")
    assert {name: tensor.shape for name, tensor in lbrx.open(tmp_path / "out").items()} == {
        name: array.shape for name, array in arrays.items()
    }


@every_fused
def test_joined_experts_are_converted_and_run(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    folder = write(tmp_path / "model", golden, fused(golden))
    logits = open_model(folder).logits(golden.ids)
    assert np.abs(logits[golden.positions] - golden.values).max() <= 1e-4 * np.abs(golden.values).max()
    if golden.family.gguf is None or golden.gguf is None:
        return
    made = hf_to_gguf(read_contents(folder), tokenizer_metadata={"tokenizer.ggml.model": "none"})
    usual = hf_to_gguf(
        read_contents(golden.write(tmp_path / "usual")), tokenizer_metadata={"tokenizer.ggml.model": "none"}
    )
    assert {each.name: each.make().numpy().tobytes() for each in made.tensors} == {
        each.name: each.make().numpy().tobytes() for each in usual.tensors
    }


def test_a_joined_tensor_of_another_shape_is_refused() -> None:
    golden = GOLDENS["qwen3_moe"]
    arrays = fused(golden)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    arrays[name] = arrays[name][:, 1:]
    with pytest.raises(UsageError, match=r"has shape .*, expected"):
        separated(planned(arrays), golden.family, golden.family.config(golden.config))


def test_weights_that_are_stored_twice_are_refused() -> None:
    golden = GOLDENS["qwen3_moe"]
    with pytest.raises(UsageError, match="contain the same weights"):
        separated(planned(golden.arrays() | fused(golden)), golden.family, golden.family.config(golden.config))


def test_a_missing_part_of_a_joined_tensor_is_an_error() -> None:
    golden = GOLDENS["gpt_oss"]
    config = golden.family.config(golden.config)
    parts = separated(planned(golden.arrays()), golden.family, config)
    missing = "model.layers.1.mlp.experts.3.up_proj.weight"
    with pytest.raises(UsageError, match=f"{missing}' is missing"):
        joined([each for each in parts if each.name != missing], golden.family, config)


# -- layers that predict further tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_are_never_dropped(name: str, tmp_path: Path) -> None:
    golden = GOLDENS[name]
    layers = golden.family.layer_count(golden.config)
    own, last = golden.arrays(), f"model.layers.{layers - 1}."
    more = {each.replace(last, f"model.layers.{layers}."): array for each, array in own.items() if last in each}
    hidden = golden.config["hidden_size"]
    shapes = {"enorm": (hidden,), "hnorm": (hidden,), "eh_proj": (hidden, 2 * hidden), "shared_head.norm": (hidden,)}
    tables = {"embed_tokens": (64, hidden), "shared_head.head": (64, hidden)}
    random = np.random.default_rng(5)
    more |= {
        f"model.layers.{layers}.{part}.weight": random.standard_normal(shape, np.float32)
        for part, shape in (shapes | tables).items()
    }
    arrays = own | more
    golden = replace(golden, config={**golden.config, "num_nextn_predict_layers": 1})
    paths = [write(tmp_path / label, golden, arrays) for label in ("a", "b")]
    lbrx.merge(AVERAGE.format(*paths), tmp_path / "out")
    assert set(lbrx.open(tmp_path / "out")) == set(arrays)
    made = hf_to_gguf(read_contents(paths[0]), tokenizer_metadata={"tokenizer.ggml.model": "none"})
    architecture = made.metadata["general.architecture"]
    assert made.metadata[f"{architecture}.block_count"] == layers + 1
    assert made.metadata[f"{architecture}.nextn_predict_layers"] == 1
    assert f"blk.{layers}.nextn.eh_proj.weight" in made.by_name
    path = tmp_path / "model.gguf"
    lbrx.save(path, {each.name: each.make() for each in made.tensors}, made.metadata)
    back = gguf_to_hf(read_contents(path))
    assert back.config == golden.config
    assert_equal(back.tensors, arrays)
    expected = open_model(paths[0]).logits(golden.ids)
    np.testing.assert_allclose(open_model(path).logits(golden.ids), expected, rtol=1e-3, atol=1e-3)


# -- MXFP4 of gpt-oss --------------------------------------------------------------------------------------------------


def coded_gpt_oss(folder: Path) -> tuple[Golden, Path, Arrays]:
    """A gpt-oss model whose experts are blocks of 4-bit codes, and the bytes of blocks and scales."""
    golden = GOLDENS["gpt_oss"]
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = golden.arrays()
    codes: dict[str, Any] = {}
    for name in [name for name in arrays if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = arrays.pop(name).shape
        codes[f"{name}_blocks"] = random.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        codes[f"{name}_scales"] = random.integers(122, 126, (experts, outputs, inputs // 32), dtype=np.uint8)
    config = {**golden.config, "quantization_config": {"quant_method": "mxfp4"}}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    lbrx.save(folder / "model.safetensors", {name: lbrx.tensor(array) for name, array in (arrays | codes).items()})
    return golden, folder, codes


def ggml_blocks(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> bytes:
    """The exponent and the codes of each block: element i in the low half of byte i, element i + 16 in the high one."""
    elements = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    packed = elements[..., :16] | (elements[..., 16:] << 4)
    return np.concatenate([scales[..., None], packed], axis=-1).tobytes()


def test_codes_of_gpt_oss_become_blocks_of_gguf(tmp_path: Path) -> None:
    golden, folder, codes = coded_gpt_oss(tmp_path / "model")
    path = tmp_path / "model.gguf"
    tokenizer = {"tokenizer.ggml.model": "none"}
    made = hf_to_gguf(with_blocks(read_contents(folder, keeps_codes=True)), tokenizer_metadata=tokenizer)
    lbrx.save(path, {each.name: each.make() for each in made.tensors}, made.metadata)
    stored, layers = lbrx.open(path), golden.config["num_hidden_layers"]
    for layer in range(layers):
        name = f"model.layers.{layer}.mlp.experts"
        gate_up, scales = codes[f"{name}.gate_up_proj_blocks"], codes[f"{name}.gate_up_proj_scales"]
        down = codes[f"{name}.down_proj_blocks"], codes[f"{name}.down_proj_scales"]
        expected = {
            "gate": ggml_blocks(gate_up[:, ::2], scales[:, ::2]),
            "up": ggml_blocks(gate_up[:, 1::2], scales[:, 1::2]),
            "down": ggml_blocks(*down),
        }
        for role, content in expected.items():
            weight = stored[f"blk.{layer}.ffn_{role}_exps.weight"]
            assert weight.type_name == "mxfp4"
            assert weight.raw().numpy().tobytes() == content
    exact = hf_to_gguf(read_contents(folder), tokenizer_metadata=tokenizer, type_name="f32")
    lbrx.save(tmp_path / "f32.gguf", {each.name: each.make() for each in exact.tensors}, exact.metadata)
    logits = open_model(tmp_path / "f32.gguf").logits(golden.ids)
    assert np.abs(open_model(path).logits(golden.ids) - logits).max() <= 1e-3 * np.abs(logits).max()
    plain = {each.name: each.make() for each in gguf_to_hf(read_contents(path), type_name="f32").tensors}
    for name, values in lbrx.open(folder).items():
        np.testing.assert_array_equal(plain[name].numpy(), values.to("f32").numpy(), err_msg=name)


def test_codes_of_gpt_oss_become_codes_of_mlx(tmp_path: Path) -> None:
    _, folder, codes = coded_gpt_oss(tmp_path / "model")
    lbrx.convert(folder, tmp_path / "mlx", format="mlx")
    stored = lbrx.open(tmp_path / "mlx", raw=True)
    name = "model.layers.1.mlp.experts"
    expected = {
        "up_proj.weight": codes[f"{name}.gate_up_proj_blocks"][:, 1::2],
        "up_proj.scales": codes[f"{name}.gate_up_proj_scales"][:, 1::2],
        "down_proj.weight": codes[f"{name}.down_proj_blocks"],
    }
    for part, content in expected.items():
        storage = stored[f"{name}.{part}"].storage
        assert storage is not None
        assert storage.read_at(0, storage.nbytes).tobytes() == content.tobytes()
