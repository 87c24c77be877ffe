"""Tensors without axes are converted and stored like those with some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx


@pytest.mark.parametrize("dtype", ["i2", "i4", "i8", "f16", "f32", "bool"])
@pytest.mark.parametrize("value", [-9, -4, -1, 0, 1, 5, 9])
def test_a_sum_has_the_value_of_an_element(dtype: str, value: int, tmp_path: Path) -> None:
    elements = lbrx.tensor(np.array([value, value], np.int8)).to(dtype)
    single = lbrx.tensor(np.array([value], np.int8)).sum().to(dtype)
    assert single.shape == ()
    assert single.numpy() == elements.numpy()[0]
    lbrx.save(tmp_path / "a.safetensors", {"single": single})
    stored = lbrx.open(tmp_path / "a.safetensors")["single"]
    assert (stored.dtype.name, stored.shape) == (dtype, ())
    assert stored.numpy() == elements.numpy()[0]
