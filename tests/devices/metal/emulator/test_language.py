"""The shading language in the emulator: types, vectors, templates, constants, positions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.errors import MetalError, ShaderError
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from lbrx.devices.metal.generations import LANGUAGES
from support.metal_shaders import ORDERS, PREFIX, Order, needs_clang, run

pytestmark = needs_clang
VECTORS = (
    PREFIX
    + """
struct Pair { packed_float3 a; float b; };
kernel void vectors(device float* out, constant Pair* pairs, device const uchar4* bytes) {
  float4 v = float4(1, 2, 3, 4);
  out[0] = v.wzyx.x; out[1] = v.xy.y; v.zw = float2(7, 8); out[2] = v.z + v.w; v.xw += 1; out[3] = v.x * v.w;
  out[4] = dot(v, float4(1)); out[5] = v[1]; out[6] = sizeof(float3); out[7] = sizeof(Pair);
  out[8] = pairs[1].a.y; out[9] = pairs[1].b; out[10] = float3(pairs[1].a).z; out[11] = pairs[1].a.zx.y;
  int3 n = int3(v.xyz); out[12] = n.x + n.y + n.z; out[13] = any(v > 8.5f); out[14] = all(v > 0);
  out[15] = select(v, -v, v > 5).z; out[16] = as_type<int>(1.0f); out[17] = float4(bytes[0]).w;
  uint4 u = {1, 2}; out[18] = u.x + u.y + u.z + u.w; out[19] = (uint2(7, 9) >> 1).y; out[20] = v.rgba.g;
  float2x2 m = float2x2(float2(1, 2), float2(3, 4)); out[21] = (m * float2(1, 1)).x; out[22] = transpose(m)[0].y;
  half h = 2049; out[23] = h; bfloat b = bfloat(1.00390625f); out[24] = float(b); out[25] = as_type<ushort>(half(1));
  v = -v; v++; out[26] = v.x; out[27] = (v == v).x + metal::is_same_v<decltype(1.0), float>;
}
"""
)


def test_vectors_swizzles_and_layouts() -> None:
    out = np.full(28, np.nan, np.float32)
    pairs = np.arange(8, dtype=np.float32)
    run(VECTORS, "vectors", {0: out, 1: pairs, 2: np.array([1, 2, 3, 250], np.uint8)}, (1,), (1,))
    assert out.tolist() == [
        *(4, 2, 15, 18, 20, 2, 16, 16, 5, 7, 6, 4, 2 + 2 + 7, 1, 1, -7, 0x3F800000, 250, 3, 4, 2, 4, 3),
        *(2048, 1.0, 0x3C00, -1, 2),
    ]


HALVES = (
    PREFIX
    + """
template <typename T> kernel void sums(device const T* x, device T* out, uint i [[thread_position_in_grid]]) {
  T total = x[3 * i];
  total = total + x[3 * i + 1];
  out[2 * i] = total * x[3 * i + 2];
  out[2 * i + 1] = x[3 * i] * x[3 * i + 1] + x[3 * i + 2];
}
template [[host_name("sums_half")]] kernel void sums<half>(device const half*, device half*, uint);
template [[host_name("sums_bfloat")]] kernel void sums<bfloat>(device const bfloat*, device bfloat*, uint);
"""
)


@pytest.mark.parametrize(("name", "dtype"), [("sums_half", np.float16), ("sums_bfloat", ml_dtypes.bfloat16)])
def test_half_types_round_after_every_operation(name: str, dtype: type) -> None:
    x = np.random.default_rng(1).standard_normal((500, 3)).astype(dtype)
    out = np.full((500, 2), np.nan, dtype)
    run("#pragma METAL fp contract(off)\n" + HALVES, name, {0: x, 1: out}, (5,), (100,))
    a, b, c = x.T
    expected = np.stack([(a + b) * c, a * b + c], axis=1)
    np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))


def test_contraction_can_be_turned_off() -> None:
    body = "kernel void k(device float* x, uint i [[thread_position_in_grid]]) { x[i] = x[i] * x[i] - 1.0f; }"
    start = np.float32(1) + np.float32(2**-12)
    fused, plain = np.full(1, start), np.full(1, start)
    run(PREFIX + body, "k", {0: fused}, (1,), (1,))
    run(PREFIX + "#pragma METAL fp contract(off)\n" + body, "k", {0: plain}, (1,), (1,))
    assert plain[0] == start * start - np.float32(1)
    assert fused[0] == np.float32(np.float64(start) ** 2 - 1)


POSITIONS = (
    PREFIX
    + """
