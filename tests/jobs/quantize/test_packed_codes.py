"""Codes in words of weights that are too small for scales in f16."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from lbrx.jobs.quantize import packed_codes
from lbrx.tensors.tensor import Tensor, tensor


def awq(values: Tensor) -> Mapping[str, Tensor]:
    grid = packed_codes.plain_grid(values, 4, 32, "f16", is_symmetric=False)
    return packed_codes.awq(packed_codes.rounded(values, 4, 32, grid))


def gptq(values: Tensor) -> Mapping[str, Tensor]:
    grid = packed_codes.plain_grid(values, 4, 32, "f16", is_symmetric=True)
    return packed_codes.gptq(packed_codes.rounded(values, 4, 32, grid), 4, is_second=False, has_index=False)


def compressed(values: Tensor) -> Mapping[str, Tensor]:
    grid = packed_codes.library_grid(values, 4, 32, "f16", is_symmetric=False)
    own = packed_codes.library_rounded(values, 4, 32, grid)
    return packed_codes.compressed(own, 4, has_zero_points=True, has_index=False)


ENCODERS: dict[str, Callable[[Tensor], Mapping[str, Tensor]]] = {"awq": awq, "gptq": gptq, "compressed": compressed}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_row_of_tiny_weights_is_a_row_of_zeros(name: str) -> None:
    """Words hold codes of several rows: a row without a scale must not damage the others."""
    tiny = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    tiny[0], tiny[0, ::2] = 1e-8, 0
    zeros = tiny.copy()
    zeros[0] = 0
    found, expected = (ENCODERS[name](tensor(values)) for values in (tiny, zeros))
    for part in expected:
        np.testing.assert_array_equal(found[part].numpy(), expected[part].numpy())
