"""Comparing models in any formats: the numbers are those of NumPy, and the worst blocks are where they were put."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
import support
from lbrx.jobs.compare import compare_models, measuring, open_pair
from lbrx.jobs.compare.measuring import compare_tensors
from lbrx.jobs.compare.records import signal_to_noise
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.reading import read_contents
from lbrx.ops.difference import Sums
from support.verified_models import TOKENS, llama_arrays, write_llama

RANDOM = np.random.default_rng(5)


def tensors(**arrays: np.ndarray) -> dict[str, lbrx.Tensor]:
    return {name: lbrx.tensor(np.asarray(values, np.float32)) for name, values in arrays.items()}


def test_numbers_are_those_of_numpy() -> None:
    a = RANDOM.standard_normal((9, 700)).astype(np.float32)
    b = a + RANDOM.standard_normal(a.shape).astype(np.float32) * np.float32(0.01)
    found = compare_models(tensors(w=a), tensors(w=b)).tensors[0]
    x, y = a.astype(np.float64), b.astype(np.float64)
    relative = np.linalg.norm(x - y) / np.linalg.norm(x)
    assert found.relative_error == pytest.approx(relative, rel=1e-6)
    assert found.decibels == pytest.approx(-20 * np.log10(relative), rel=1e-6)
    assert found.diff.sums.max_difference == pytest.approx(np.abs(a - b).max())
    assert found.diff.sums.cosine == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y))


@pytest.mark.parametrize("shape", [(5, 700), (5, 512), (5, 100), (1000,), (2, 3, 300), (1,), ()])
def test_every_block_is_found(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks, in the order of their errors, whatever the shape and the length of runs."""
    a = RANDOM.standard_normal(shape).astype(np.float32)
    b = a + RANDOM.standard_normal(shape).astype(np.float32)
    matrix = (a.astype(np.float64) - b).reshape(-1, shape[-1] if shape else 1)
    rows, columns = matrix.shape
    places = [(row, start, min(start + 256, columns)) for row in range(rows) for start in range(0, columns, 256)]
    lengths = {place: float(np.linalg.norm(matrix[place[0], place[1] : place[2]])) for place in places}
    expected = sorted(places, key=lambda place: -lengths[place])[:6]
    for run_elements in (1 << 24, 1024):
        monkeypatch.setattr(measuring, "_RUN_ELEMENTS", run_elements)
        sums, blocks = compare_tensors(lbrx.tensor(a), lbrx.tensor(b), 6)
        assert [block[:3] for block in blocks] == expected
        assert sums.elements == a.size
        average = math.sqrt(sums.squares_a / -(-a.size // 256))
        assert blocks[0].relative == pytest.approx(lengths[expected[0]] / average, rel=1e-6)


def test_equal_tensors_have_no_worst_blocks() -> None:
    a = tensors(w=np.ones((4, 300)))
    found = compare_models(a, a).tensors[0]
    assert (found.relative_error, found.decibels, found.worst_blocks) == (0.0, math.inf, ())


def test_equal_errors_stand_in_the_order_of_their_places() -> None:
    a, b = np.zeros((3, 512)), np.ones((3, 512))
    found = compare_models(tensors(w=a), tensors(w=b)).tensors[0]
    assert [block[:2] for block in found.worst_blocks] == [(0, 0), (0, 256), (1, 0), (1, 256), (2, 0), (2, 256)]
    assert found.relative_error == math.inf
    assert found.worst_blocks[0].relative == math.inf


def test_what_is_not_a_number_is_the_worst() -> None:
    broken = np.ones((4, 512))
    broken[2, 300] = np.nan
    found = compare_models(
        tensors(a=np.ones((4, 512)), b=np.ones((4, 512))), tensors(a=np.full((4, 512), 9.0), b=broken)
    )
    assert [tensor.name for tensor in found.tensors] == ["b", "a"]
    assert math.isnan(found.tensors[0].decibels)
    assert found.tensors[0].worst_blocks[0][:3] == (2, 256, 512)


def test_sorted_by_error_and_summed_by_types() -> None:
    a = tensors(x=np.ones(512), y=np.ones(512), z=np.ones(512))
    b = tensors(x=np.ones(512) * 1.1, y=np.ones(512) * 2) | {"z": lbrx.full((512,), 1.5, "f32").quantize("q8_0")}
    found = compare_models(a, b)
    assert [tensor.name for tensor in found.tensors] == ["y", "z", "x"]
    assert {types: count for types, (count, _) in found.by_types().items()} == {("f32", "f32"): 2, ("f32", "q8_0"): 1}
    assert found.total.relative_change == pytest.approx(math.sqrt((0.01 + 1 + 0.25) / 3), rel=1e-3)


def test_what_only_one_has() -> None:
    found = compare_models(
        tensors(a=np.ones(3), b=np.ones(3), c=np.ones(3)), tensors(a=np.ones(3), b=np.ones(4), d=np.ones(2))
    )
    assert (found.models.only_in_a, found.models.only_in_b) == (("c",), ("d",))
    assert [odd.name for odd in found.models.shape_mismatches] == ["b"]


@pytest.mark.parametrize(
    ("error", "decibels"), [(1.0, 0.0), (0.1, 20.0), (0.0, math.inf), (10.0, -20.0), (math.inf, -math.inf)]
)
def test_decibels(error: float, decibels: float) -> None:
    assert signal_to_noise(Sums(1, squares_a=1.0, squares_difference=error**2)) == pytest.approx(decibels)


# -- formats ----------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, source: Path, type_name: str | None) -> Path:
    contents = hf_to_gguf(read_contents(source), tokenizer_metadata=TOKENS)
    made = {each.name: each.make() for each in contents.tensors}
    if type_name is not None:
        made = {name: t.quantize(type_name).realize() if t.ndim > 1 else t for name, t in made.items()}
    lbrx.save(path, made, contents.metadata)
    return path


def test_gguf_against_hugging_face(tmp_path: Path) -> None:
    """Names and the order of rows differ in the files: nothing differs in the models."""
    source = write_llama(tmp_path / "a")
    found = compare_models(*open_pair(source, write_gguf(tmp_path / "a.gguf", source, None)))
    assert len(found.tensors) == len(llama_arrays())
    assert (found.models.only_in_a, found.models.only_in_b, found.total.relative_change) == ((), (), 0.0)


def test_quantized_gguf_against_hugging_face(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    found = compare_models(*open_pair(source, write_gguf(tmp_path / "a.gguf", source, "q8_0")))
    (coded, plain) = found.by_types().items()
    assert (coded[0], coded[1][0]) == (("f32", "q8_0"), 16)
    assert 0.003 < coded[1][1].relative_change < 0.01
    assert (plain[0], plain[1][1].relative_change) == (("f32", "f32"), 0.0)


def test_two_gguf_files_keep_their_names(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    pair = open_pair(write_gguf(tmp_path / "a.gguf", source, None), write_gguf(tmp_path / "b.gguf", source, "q8_0"))
    assert "blk.0.attn_q.weight" in pair[0]
    assert 0.003 < compare_models(*pair).total.relative_change < 0.01


def test_mlx_against_gguf(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    gguf = write_gguf(tmp_path / "a.gguf", source, "q8_0")
    contents = read_contents(source)
    coded = [
        each.mapped(lambda values: values.quantize("q8_0").realize(), type_name="q8_0") if len(each.shape) > 1 else each
        for each in contents.tensors
    ]
    made = hf_to_mlx(replace(contents, tensors=tuple(coded)))
    directory = write_llama(tmp_path / "mlx", **(made.config or {}))
    lbrx.save(directory / "model.safetensors", {each.name: each.make() for each in made.tensors}, made.metadata)
    found = compare_models(*open_pair(gguf, directory))
    assert found.total.relative_change == 0.0
    assert found.total.elements == sum(values.size for values in llama_arrays().values())
    assert ("q8_0", "mlx 8-bit/32") in found.by_types()


def test_pytorch_against_safetensors(tmp_path: Path) -> None:
    golden = support.GOLDEN / "pytorch" / "views.pt"
    lbrx.save(tmp_path / "a.safetensors", lbrx.open(golden))
    assert compare_models(*open_pair(golden, tmp_path / "a.safetensors")).total.relative_change == 0.0


def test_nothing_in_common(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lbrx.save(tmp_path / f"{name}.safetensors", tensors(**{name: np.ones(2)}))
    with pytest.raises(lbrx.UsageError, match="no tensor in common"):
        compare_models(*open_pair(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
