"""How models differ: every number against NumPy, and nothing dropped silently."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.jobs.compare.diff import diff_models, positions_of, short_labels
from lbrx.ops.difference import Sums, compare
from lbrx.tensors.coded import Blocks


def random_array(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return float(np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("kinds", [("f32", "f32", "f32"), ("bf16", "bf16", "bf16"), ("f16", "f32", "bf16")])
def test_every_number_is_that_of_numpy(kinds: tuple[str, str, str]) -> None:
    base = random_array(1, 300, 401)
    tensors = [
        lbrx.tensor(base + 0.3 * random_array(seed, 300, 401)).to(dtype_name).realize()
        for seed, dtype_name in enumerate(kinds, start=2)
    ]
    a, b, origin = (tensor.numpy().astype(np.float64) for tensor in tensors)
    sums = compare(*tensors)
    assert sums.elements == 300 * 401
    assert sums.relative_change == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-6)
    assert sums.cosine == pytest.approx(cosine(a, b), rel=1e-6)
    assert sums.sign_agreement == np.mean(np.sign(a) == np.sign(b))
    assert sums.max_difference == pytest.approx(np.max(np.abs(a - b)), rel=1e-6)
    assert sums.task_cosine == pytest.approx(cosine(a - origin, b - origin), rel=1e-5)


def test_signs_of_zeros() -> None:
    a, b = lbrx.tensor([0.0, -0.0, 0.0, 1.0, -1.0], "f32"), lbrx.tensor([0.0, 0.0, 1.0, 2.0, 1.0], "f32")
    assert compare(a, b).sign_agreement == 3 / 5


def test_equal_and_zero_tensors() -> None:
    values = lbrx.tensor(random_array(1, 50))
    same = compare(values, values)
    assert (same.relative_change, same.sign_agreement, same.max_difference) == (0.0, 1.0, 0.0)
    assert same.cosine == pytest.approx(1.0)
    zero = lbrx.full((50,), 0, "f32")
    assert compare(zero, values).relative_change == math.inf
    assert math.isnan(compare(zero, values).cosine)
    assert compare(zero, zero).relative_change == 0.0
    assert compare(lbrx.full((0, 3), 1, "f32"), lbrx.full((0, 3), 2, "f32")) == Sums()


def test_nan_is_not_hidden() -> None:
    a, b = lbrx.tensor([1.0, math.nan], "f32"), lbrx.tensor([1.0, 1.0], "f32")
    sums = compare(a, b)
    assert math.isnan(sums.relative_change)
    assert math.isnan(sums.max_difference)
    assert math.isnan((sums + compare(b, b)).max_difference)
    assert sums.sign_agreement == 0.5


def test_integers_are_compared_as_numbers() -> None:
    sums = compare(lbrx.tensor([3, 4], "i32"), lbrx.tensor([3, -4], "i64"))
    assert (sums.relative_change, sums.max_difference) == (1.6, 8.0)


def test_quantized_tensors_are_compared_by_their_values() -> None:
    blocks = np.zeros((2, 34), np.uint8)
    blocks[:, 1] = 0x3C  # a scale of 1.0 in f16
    blocks[:, 2:] = np.arange(64).reshape(2, 32)
    quantized = lbrx.Tensor(Blocks(lbrx.CpuStorage.from_array(blocks), "q8_0", (2, 32)))
    plain = lbrx.tensor(np.arange(64, dtype=np.float32).reshape(2, 32)) + 1.0
    assert compare(quantized, plain).max_difference == 1.0
    assert compare(quantized, plain).sign_agreement == 63 / 64


def llama(seed: int) -> dict[str, lbrx.Tensor]:
    arrays = {"model.embed_tokens.weight": random_array(seed, 8, 4)}
    for layer in range(2):
        arrays[f"model.layers.{layer}.self_attn.q_proj.weight"] = random_array(seed + layer + 1, 4, 4)
        for expert in range(2):
            name = f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"
            arrays[name] = random_array(seed + 10 * layer + expert, 6, 4)
    return {name: lbrx.tensor(values.astype(ml_dtypes.bfloat16)) for name, values in arrays.items()}


def test_layers_and_modules_are_the_sums_of_their_tensors() -> None:
    a, b = llama(1), llama(100)
    found = diff_models(a, b)
    assert [tensor.name for tensor in found.tensors] == list(a)
    assert list(found.layers()) == [("model.layers", 0), ("model.layers", 1)]
    names = [name for name in a if name.startswith("model.layers.1.")]
    of_a, of_b = (
        np.concatenate([model[name].numpy().astype(np.float64).ravel() for name in names]) for model in (a, b)
    )
    layer = found.layers()["model.layers", 1]
    assert layer.relative_change == pytest.approx(np.linalg.norm(of_a - of_b) / np.linalg.norm(of_a), rel=1e-6)
    assert layer.cosine == pytest.approx(cosine(of_a, of_b), rel=1e-5)
    assert layer.elements == 64
    modules = found.modules()["model.layers", 1]
    assert {module: sums.elements for module, sums in modules.items()} == {
        "self_attn.q_proj": 16,
        "mlp.experts.*.up_proj": 48,
    }
    assert [tensor.name for tensor in found.outside_layers()] == ["model.embed_tokens.weight"]
    assert found.total.elements == 160
    assert found.total.equal_signs == sum(tensor.sums.equal_signs for tensor in found.tensors)
    assert "task_cosine" not in found.total.metrics()


def test_what_cannot_be_compared_is_listed() -> None:
    a, b, base = llama(1), llama(2), llama(3)
    a["only.a"] = b["only.b"] = lbrx.full((2,), 1, "f32")
    a["odd"], b["odd"] = lbrx.full((2,), 1, "f32"), lbrx.full((3,), 1, "f32")
    del base["model.layers.0.self_attn.q_proj.weight"]
    base["model.embed_tokens.weight"] = lbrx.full((9, 4), 1, "f32")
    found = diff_models(a, b, base)
    assert found.only_in_a == ("only.a",)
    assert found.only_in_b == ("only.b",)
    assert [(odd.name, odd.shape_a, odd.shape_b) for odd in found.shape_mismatches] == [("odd", (2,), (3,))]
    assert found.without_base == ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")
    by_name = {tensor.name: tensor.sums for tensor in found.tensors}
    assert len(by_name) == 7
    assert math.isnan(by_name["model.embed_tokens.weight"].task_cosine)
    assert -1 < by_name["model.layers.1.self_attn.q_proj.weight"].task_cosine < 1


@pytest.mark.parametrize(("pattern", "count"), [("*.q_proj.weight", 2), ("experts", 4), ("model.layers.?.self*", 2)])
def test_patterns(pattern: str, count: int) -> None:
    found = diff_models(llama(1), llama(2), pattern=pattern)
    assert len(found.tensors) == count
    assert {tensor.position.layer for tensor in found.tensors} == {0, 1}


def test_models_without_a_common_tensor() -> None:
    with pytest.raises(lbrx.UsageError, match="no tensor in common: 'x' is in the first, 'y' in the second"):
        diff_models({"x": lbrx.full((1,), 1, "f32")}, {"y": lbrx.full((1,), 1, "f32")})
    with pytest.raises(lbrx.UsageError, match=r"no tensor that matches 'k_proj' in common$"):
        diff_models(llama(1), llama(2), pattern="k_proj")


def test_progress_counts_the_tensors_that_are_compared() -> None:
    steps: list[tuple[int, int, str]] = []
    diff_models(llama(1), llama(2), pattern="q_proj", progress=lambda *step: steps.append(step))
    assert steps == [
        (1, 2, "model.layers.0.self_attn.q_proj.weight"),
        (2, 2, "model.layers.1.self_attn.q_proj.weight"),
    ]


def test_places_of_gguf_and_of_several_stacks() -> None:
    positions = positions_of(["blk.0.attn_q.weight", "token_embd.weight", "vision.layers.0.fc.bias"])
    assert positions["blk.0.attn_q.weight"] == ("blk", 0, "attn_q")
    assert positions["token_embd.weight"] == ("", None, "token_embd")
    assert positions["vision.layers.0.fc.bias"] == ("vision.layers", 0, "fc.bias")


def test_labels_are_short_and_never_the_same() -> None:
    modules = ["self_attn.q_proj", "mlp.gate", "mlp.experts.*.gate", "gate", "norm.bias", "norm"]
    labels = short_labels(modules)
    assert labels == ["q_proj", "mlp.gate", "*.gate", "gate", "bias", "norm"]
    assert len(set(labels)) == len(modules)


def test_numbers_do_not_depend_on_threads_or_chunks() -> None:
    a, b = lbrx.tensor(random_array(1, 500, 700)), lbrx.tensor(random_array(2, 500, 700))
    with lbrx.using(threads=1, chunk_elements=1 << 30):
        expected = compare(a, b)
    with lbrx.using(threads=3, chunk_elements=1):
        assert compare(a, b) == expected


@pytest.mark.parametrize(("first", "second"), [(math.nan, 1.0), (1.0, math.nan)])
def test_nan_stays_the_largest_difference_of_a_sum(first: float, second: float) -> None:
    zero = lbrx.tensor([0.0])
    total = compare(zero, lbrx.tensor([first])) + compare(zero, lbrx.tensor([second]))
    assert math.isnan(total.max_difference)
