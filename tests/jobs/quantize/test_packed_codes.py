"""Codes in words of weights that are too small for scales in f16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

from lbrx.jobs.quantize import packed_codes
from lbrx.tensors.tensor import Tensor, tensor

ENCODERS: dict[str, Callable[[Tensor], Mapping[str, Tensor]]] = {
    "awq": partial(packed_codes.awq, group_size=32, scale_type="f16"),
    "gptq": partial(packed_codes.gptq, bits=4, group_size=32, scale_type="f16", is_second=False, has_index=False),
    "compressed": partial(
        packed_codes.compressed, bits=4, group_size=32, scale_type="f16", has_zero_points=True, has_index=False
    ),
}


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
