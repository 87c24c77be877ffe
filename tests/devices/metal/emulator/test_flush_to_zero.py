"""Subnormal numbers: arithmetic of f32 flushes them if the emulator is told to, bits and f16 never change."""

from __future__ import annotations

import numpy as np
import pytest

import lbrx
from lbrx.devices.metal.driver.errors import KernelFault
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from support.metal_passes import check
from support.metal_shaders import PREFIX, needs_clang, run

pytestmark = needs_clang
FLUSHING = EmulatorSettings(flush_to_zero=True)
SUBNORMAL = np.array([1e-40, -1e-40, 1.4e-45, -1.4e-45, 1.1754942e-38], np.float32)
KERNEL = (
    PREFIX
    + """
kernel void k(device const float* x, device float* out, device half* halves, uint i [[thread_position_in_grid]]) {
  out[6 * i] = x[i] + 0.0f; out[6 * i + 1] = x[i] * 0.5f; out[6 * i + 2] = x[i] > 0.0f || x[i] < 0.0f;
  out[6 * i + 3] = as_type<float>(as_type<uint>(x[i]));
  out[6 * i + 4] = (as_type<uint>(x[i]) & 0x7fffffffu) != 0u; out[6 * i + 5] = 0x1p-120f * 0x1p-20f * (1.0f + x[i]);
  halves[i] = halves[i] * half(0.5f);
}
"""
)


def outcome(settings: EmulatorSettings) -> tuple[np.ndarray, np.ndarray]:
    out, halves = np.full((5, 6), np.nan, np.float32), np.full(5, 2.0**-20, np.float16)
    run(KERNEL, "k", {0: SUBNORMAL, 1: out, 2: halves}, (1,), (5,), settings=settings)
    return out, halves


def test_arithmetic_flushes_operands_and_results() -> None:
    plain, _ = outcome(EmulatorSettings())
    flushed, halves = outcome(FLUSHING)
    assert plain[:, 0].tolist() == SUBNORMAL.tolist()
    assert plain[:, 1].tolist() == (SUBNORMAL * np.float32(0.5)).tolist()
    assert plain[:, 2].all()
    assert plain[0, 5] == np.float32(2.0**-140)
    assert not flushed[:, :3].any()
    assert np.signbit(flushed[:, 1]).tolist() == np.signbit(SUBNORMAL).tolist()
    assert flushed[0, 5] == 0
    assert flushed[:, 3].tolist() == SUBNORMAL.tolist()
    assert flushed[:, 4].all()  # the compiler must not turn a comparison of bits into one of numbers
    assert halves.tolist() == [2.0**-21] * 5


def test_python_does_not_flush_after_a_kernel_even_if_it_fails() -> None:
    outcome(FLUSHING)
    assert (SUBNORMAL * np.float32(1)).tolist() == SUBNORMAL.tolist()
    source = PREFIX + "kernel void k(device float* x) { x[0] = x[1000]; }"
    with pytest.raises(KernelFault):
        run(source, "k", {0: SUBNORMAL.copy()}, (1,), (1,), settings=FLUSHING)
    assert (SUBNORMAL * np.float32(1)).tolist() == SUBNORMAL.tolist()


def test_passes_that_are_promised_to_have_the_bits_of_the_cpu_have_them() -> None:
    """All but `+ - * /`: what looks at subnormal numbers, and what results in them."""
    bits = np.concatenate([np.arange(0, 1 << 25, 50021), np.arange(1, 40)]).astype(np.uint32)
    numbers = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    x, y = lbrx.tensor(numbers), lbrx.tensor(numbers[::-1].copy())
    z = lbrx.tensor(np.linspace(-104.5, -86, 3001).astype(np.float32))
    check(lambda: (x.minimum(y), x.maximum(y), x < y, x <= y, x == y, x != y, x.min(), x.max(), x.argmax()), FLUSHING)
    check(lambda: (-x, abs(x), x.sign(), x.floor(), x.round(), x.sqrt(), x.log(), x.exp(), x.acos(), z.exp()), FLUSHING)
    check(
        lambda: (x.tanh(), x.erf(), x.to("bool"), x.to("f16"), x.to("bf16"), x.to("i32"), x.sum(), x.dot(y)), FLUSHING
    )
    check(lambda: (x.clip(-1e-39, 1e-39), lbrx.where(x, y, 3.0), x.kth_largest(100), x.to("f8_e5m2")), FLUSHING)
