"""Streaming passes against the machine's copy bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

import lbrx
from benchmarks.harness import CopyLimit, Figure
from lbrx.engine.destination import ArrayDestination
from lbrx.engine.evaluate import evaluate_stores
from lbrx.tensors.dtype import dtype

ELEMENTS = 256 << 20
TARGET = 0.8


def run() -> Iterator[Figure]:
    limit = CopyLimit()
    for kind in ("bf16", "f16"):
        x, y = (lbrx.normal((ELEMENTS,), seed).to(kind).realize() for seed in (1, 2))
        out = ArrayDestination(dtype(kind), ELEMENTS)
        blend = (x * 0.3 + y * 0.7).to(kind)
        yield limit.share(
            "streaming", f"a*x+b*y {kind}", lambda e=blend, o=out: evaluate_stores([(e.expr, o)]), 6 * ELEMENTS, TARGET
        )
        for name, total in (("sum", x.sum()), ("norm", x.norm())):
            yield limit.share("streaming", f"{name} {kind}", lambda t=total: lbrx.evaluate(t), 2 * ELEMENTS, TARGET)
        yield limit.share("streaming", f"dot {kind}", lambda t=x.dot(y): lbrx.evaluate(t), 4 * ELEMENTS, TARGET)
    wide = lbrx.normal((ELEMENTS,), 3).realize()
    narrow = wide.to("bf16").realize()
    for name, expr in (("f32 to bf16", wide.to("bf16")), ("bf16 to f32", narrow.to("f32"))):
        out = ArrayDestination(expr.dtype, ELEMENTS)
        yield limit.share(
            "streaming", f"cast {name}", lambda e=expr, o=out: evaluate_stores([(e.expr, o)]), 6 * ELEMENTS, TARGET
        )
    yield limit.share("streaming", "sum f32", lambda t=wide.sum(): lbrx.evaluate(t), 4 * ELEMENTS, TARGET)
