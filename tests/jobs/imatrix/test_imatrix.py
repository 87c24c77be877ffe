"""Importance matrices: sums of what matrices are multiplied with, files, combining, resuming."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
import support
from lbrx.cli.main import run as run_command
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, FormatError, LbrxError, UsageError
from lbrx.jobs.imatrix.files import RawMatrix, Sums, read_imatrix, read_sums
from lbrx.jobs.imatrix.imatrix import _Run, calibrated, combine, imatrix
from lbrx.jobs.imatrix.statistics import statistics
from lbrx.jobs.imatrix.writing import added, write_imatrix
from lbrx.jobs.quantize import quantize
from lbrx.models.inference import open_model
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.watching import matrix_names
from lbrx.models.inference.weights import normalized
from lbrx.models.tokenizers.text import open_tokenizer
from support.tiny_models import write_model

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void."


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def measured(text: Path) -> Path:
    path = text.with_name("imatrix.gguf")
    imatrix(demo_models().base, path, text, context=16)
    return path


def test_sums_are_those_of_the_inputs_of_each_layer(text: Path, measured: Path) -> None:
    model = open_model(demo_models().base)
    ids = open_tokenizer(demo_models().base).encode(TEXT)
    chunks = [ids[start : start + 16] for start in range(0, len(ids) // 16 * 16, 16)]
    assert len(chunks) >= 2
    raw = read_sums(measured)
    assert (raw.chunk_count, raw.chunk_size, raw.datasets) == (len(chunks), 16, (str(text),))
    layers = len(model.spec.layers)
    assert {name.split(".")[1] for name in raw.entries} == {str(number) for number in range(layers)}
    expected = np.zeros((layers, model.spec.hidden))
    for chunk in chunks:
        given = [ids[0], *chunk[1:]] if open_tokenizer(demo_models().base).special.add_bos else chunk
        for number, hidden in enumerate(model.layer_inputs(given)):
            norm = model.weights.layers[number].norms[0]
            assert norm is not None
            expected[number] += np.square(normalized(hidden, norm).astype(np.float64)).sum(axis=0)
    for number in range(layers):
        for part in ("attn_q", "attn_k", "attn_v"):
            sums = raw.entries[f"blk.{number}.{part}.weight"]
            np.testing.assert_allclose(sums.squares[0], expected[number], rtol=1e-4)
            assert sums.counts.tolist() == [16 * len(chunks)]


def test_sums_are_those_of_llama_imatrix(tmp_path: Path) -> None:
    """``demo_imatrix.gguf`` is of llama-imatrix: three chunks of 64 tokens, the first of our calibration text."""
    imatrix(demo_models().base, tmp_path / "i.gguf", context=64, max_chunks=3)
    ours, theirs = read_sums(tmp_path / "i.gguf"), read_sums(support.GOLDEN / "llama_cpp" / "demo_imatrix.gguf")
    assert set(ours.entries) == set(theirs.entries)
    assert (ours.chunk_count, ours.chunk_size) == (theirs.chunk_count, theirs.chunk_size) == (3, 64)
    for name, sums in ours.entries.items():
        expected = theirs.entries[name]
        assert sums.counts.tolist() == expected.counts.tolist() == [192]
        np.testing.assert_allclose(sums.squares, expected.squares, rtol=1e-2, atol=1e-3 * expected.squares.mean())


def test_other_formats_of_a_model_have_the_same_names(tmp_path: Path, text: Path, measured: Path) -> None:
    lbrx.convert(demo_models().base, tmp_path / "model.gguf", type="f32")
    imatrix(tmp_path / "model.gguf", tmp_path / "i.gguf", text, context=16)
    ours, theirs = read_sums(tmp_path / "i.gguf"), read_sums(measured)
    assert set(ours.entries) == set(theirs.entries)
    for name, sums in ours.entries.items():
        np.testing.assert_allclose(sums.squares, theirs.entries[name].squares, rtol=2e-2, atol=1e-3)


def test_experts_are_counted_one_by_one(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path / "mixtral", "mixtral", type_name="f32")
    model = open_model(directory)
    seen: dict[int, int] = {}
    model.run_watched(range(1, 30), lambda matrix, values: seen.update({id(matrix): len(values)}), with_output=False)
    names = matrix_names(model.spec, model.weights)
    for role in ("gate", "up", "down"):
        tensor = f"blk.0.ffn_{role}_exps.weight"
        parts = {names[key].item: rows for key, rows in seen.items() if key in names and names[key].tensor == tensor}
        used = model.spec.config.count("num_experts_per_tok")
        assert sum(parts.values()) == 29 * used
        items = {name.items for name in names.values() if name.tensor == tensor}
        assert items == {model.spec.config.count("num_local_experts")}


def test_a_stopped_run_resumes(tmp_path: Path, text: Path, measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = LanguageModel.run_watched, []

    def stopping(self: LanguageModel, *given: object, **named: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("lbrx.jobs.imatrix.imatrix._SAVED_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(LanguageModel, "run_watched", stopping)
    with pytest.raises(KeyboardInterrupt):
        imatrix(demo_models().base, tmp_path / "i.gguf", text, context=16)
    assert not (tmp_path / "i.gguf").exists()
    calls.append(1)
    imatrix(demo_models().base, tmp_path / "i.gguf", text, context=16)
    assert len(calls) == 2 + read_sums(measured).chunk_count
    assert (tmp_path / "i.gguf").read_bytes() == measured.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["i.gguf"]


def test_a_matrix_of_one_precision_of_activations_is_not_taken_for_another(tmp_path: Path, text: Path) -> None:
    path = calibrated(demo_models().base, tmp_path / "m.gguf", text)
    first = read_sums(path).identity
    with lbrx.using(activation_bits=8):
        assert read_sums(calibrated(demo_models().base, tmp_path / "m.gguf", text)).identity != first
    assert read_sums(calibrated(demo_models().base, tmp_path / "m.gguf", text)).identity == first


def test_files_of_a_stopped_run_are_not_used_for_another_model(tmp_path: Path, text: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(demo_models().base, model)
    first = _Run(model, tmp_path / "i.gguf", [text], 16, None, False).identity
    time = (model / "config.json").stat().st_mtime_ns
    os.utime(model / "model.safetensors", ns=(time + 1, time + 1))  # written in place
    assert _Run(model, tmp_path / "i.gguf", [text], 16, None, False).identity != first
    (tmp_path / ".i.gguf.partial.npz").write_bytes(b"PK\x03\x04 damaged")
    assert imatrix(model, tmp_path / "i.gguf", text, context=16, max_chunks=1).measured_chunks == 1
    with pytest.raises(UsageError, match="max_chunks is 0; expected at least 1"):
        imatrix(model, tmp_path / "j.gguf", text, max_chunks=0)


def test_matrices_are_added(tmp_path: Path, text: Path, measured: Path) -> None:
    result = imatrix(demo_models().base, tmp_path / "twice.gguf", text, context=16, add=[measured])
    assert result.chunks == 2 * result.measured_chunks
    one, two = read_sums(measured), read_sums(tmp_path / "twice.gguf")
    assert combine(tmp_path / "again.gguf", [measured, measured]) == len(one.entries)
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "twice.gguf").read_bytes()
    for name, sums in one.entries.items():
        np.testing.assert_allclose(two.entries[name].squares, 2 * sums.squares, rtol=1e-6)
        np.testing.assert_allclose(read_imatrix(tmp_path / "twice.gguf")[name], read_imatrix(measured)[name], rtol=1e-6)


def test_the_legacy_format_has_the_same_importances(tmp_path: Path, measured: Path) -> None:
    combine(tmp_path / "i.dat", [measured])
    old, new = read_imatrix(tmp_path / "i.dat"), read_imatrix(measured)
    assert list(old) == sorted(new)
    assert (old.chunk_count, old.datasets) == (new.chunk_count, new.datasets)
    for name, values in old.items():
        np.testing.assert_allclose(values.reshape(new[name].shape), new[name], rtol=1e-6)


def test_experts_without_tokens_count_evenly(tmp_path: Path) -> None:
    sums = Sums(np.array([[8.0, 2.0], [0.0, 0.0]]), np.array([2.0, 0.0]))
    write_imatrix(tmp_path / "i.gguf", RawMatrix({"blk.0.ffn_up_exps.weight": sums}, ("a", "b"), 1, 512))
    assert read_imatrix(tmp_path / "i.gguf")["blk.0.ffn_up_exps.weight"].tolist() == [[4.0, 1.0], [1.0, 1.0]]
    rows = statistics(read_sums(tmp_path / "i.gguf").entries)
    assert (rows[0].unused, rows[0].total, rows[0].columns) == (1, 5.0, 2)
    other = RawMatrix({"blk.0.ffn_up_exps.weight": Sums(np.ones((1, 3)), np.ones(1))})
    with pytest.raises(FormatError, match="has 3 sums and 1 counts; expected 4 and 2"):
        added([(Path("a"), read_sums(tmp_path / "i.gguf")), (Path("b"), other)])


def test_statistics_of_one_column() -> None:
    entries = {
        f"blk.{layer}.attn_q.weight": Sums(np.array([[0.0, 0.0, 0.0, 16.0]]), np.array([4.0])) for layer in (0, 1)
    }
    first, second = statistics(entries)
    assert (first.total, first.entropy, first.active, first.above) == (4.0, 0.0, 0.25, 0.25)
    assert (first.similarity, second.similarity) == (None, 1.0)


def test_the_command_measures_combines_and_inspects(
    tmp_path: Path, text: Path, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, out = str(demo_models().base), tmp_path / "i.gguf"
    assert run_command(["imatrix", base, str(out), "--text", str(text), "--context", "16"]) == 0
    assert out.read_bytes() == measured.read_bytes()
    assert run_command(["imatrix", base, str(out), "--text", str(text)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run_command(["imatrix", str(out), str(tmp_path / "b.gguf"), "--add", str(measured)]) == 0
    assert run_command(["imatrix", str(out), str(tmp_path / "c.gguf")]) == 1
    assert "is an importance matrix; expected others to --add" in capsys.readouterr().err
    assert run_command(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "importance matrix" in shown
    assert "entropy" in shown
    assert (
        run_command(["quantize", base, str(tmp_path / "q.gguf"), "--to", "q4_0", "--imatrix", str(out), "--pure"]) == 0
    )


def test_quantize_calibrates_in_one_step(tmp_path: Path, text: Path) -> None:
    base = demo_models().base
    quantize(base, tmp_path / "a.gguf", "q4_0", calibrate=text)
    matrix = tmp_path / "a.imatrix.gguf"
    quantize(base, tmp_path / "b.gguf", "q4_0", imatrix=matrix)
    names = [name for name in lbrx.open(tmp_path / "a.gguf") if "ffn_up" in name]
    for name in names:
        first, second = (lbrx.open(tmp_path / f"{each}.gguf")[name].raw().numpy() for each in "ab")
        assert first.tobytes() == second.tobytes()
    before = matrix.stat().st_mtime_ns
    quantize(base, tmp_path / "a.gguf", "q5_0", calibrate=[text], overwrite=True)
    assert matrix.stat().st_mtime_ns == before  # measured only once
    with pytest.raises(UsageError, match="cannot be used together"):
        quantize(base, tmp_path / "c.gguf", "q5_0", calibrate=text, imatrix=matrix)


@pytest.mark.parametrize(("name", "content"), [("missing.txt", None), ("latin.txt", b"\xe9"), ("short.txt", b"")])
def test_texts_that_cannot_be_used(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LbrxError, match=r"cannot be read|not UTF-8|less than 2 tokens"):
        imatrix(demo_models().base, tmp_path / "i.gguf", tmp_path / name)
    (tmp_path / "i.gguf").write_bytes(b"")
    with pytest.raises(FileError, match="exists already"):
        imatrix(demo_models().base, tmp_path / "i.gguf", tmp_path / name)


@pytest.mark.parametrize("name", ["thesis.dat", "model.gguf"])
def test_only_importance_matrices_are_replaced(tmp_path: Path, text: Path, measured: Path, name: str) -> None:
    out = tmp_path / name
    if name == "model.gguf":
        lbrx.save(out, {"w": lbrx.full((2, 2), 1.0, "f32")}, {"general.architecture": "llama"})
    else:
        out.write_text("a thesis")
    before = out.read_bytes()
    for write in (
        lambda: imatrix(demo_models().base, out, text, context=16, overwrite=True),
        lambda: combine(out, [measured], overwrite=True),
    ):
        with pytest.raises(FileError, match="--overwrite replaces importance matrices only"):
            write()
    assert out.read_bytes() == before
    out.write_bytes(measured.read_bytes())
    combine(out, [measured, measured], overwrite=True)
    assert out.read_bytes() != measured.read_bytes()