struct Seen { uint3 grid, group, in_group, per_group, groups, per_grid; uint index, lane, simdgroup, simdgroups; };
kernel void positions(device Seen* seen, uint3 grid [[thread_position_in_grid]],
    uint3 group [[threadgroup_position_in_grid]], uint3 in_group [[thread_position_in_threadgroup]],
    uint3 per_group [[threads_per_threadgroup]], uint3 groups [[threadgroups_per_grid]],
    uint3 per_grid [[threads_per_grid]], uint index [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint width [[threads_per_simdgroup]]) {
  uint where = (grid.z * per_grid.y + grid.y) * per_grid.x + grid.x;
  seen[where] = {grid, group, in_group, per_group, groups, per_grid, index, lane, simdgroup, simdgroups + width};
}
"""
)


@pytest.mark.parametrize("order", ORDERS)
def test_positions_of_threads_in_a_grid_that_is_cut_off(order: Order) -> None:
    width, height, group = 10, 5, (4, 3)
    seen = np.zeros((height, width, 28), np.uint32)
    settings = EmulatorSettings(order=order)
    run(POSITIONS, "positions", {0: seen}, (width, height), group, settings=settings, grid_unit="threads")
    for y in range(height):
        for x in range(width):
            vectors, scalars = seen[y, x, :24].reshape(6, 4)[:, :3], seen[y, x, 24:]
            in_group = (x % 4, y % 3)
            size = (min(4, width - x // 4 * 4), min(3, height - y // 3 * 3))
            index = in_group[1] * size[0] + in_group[0]
            assert vectors.tolist() == [
                [x, y, 0],
                [x // 4, y // 3, 0],
                [*in_group, 0],
                [*size, 1],
                [3, 2, 1],
                [width, height, 1],
            ]
            assert scalars.tolist() == [index, index, 0, 1 + 32]


CONSTANTS = (
    PREFIX
    + """
constant int width [[function_constant(0)]];
constant bool scaled [[function_constant(1)]];
constant float factor [[function_constant(7)]];
constant int total = width * 2;
constant float table[3] = {1, 2, 3};
kernel void k(device float* out [[buffer(0)]], device const float* scale [[buffer(1), function_constant(scaled)]]) {
  out[0] = total + table[1];
  out[1] = scaled ? scale[0] : -1;
  out[2] = is_function_constant_defined(factor) ? factor : 0;
}
"""
)


def test_function_constants_choose_values_and_buffers() -> None:
    out, scale = np.zeros(3, np.float32), np.full(1, 5, np.float32)
    run(CONSTANTS, "k", {0: out}, (1,), (1,), constants={"width": 4, "scaled": False})
    assert out.tolist() == [10, -1, 0]
    run(CONSTANTS, "k", {0: out, 1: scale}, (1,), (1,), constants={"width": 6, "scaled": True, "factor": 0.5})
    assert out.tolist() == [14, 5, 0.5]
    run(CONSTANTS, "k", {0: out}, (1,), (1,), constants={"width": 1, "scaled": False})
    assert out.tolist() == [4, -1, 0]


DERIVED_CONSTANTS = (
    PREFIX
    + """
constant bool has_scale [[function_constant(0)]];
constant bool has_bias [[function_constant(1)]];
constant int width [[function_constant(2)]];
constant bool both = has_scale && has_bias;
constant bool wide = is_function_constant_defined(width) ? width > 4 : false;
constant bool neither = !(both || wide);
namespace parts {
constant bool narrow = !wide;
template <typename T>
kernel void k(device T* out [[buffer(0)]], device const T* scale [[buffer(1), function_constant(both)]],
              device const T* table [[buffer(2), function_constant(wide)]],
              device const T* rest [[buffer(3), function_constant(neither)]],
              threadgroup T* room [[threadgroup(0), function_constant(wide)]],
              device const T* few [[buffer(4), function_constant(narrow)]]) {
  out[0] = both ? scale[0] : T(-1);
  if (wide) room[0] = table[0];
  out[1] = wide ? room[0] : T(-2);
  out[2] = neither ? rest[0] : T(-3);
  out[3] = narrow ? few[0] : T(-4);
}
template [[host_name("k_float")]] kernel void k<float>(device float*, device const float*, device const float*,
                                                       device const float*, threadgroup float*, device const float*);
}
"""
)


@pytest.mark.parametrize(
    ("constants", "bound", "expected"),
    [
        ({"has_scale": True, "has_bias": False}, (3, 4), [-1, -2, 30, 40]),
        ({"has_scale": True, "has_bias": True}, (1, 4), [10, -2, -3, 40]),
        ({"has_scale": False, "has_bias": True, "width": 4}, (3, 4), [-1, -2, 30, 40]),
        ({"has_scale": True, "has_bias": True, "width": 5}, (1, 2), [10, 20, -3, -4]),
    ],
)
def test_constants_made_of_function_constants_choose_buffers(
    constants: dict[str, int], bound: tuple[int, ...], expected: list[int]
) -> None:
    out = np.zeros(4, np.float32)
    arrays = {index: np.full(1, 10 * index, np.float32) for index in bound}
    memory = {0: 16} if 2 in bound else {}
    run(DERIVED_CONSTANTS, "k_float", {0: out, **arrays}, (1,), (1,), constants=constants, threadgroup_bytes=memory)
    assert out.tolist() == expected
    missing = {index: array for index, array in arrays.items() if index != bound[0]}
    with pytest.raises(MetalError, match=rf"kernel 'k_float': access to buffer {bound[0]} .*, which is not bound"):
        run(
            DERIVED_CONSTANTS, "k_float", {0: out, **missing}, (1,), (1,), constants=constants, threadgroup_bytes=memory
        )


def test_defines_are_seen_by_the_preprocessor() -> None:
    out = np.zeros(1, np.float32)
    source = PREFIX + "kernel void k(device float* out) { out[0] = WIDTH + __METAL_VERSION__ / 1000; }"
    run(source, "k", {0: out}, (1,), (1,), options=CompileOptions(defines=(("WIDTH", "3"),)))
    assert out[0] == 3


CLASSES = (
    PREFIX
    + """
template <typename T, int N> struct Tile {
  T values[N];
  void fill(T v) thread { for (int i = 0; i < N; i++) values[i] = v; }
  T sum() const thread { T s = 0; for (int i = 0; i < N; i++) s += values[i]; return s; }
};
struct Add { template <typename T> static T apply(T a, T b) { return a + b; } };
template <typename Op, typename T> T reduce(const device T* x, uint n) {
  T r = x[0];
  for (uint i = 1; i < n; i++) r = Op::apply(r, x[i]);
  return r;
}
template <typename T> METAL_FUNC T pick(bool c, device T* a, thread T& b) { return c ? a[0] : b; }
kernel void k(device float* x, device float* out) {
  Tile<float, 4> tile; tile.fill(2); out[0] = tile.sum();
  out[1] = reduce<Add>(x, 4);
  float local_value = 9; out[2] = pick(true, x, local_value) + pick(false, x, local_value);
  auto square = [](float v) { return v * v; }; out[3] = square(3);
  if constexpr (sizeof(half) == 2) out[4] = 1;
  float4 v = x[0] > 0 ? *(device float4*)x : float4(0); out[5] = v.w;
}
"""
)


RECURSION = (
    PREFIX
    + """
float odd(float v);
float even(float v) { return v < 1 ? 1 : odd(v - 1); }
float odd(float v) { return v < 1 ? 0 : even(v - 1); }
int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }
kernel void k(device float* x) {
  float offset = 10;
  auto shifted = [&](int n) { return offset + factorial(n); };
  x[0] = shifted(5); x[1] = even(7); x[2] = odd(7); x[3] = pow(2, x[0] - 123.0f);
}
"""
)


def test_functions_can_call_themselves_and_lambdas_can_capture() -> None:
    x = np.zeros(4, np.float32)
    run(RECURSION, "k", {0: x}, (1,), (1,))
    assert x.tolist() == [130, 0, 1, 128]


def test_bfloat_exists_from_version_3_1_of_the_language_on() -> None:
    source = PREFIX + "kernel void k(device float* x) { bfloat b = bfloat(x[0]); x[0] = float(b); }"
    with pytest.raises(ShaderError, match="unknown type name 'bfloat' before version 3"):
        EmulatedDriver(language=(3, 0)).compile(source, CompileOptions())
    assert EmulatedDriver(language=(3, 1)).compile(source, CompileOptions()).function_names == ("k",)
    guarded = PREFIX + (
        "#if __METAL_VERSION__ >= 310\ntypedef bfloat number;\n#else\ntypedef half number;\n#endif\n"
        "kernel void k(device number* x) { x[0] = number(1.0f); }"
    )
    for language in LANGUAGES.values():
        assert EmulatedDriver(language=language).compile(guarded, CompileOptions()).function_names == ("k",)


def test_classes_templates_and_address_spaces() -> None:
    out = np.zeros(6, np.float32)
    run(CLASSES, "k", {0: np.array([1, 2, 3, 4], np.float32), 1: out}, (1,), (1,))
    assert out.tolist() == [8, 10, 10, 9, 1, 4]


def test_threadgroup_memory_of_arguments_and_variables() -> None:
    source = PREFIX + (
        "kernel void rotate(device float* x, threadgroup float* a [[threadgroup(0)]], "
        "threadgroup float2* b [[threadgroup(1)]], uint i [[thread_index_in_threadgroup]], "
        "uint n [[threads_per_threadgroup]], uint g [[threadgroup_position_in_grid]]) {"
        " threadgroup float c[64], total; a[i] = x[g * n + i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        " b[i] = float2(a[(i + 1) % n], a[(i + 2) % n]); threadgroup_barrier(mem_flags::mem_threadgroup);"
        " c[i] = b[(i + 1) % n].y; if (i == 0) { total = 0; for (uint k = 0; k < n; k++) total += a[k]; }"
        " threadgroup_barrier(mem_flags::mem_threadgroup); x[g * n + i] = c[(i + 1) % n] + total; }"
    )
    x = np.random.default_rng(2).integers(0, 100, (3, 40)).astype(np.float32)
    expected = np.roll(x, -4, axis=1) + x.sum(1, keepdims=True)
    for order in ORDERS:
        found = x.copy()
        settings = EmulatorSettings(order=order, find_races=True)
        run(source, "rotate", {0: found}, (3,), (40,), threadgroup_bytes={0: 160, 1: 320}, settings=settings)
        np.testing.assert_array_equal(found, expected)


def test_atomics_count_across_threadgroups() -> None:
    source = PREFIX + (
        "kernel void count(device const uint* x, device atomic_uint* counts, device atomic_float* total, "
        "device atomic_int* most, uint i [[thread_position_in_grid]]) {"
        " atomic_fetch_add_explicit(&counts[x[i] % 7], 1u, memory_order_relaxed);"
        " atomic_fetch_add_explicit(total, 0.5f, memory_order_relaxed);"
        " atomic_fetch_max_explicit(most, int(x[i]), memory_order_relaxed);"
        " uint e = 0; atomic_compare_exchange_weak_explicit(&counts[7], &e, i + 1, memory_order_relaxed, "
        "memory_order_relaxed); }"
    )
    x = np.random.default_rng(3).integers(0, 1000, 256).astype(np.uint32)
    counts, total, most = np.zeros(8, np.uint32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    settings = EmulatorSettings(find_races=True)
    run(source, "count", {0: x, 1: counts, 2: total, 3: most}, (4,), (64,), settings=settings)
    assert counts[:7].tolist() == np.bincount(x % 7, minlength=7).tolist()
    assert (counts[7], total[0], most[0]) == (1, 128, x.max())
