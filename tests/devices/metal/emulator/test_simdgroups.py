"""Operations over the lanes of a simdgroup, and 8x8 matrices spread over them."""

from __future__ import annotations

import numpy as np
import pytest

from lbrx.devices.metal.emulator.launch import EmulatorSettings
from support.metal_shaders import ORDERS, PREFIX, Order, needs_clang, run

pytestmark = needs_clang
LANES = np.arange(32)
# the expression over `v` (the lane's value), and what it gives over all lanes of values `v`
EXPRESSIONS = {
    "simd_sum(v)": lambda v: np.full(32, v.sum()),
    "simd_product(v % 3 + 1)": lambda v: np.full(32, np.prod(v % 3 + 1, dtype=np.int32)),
    "simd_max(v)": lambda v: np.full(32, v.max()),
    "simd_min(v)": lambda v: np.full(32, v.min()),
    "simd_and(v | 3)": lambda v: np.full(32, np.bitwise_and.reduce(v | 3)),
    "simd_or(v)": lambda v: np.full(32, np.bitwise_or.reduce(v)),
    "simd_xor(v)": lambda v: np.full(32, np.bitwise_xor.reduce(v)),
    "simd_shuffle(v, 31 - lane)": lambda v: v[::-1],
    "simd_shuffle_xor(v, 5)": lambda v: v[LANES ^ 5],
    "simd_broadcast(v, 7)": lambda v: np.full(32, v[7]),
    "simd_broadcast_first(v)": lambda v: np.full(32, v[0]),
    "simd_shuffle_rotate_down(v, 3)": lambda v: np.roll(v, -3),
    "simd_shuffle_rotate_up(v, 3)": lambda v: np.roll(v, 3),
    "simd_shuffle_and_fill_down(v, -v, 4)": lambda v: np.concatenate([v[4:], -v[:4]]),
    "simd_shuffle_and_fill_up(v, -v, 4)": lambda v: np.concatenate([-v[28:], v[:28]]),
    "simd_shuffle_down(v, 3) * int(lane + 3 < 32)": lambda v: np.append(v[3:], [0, 0, 0]),
    "simd_prefix_inclusive_sum(v)": np.cumsum,
    "simd_prefix_exclusive_sum(v)": lambda v: np.cumsum(v) - v,
    "int(simd_any(v > 60))": lambda v: np.full(32, (v > 60).any()),
    "int(simd_all(v > 60))": lambda v: np.full(32, (v > 60).all()),
    "int((ulong)simd_ballot(v > 30) & 0x7fffffff)": lambda v: np.full(32, sum(1 << k for k in range(31) if v[k] > 30)),
    "int(simd_is_first())": lambda v: v[LANES] * 0 + (LANES == 0),
    "quad_sum(v)": lambda v: np.repeat(v.reshape(8, 4).sum(1), 4),
    "quad_broadcast(v, 2)": lambda v: np.repeat(v.reshape(8, 4)[:, 2], 4),
    "quad_shuffle_xor(v, 1)": lambda v: v[LANES ^ 1],
    "int(simd_sum(float(v)))": lambda v: np.full(32, v.sum()),
    "int2(simd_max(int2(v, -v))).y": lambda v: np.full(32, (-v).max()),
    "(lane < 16 ? simd_sum(v) : simd_sum(v) * 1000)": lambda v: np.repeat([v[:16].sum(), v[16:].sum() * 1000], 16),
}
KERNEL = PREFIX + (
    "kernel void all_operations(device const int* x, device int* out, uint i [[thread_position_in_grid]], "
    "uint lane [[thread_index_in_simdgroup]], uint n [[threads_per_grid]]) { int v = x[i];\n"
    + "".join(f"  out[{k} * n + i] = {expression};\n" for k, expression in enumerate(EXPRESSIONS))
    + "}\n"
)


