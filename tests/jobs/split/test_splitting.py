"""Shards of a GGUF model by size and by count, joined again to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import lbrx
from lbrx.cli.main import run as run_command
from lbrx.errors import UsageError
from lbrx.jobs.hash.hashing import hash_model
from lbrx.jobs.split.split import join, split

METADATA = {"general.architecture": "llama", "llama.block_count": 4, "general.name": "a"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {f"blk.{number}.w.weight": lbrx.normal((4, 32), seed=number) for number in range(4)}
    tensors["token_embd.weight"] = lbrx.normal((8, 32), seed=9).quantize("q8_0")
    lbrx.save(tmp_path / "a.gguf", tensors, METADATA)
    return tmp_path / "a.gguf"


@pytest.mark.parametrize(
    ("options", "sizes"), [({"max_tensors": 2}, [2, 2, 1]), ({"max_tensors": 9}, [5]), ({"max_size": 1300}, [2, 3])]
)
def test_shards_join_to_the_same_file(model: Path, options: dict[str, int], sizes: list[int]) -> None:
    result = split(model, model.with_name("b.gguf"), **options)  # type: ignore[arg-type]
    shards = sorted(model.parent.glob("b*.gguf"))
    assert result.out == shards[0]
    assert [len(header.entries) for header in lbrx.open(result.out).files] == sizes
    joined = join(shards[0], model.with_name("c.gguf")).out
    assert joined.read_bytes() == model.read_bytes()


def test_what_cannot_be_split(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected either a size"):
        split(model, tmp_path / "b.gguf")
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.full((2,), 1.0, "f32")})
    with pytest.raises(UsageError, match="is not a GGUF model"):
        split(tmp_path / "a.safetensors", tmp_path / "b.gguf", max_tensors=1)


def test_hashes_are_those_of_the_bytes(model: Path, tmp_path: Path) -> None:
    import hashlib

    whole = hash_model(model)
    for name, digest in whole.tensors.items():
        assert digest == hashlib.sha256(lbrx.open(model)[name].raw().numpy().tobytes()).hexdigest()
    assert list(whole.layers) == [-1, 0, 1, 2, 3]
    shards = hash_model(split(model, tmp_path / "b.gguf", max_tensors=2).out)
    assert (shards.tensors, shards.layers, shards.total) == (whole.tensors, whole.layers, whole.total)
    changed = {name: lbrx.open(model)[name] for name in whole.tensors}
    changed["blk.2.w.weight"] = changed["blk.2.w.weight"] * 2
    lbrx.save(tmp_path / "d.gguf", changed, METADATA)
    other = hash_model(tmp_path / "d.gguf")
    assert [layer for layer in whole.layers if whole.layers[layer] != other.layers[layer]] == [2]
    assert whole.total != other.total


def test_the_commands(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "b.gguf"
    assert run_command(["split", str(model), str(out), "--max-tensors", "3", "--dry-run"]) == 0
    assert run_command(["split", str(model), str(out), "--max-tensors", "3"]) == 0
    assert "b-00001-of-00002.gguf" in capsys.readouterr().out
    assert run_command(["join", str(tmp_path / "b-00001-of-00002.gguf"), str(tmp_path / "c.gguf")]) == 0
    capsys.readouterr()
    for path in (model, tmp_path / "c.gguf"):
        assert run_command(["hash", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == [line.split()[0] for line in lines[6:]]
    assert run_command(["hash", str(model), "--layers"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert run_command(["hash", str(model), "--json"]) == 0
