"""HTML for tensors and tables in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lbrx.tensors.coded import Decode, Encode
from lbrx.tensors.expr import Coded, Expr, Source

if TYPE_CHECKING:
    from lbrx.tensors.tensor import Tensor

SAMPLED_ELEMENTS = 1 << 16  # the histogram shows at most this many elements from the beginning of a stored tensor
BARS = 32
MAX_ROWS = 500


def source_text(expr: Expr) -> str:
    """Describe where the values of an expression are.

    >>> import lbrx
    >>> source_text(lbrx.tensor([1.0]).expr), source_text((lbrx.tensor([1.0]) + 1).expr)
    ('in memory', 'not computed yet')
    """
    if isinstance(expr, Decode) and expr.args:
        return source_text(expr.args[0])
    if isinstance(expr, Encode) or not isinstance(expr, Source | Coded):
        return "not computed yet"
    path = getattr(getattr(getattr(expr, "storage", None), "file", None), "path", None)
    return "in memory" if path is None else f"in {getattr(path, 'name', path)}"


def tensor_html(tensor: Tensor) -> str:
    """Describe a tensor in one line. A stored tensor also gets a histogram of its first values.

    >>> import lbrx
    >>> "<svg" in tensor_html(lbrx.tensor([1.0, 2.0])), "<svg" in tensor_html(lbrx.tensor([1.0]) + 1)
    (True, False)
    """
    line = f"<code>{escape(repr(tensor))}</code>"
    if source_text(tensor.expr) == "not computed yet" or not tensor.size:
        return line
    rows = max(SAMPLED_ELEMENTS // max(tensor.size // max(len(tensor), 1), 1), 1) if tensor.shape else 0
    sample = (tensor[:rows] if tensor.shape else tensor).to("f64").numpy().reshape(-1)[:SAMPLED_ELEMENTS]
    values = sample[np.isfinite(sample)]
    return f"{line}<br>{_histogram(values)}" if values.size else line


def _histogram(values: npt.NDArray[np.float64]) -> str:
    counts, edges = np.histogram(values, BARS)
    heights = 40 * counts / max(int(counts.max()), 1)
    bars = "".join(
        f'<rect x="{5 * number}" y="{40 - height:.1f}" width="4" height="{height:.1f}" fill="currentColor"/>'
        for number, height in enumerate(heights)
    )
    title = f"<title>{values.size:,} values from {edges[0]:.4g} to {edges[-1]:.4g}</title>"
    picture = f'<svg width="{5 * BARS}" height="40" role="img">{title}{bars}</svg>'
    return f"{picture}<br><small>{edges[0]:.4g} to {edges[-1]:.4g}, mean {values.mean():.4g}</small>"


def table_html(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table of at most 500 rows.

    >>> table_html("a", ["b"], [["<c>"]])
    '<table><caption>a</caption><tr><th>b</th></tr><tr><td>&lt;c&gt;</td></tr></table>'
    """
    listed = list(rows)
    lines = [_row("th", head), *(_row("td", row) for row in listed[:MAX_ROWS])]
    if len(listed) > MAX_ROWS:
        lines.append(_row("td", (f"{len(listed) - MAX_ROWS:,} more", *[""] * (len(head) - 1))))
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
