"""Many vectors times codes whose scales and offsets are stored apart, as products of i16: see `gemm_i16`.

The vectors are coded and the bounds are those of `gemv_groups`. Only weights of MLX's mxfp8 are rounded besides: by at
most 1 / 2048 of the largest one of a block of 32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lbrx.devices.cpu.build.native import address, code_address, compiled
from lbrx.devices.cpu.build.team import run_together
from lbrx.devices.cpu.kernels.coded_names import coded_name
from lbrx.devices.cpu.ops.gemm_i16 import FORMS, TILE_ROWS, Form, in_coded_panels
from lbrx.devices.cpu.ops.gemv_groups import GroupWeight, group_weight
from lbrx.engine.arrays import Floats
from lbrx.settings import settings
from lbrx.tensors.expr import Expr

_ONLY_IN_WORDS = "mxfp8"  # its codes have more than 8 bits


def gemm_groups(x: Floats, expr: Expr, out: Floats, bits: int = 16) -> bool:
    """Returns False, and the result means nothing, if an activation is not finite or the weight has to be decoded.

    Vectors are coded in so many bits.
    """
    weight = group_weight(expr)
    if weight is None:
        return False
    form = FORMS[16 if weight.kernel == _ONLY_IN_WORDS else bits]
    return in_coded_panels(x, out, False, lambda numbers, part: _multiply(form, weight, numbers, part), form)


@cache
def _task(name: str) -> tuple[Any, int]:
    return compiled("gemm_groups", name, 4), code_address("gemm_groups", name, 4)


def _multiply(form: Form, weight: GroupWeight, numbers: list[int], out: Floats) -> None:
    rows, row_bytes = out.shape[1], numbers[0] * weight.bits // 8
    target = address(out), rows, weight.scaled * form.code_bytes // 4, TILE_ROWS * settings.threads
    job = np.array([weight.codes, *numbers, *target, *weight.scale_numbers], np.int64)
    kernel = coded_name(weight.kernel, 8 if form.code_bytes == 1 else 16)
    run_together(*_task(kernel), address(job), row_bytes, rows, TILE_ROWS, most=TILE_ROWS)