@pytest.mark.parametrize("order", ORDERS)
def test_simdgroup_operations(order: Order) -> None:
    x = np.random.default_rng(5).integers(1, 90, 64).astype(np.int32)
    out = np.full((len(EXPRESSIONS), 64), -1, np.int32)
    run(KERNEL, "all_operations", {0: x, 1: out}, (1,), (64,), settings=EmulatorSettings(order=order))
    for row, (expression, reference) in zip(out, EXPRESSIONS.items(), strict=True):
        expected = np.concatenate([reference(x[:32]), reference(x[32:])])
        np.testing.assert_array_equal(row, expected, err_msg=expression)


def test_lanes_that_are_not_there_do_not_take_part() -> None:
    source = PREFIX + ("kernel void k(device int* x, uint i [[thread_position_in_grid]]) { x[i] = simd_sum(x[i]); }")
    x = np.ones(45, np.int32)
    run(source, "k", {0: x}, (45,), (45,), grid_unit="threads")
    assert x.tolist() == [32] * 32 + [13] * 13


def test_lanes_in_a_branch_take_part_alone() -> None:
    source = PREFIX + (
        "kernel void k(device int* x, uint i [[thread_index_in_simdgroup]]) {"
        " if (i % 3 == 0) { x[i] = simd_sum(x[i]); } else if (simd_active_threads_mask().all()) { x[i] = 1; }"
        " else { x[i] = simd_max(x[i]); } }"
    )
    x = np.arange(32, dtype=np.int32)
    run(source, "k", {0: x}, (1,), (32,))
    assert x.tolist() == [sum(range(0, 32, 3)) if i % 3 == 0 else 31 for i in range(32)]


MATRICES = (
    PREFIX
    + """
template <typename T> kernel void multiply(device const T* a, device const T* b, device float* out,
    threadgroup float* scratch [[threadgroup(0)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<T, 8, 8> x, y, t;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.5f);
  for (int k = 0; k < 2; k++) {
    simdgroup_load(x, a + 8 * k, 16);
    simdgroup_load(y, b, 8, ulong2(0, 8 * k));
    simdgroup_multiply_accumulate(sum, x, y, sum);
  }
  simdgroup_store(sum, scratch, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 64; i += 32) out[i] = scratch[i];
  simdgroup_load(t, a, 16, ulong2(0), true);
  simdgroup_multiply(sum, t, y);
  simdgroup_store(sum, out + 64, 8, ulong2(0), true);
  simdgroup_matrix<T, 8, 8> unit(T(1));
  auto e = unit.thread_elements();
  out[128 + 2 * lane] = e[0]; out[129 + 2 * lane] = e[1];
}
template [[host_name("multiply_float")]] kernel void multiply<float>(device const float*, device const float*,
    device float*, threadgroup float*, uint);
template [[host_name("multiply_half")]] kernel void multiply<half>(device const half*, device const half*,
    device float*, threadgroup float*, uint);
template [[host_name("multiply_bfloat")]] kernel void multiply<bfloat>(device const bfloat*, device const bfloat*,
    device float*, threadgroup float*, uint);
"""
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["float", "half", "bfloat"])
def test_matrices_of_a_simdgroup(name: str, order: Order) -> None:
    import ml_dtypes

    dtype = {"float": np.float32, "half": np.float16, "bfloat": ml_dtypes.bfloat16}[name]
    generator = np.random.default_rng(6)
    a = generator.integers(-4, 5, (8, 16)).astype(dtype)
    b = generator.integers(-4, 5, (16, 8)).astype(dtype)
    out = np.full(192, np.nan, np.float32)
    settings = EmulatorSettings(order=order)
    run(MATRICES, f"multiply_{name}", {0: a, 1: b, 2: out}, (1,), (32,), threadgroup_bytes={0: 256}, settings=settings)
    exact = [each.astype(np.float32) for each in (a, b)]
    np.testing.assert_array_equal(out[:64].reshape(8, 8), exact[0] @ exact[1] + 0.5)
    np.testing.assert_array_equal(out[64:128].reshape(8, 8), (exact[0][:, :8].T @ exact[1][8:]).T)
    assert sorted(out[128:].tolist()) == [0] * 56 + [1] * 8
