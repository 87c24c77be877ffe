"""Element-wise work, reductions and selection against NumPy (with ml_dtypes for bf16)."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

import lbrx
from benchmarks.harness import Figure, faster, seconds, side_by_side

MANY = 16 << 20
MEBI = 1 << 20


def run() -> Iterator[Figure]:
    yield from _half_precision()
    yield from _fused()
    yield from _never_slower()
    yield from _selection()
    yield _small_evaluation()


def _half_precision() -> Iterator[Figure]:
    random = np.random.default_rng(0)
    for kind, numpy_type in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        a, b = (random.standard_normal(MANY, np.float32).astype(numpy_type) for _ in range(2))
        x, y = lbrx.tensor(a), lbrx.tensor(b)
        yield faster("numpy", f"{kind} x + y", lambda: (x + y).to(kind).numpy(), lambda: a + b, 10)
        yield faster("numpy", f"{kind} x * y", lambda: (x * y).to(kind).numpy(), lambda: a * b, 10)
        yield faster("numpy", f"{kind} to f32", lambda: x.to("f32").numpy(), lambda: a.astype(np.float32), 1)


def _fused() -> Iterator[Figure]:
    """Four and more operations in one expression."""
    random = np.random.default_rng(1)
    for kind, numpy_type in (
        ("f32", np.float32),
        ("f64", np.float64),
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("i32", np.int32),
        ("i8", np.int8),
    ):
        a, b, c = ((random.standard_normal(MANY) * 20).astype(numpy_type) for _ in range(3))
        x, y, z = map(lbrx.tensor, (a, b, c))
        if kind in ("i32", "i8"):
            two = numpy_type(2)
            ours = lambda: lbrx.where(x > y, x * 2 + y - z, abs(z) * y + x).numpy()
            peer = lambda: np.where(a > b, a * two + b - c, np.abs(c) * b + a)
        else:
            half, some = numpy_type(0.5), numpy_type(0.25)
            ours = lambda: lbrx.where(abs(x - y) > 0.5, (x - y) * 0.25 + z, z * x - y).to(kind).numpy()
            peer = lambda: np.where(np.abs(a - b) > half, (a - b) * some + c, c * a - b)
        yield faster("numpy", f"fused {kind} (6 operations)", ours, peer, 10)


def _never_slower() -> Iterator[Figure]:
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(MEBI, np.float32) for _ in range(2))
    x, y = lbrx.tensor(a), lbrx.tensor(b)
    i, j = (random.integers(-99, 99, MEBI, dtype=np.int32) for _ in range(2))
    p, q = lbrx.tensor(i), lbrx.tensor(j)
    pairs = (
        ("x + y", lambda: (x + y).numpy(), lambda: a + b),
        ("x * 2 + y", lambda: (x * 2 + y).numpy(), lambda: a * np.float32(2) + b),
        ("sum", lambda: lbrx.evaluate(x.sum()), lambda: a.sum()),
        ("max", lambda: lbrx.evaluate(x.max()), lambda: a.max()),
        ("argmax", lambda: lbrx.evaluate(x.argmax()), lambda: a.argmax()),
        ("norm", lambda: lbrx.evaluate(x.norm()), lambda: np.linalg.norm(a)),
        ("dot", lambda: lbrx.evaluate(x.dot(y)), lambda: np.dot(a, b)),
        ("exp", lambda: x.exp().numpy(), lambda: np.exp(a)),
        ("log", lambda: abs(x).log().numpy(), lambda: np.log(np.abs(a))),
        ("sin", lambda: x.sin().numpy(), lambda: np.sin(a)),
        ("cos", lambda: x.cos().numpy(), lambda: np.cos(a)),
        ("sqrt", lambda: abs(x).sqrt().numpy(), lambda: np.sqrt(np.abs(a))),
        ("x < y", lambda: (x < y).numpy(), lambda: a < b),
        ("i32 x + y", lambda: (p + q).numpy(), lambda: i + j),
        ("i32 sum", lambda: lbrx.evaluate(p.sum()), lambda: i.sum()),
        ("row sum", lambda: x.reshape(1024, 1024).sum(axis=-1).numpy(), lambda: a.reshape(1024, 1024).sum(-1)),
        (
            "transpose",
            lambda: (x.reshape(1024, 1024).T + 1).numpy(),
            lambda: np.add(a.reshape(1024, 1024).T, np.float32(1), order="C"),
        ),
    )
    for name, ours, peer in pairs:
        yield faster("numpy", f"1 Mi f32 {name}" if not name.startswith("i32") else f"1 Mi {name}", ours, peer, 1, 25)


def _selection() -> Iterator[Figure]:
    count = 64 << 20
    x = lbrx.normal((count,), 4).realize()
    a = x.numpy()
    place = count // 3
    search = lambda: lbrx.evaluate(x.kth_largest(place))
    own, peer = side_by_side(search, lambda: np.partition(a, count - place), 3)
    read, again = side_by_side(lambda: lbrx.evaluate(x.sum()), search, 15)
    own = min(own, again)
    best = max(peer / own / 20, 3 * read / own)
    detail = f"{peer / own:.1f} times numpy.partition, {own / read:.2f} passes of reading"
    yield Figure("numpy", "kth_largest of 64 Mi f32 (20 times, or 3 passes)", best, 1, detail)


def _small_evaluation() -> Figure:
    x = lbrx.tensor(np.arange(16, dtype=np.float32))
    repeats = 200

    def small() -> None:
        for _ in range(repeats):
            (x * 2 + x).numpy()

    small()
    own = min(seconds(small) for _ in range(20)) / repeats
    return Figure("numpy", "100 us / small evaluation", 1e-4 / own, 1, f"{own * 1e6:.0f} us")
