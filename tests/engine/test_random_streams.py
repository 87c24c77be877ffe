"""Random tensors: functions of seed, stream and element index, whatever the view, schedule or shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.settings import using
from support.strategies import apply_views, assert_same, view_chains

MAKERS = [lbrx.uniform, lbrx.normal]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_view_of_a_stream_is_the_stream_seen_through_the_view(make: Callable[..., Any], data: st.DataObject) -> None:
    shape = (4, 5, 3)
    whole = make(shape, seed=11, stream="layer").numpy()
    chain = data.draw(view_chains(shape))
    assert_same(apply_views(make(shape, seed=11, stream="layer"), chain).numpy(), np.asarray(apply_views(whole, chain)))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_shape_does_not_change_the_stream(make: Callable[..., Any]) -> None:
    flat = make((24,), seed=1).numpy()
    assert_same(make((2, 3, 4), seed=1).numpy().reshape(-1), flat)
    assert_same(make((10,), seed=1).numpy(), flat[:10])
    assert_same(make((), seed=1).numpy(), flat[0])


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_threads_and_chunks_do_not_change_the_stream(make: Callable[..., Any]) -> None:
    count = 200_000
    want = make((count,), seed=5).numpy()
    for threads in (1, 2, 7):
        with using(threads=threads, chunk_elements=1):
            assert make((count,), seed=5).numpy().tobytes() == want.tobytes()
    assert_same(make((count,), seed=5)[70_000:70_010].numpy(), want[70_000:70_010])


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_indices_beyond_32_bits(make: Callable[..., Any]) -> None:
    whole = make((3, 1 << 32), seed=6)
    for row in (0, 1):
        flat = whole.reshape(3 << 32)
        middle = (row + 1) << 32
        around = flat[middle - 3000 : middle + 3000].numpy()
        assert_same(around[::3], flat[middle - 3000 : middle + 3000 : 3].numpy())
        assert_same(around[3000:], whole[row + 1, :3000].numpy())
    assert not np.array_equal(whole[0, :100].numpy(), whole[1, :100].numpy())


def test_seeds_and_stream_names_give_other_numbers() -> None:
    streams = [("", 0), ("", 1), ("a", 0), ("b", 0)]
    found = {lbrx.uniform((8,), seed, name).numpy().tobytes() for name, seed in streams}
    assert len(found) == len(streams)
    assert_same(lbrx.uniform((8,), 0, "a").numpy(), lbrx.uniform((8,), 0, "a").numpy())


def test_distributions() -> None:
    uniform, normal = lbrx.uniform((100_000,), seed=2), lbrx.normal((100_000,), seed=2)
    low, high, mean, centre, length = lbrx.evaluate(
        uniform.min(), uniform.max(), uniform.mean(), normal.mean(), normal.norm()
    )
    assert 0 <= low < 0.001 < 0.999 < high < 1
    assert mean == pytest.approx(0.5, abs=0.005)
    assert centre == pytest.approx(0, abs=0.015)
    assert length**2 / 100_000 == pytest.approx(1, abs=0.02)


def test_a_stream_is_fused_with_what_uses_it() -> None:
    array = np.ones((3, 4), np.float32)
    noise = lbrx.uniform((3, 4), seed=3)
    dropped = lbrx.where(noise < 0.5, 0, lbrx.tensor(array))
    assert_same(dropped.numpy(), np.where(noise.numpy() < 0.5, np.float32(0), array))
