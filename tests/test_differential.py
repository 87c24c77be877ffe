"""Headers are read as the libraries of the formats read them; docs/fuzzing.md explains what differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.differential import EXPLAINED, PEERS, changed_files, compare, disagreement, is_explained

import lbrx

DOCS = Path(__file__).parents[1] / "docs/fuzzing.md"


@pytest.mark.parametrize("format", PEERS)
def test_all_disagreements_are_explained(format: str) -> None:
    fared, unexplained = compare(format, seed=1, count=150)
    assert not unexplained
    assert not fared["lbrx"]
    assert fared["both"] > 30
    assert fared["neither"] > 30


def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = next(iter(changed_files("gguf", 1)))
    monkeypatch.setitem(PEERS, "gguf", lambda _: {"w": ("F32", (2,), 0, 8)})
    fared, text = disagreement("gguf", data, tmp_path / "a.gguf")
    assert (fared, is_explained("gguf", text)) == ("both", False)


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    text = DOCS.read_text()
    assert all(f"| {each.format} | {each.reason} |" in text for each in EXPLAINED)


def test_packed_types_are_one_of_the_differences(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    lbrx.save(path, {"w": lbrx.full((2, 4), 1.0, "f32").to("i4")})
    fared, text = disagreement("safetensors", path.read_bytes(), path)
    assert fared == "both"
    assert is_explained("safetensors", text)
