"""Reports show as tables in notebooks, with names from files escaped."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.tensors.display import MAX_ROWS, table_html

BASE, CODE = demo_models().base, demo_models().code


def cells(html: str) -> list[list[str]]:
    """The cells of a table, its heading first."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd]>(.*?)</t[hd]>", row)] for row in rows]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    path = tmp_path / "<b>.safetensors"
    lbrx.save(path, {"<script>": lbrx.tensor([[1.0, 2.0]], "f32"), "w": lbrx.tensor([1.0], "bf16")})
    return path


def test_inspect(hostile: Path) -> None:
    html = lbrx.inspect(hostile)._repr_html_()
    assert "<b>" not in html
    assert cells(html)[1:] == [["f32", "1", "2", "8 B"], ["bf16", "1", "1", "2 B"]]
    assert "3 parameters" in html


def test_compare_and_diff(hostile: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    lbrx.save(other, {"<script>": lbrx.tensor([[1.0, 1.0]], "f32"), "w": lbrx.tensor([1.0], "bf16")})
    compared, differing = lbrx.compare(hostile, other)._repr_html_(), lbrx.diff(hostile, other)._repr_html_()
    assert "<script>" not in compared + differing
    assert cells(compared)[1:] == [["<script>", "f32", "f32", "0.4472"], ["w", "bf16", "bf16", "0"]]
    assert [row[:2] for row in cells(differing)[1:]] == [["<script>", "0.4472"], ["w", "0"]]


def test_the_diff_of_models_has_a_row_per_layer() -> None:
    difference = lbrx.diff(BASE, CODE)
    rows = cells(difference._repr_html_())[1:]
    assert len(rows) == len(difference.layers()) + len(difference.outside_layers())
    assert float(rows[0][1]) == pytest.approx(next(iter(difference.layers().values())).relative_change, rel=1e-3)


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"<i>")
    html = lbrx.verify(path)._repr_html_()
    assert "broken, errors: 1" in html
    assert cells(html)[1][0] == "error"


def test_score(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("And the king said unto them, go.")
    (score,) = lbrx.score([BASE], text)
    (row,) = cells(score._repr_html_())[1:]
    assert row[0] == f"{score.tokens:,}"
    assert row[1].startswith(f"{score.perplexity:.4f} ±")


def test_long_tables_are_cut() -> None:
    rows = cells(table_html("a", ("b", "c"), [(1, 2)] * (MAX_ROWS + 1200)))
    assert len(rows) == MAX_ROWS + 2
    assert rows[-1] == ["1,200 more", ""]
