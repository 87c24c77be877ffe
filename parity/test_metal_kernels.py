"""Unmodified kernels of MLX and llama.cpp give the right results in the emulator, forwards and backwards."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from foreign_metal import llama, llama_arguments, mlx, run
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Floats = NDArray[np.float32]
KERNELS = "mlx/backend/metal/kernels"
MLX_START = f'#include <metal_stdlib>\nusing namespace metal;\n#include "{KERNELS}/utils.h"\n'
TYPES: dict[str, tuple[Any, float]] = {  # the C++ type: NumPy's, and the tolerance of its results
    "float": (np.float32, 2e-6),
    "half": (np.float16, 2e-3),
    "bfloat16_t": (ml_dtypes.bfloat16, 2e-2),
}


def random(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def nan(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.full(shape, np.nan, dtype)


def integer(value: int) -> bytes:
    return np.int32(value).tobytes()


def close(found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=tolerance * max(scale, 1e-9))


def softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    exponentials = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


# MLX


@pytest.mark.parametrize("kind", TYPES)
def test_mlx_softmax(kind: str) -> None:
    dtype, tolerance = TYPES[kind]
    instantiation = f'instantiate_kernel("softmax", softmax_single_row, {kind}, float)'
    x = random(3, 333).astype(dtype)
    out = nan(3, 333, dtype=dtype)
    library = mlx(f'{MLX_START}#include "{KERNELS}/softmax.h"\n{instantiation}\n')
    run(library, "softmax", {0: x, 1: out, 2: integer(333)}, (3,), (96,))
    close(out, softmax(x), tolerance)


def test_mlx_looped_softmax() -> None:
    x, out = random(2, 5000), nan(2, 5000)
    library = mlx(
        f'{MLX_START}#include "{KERNELS}/softmax.h"\ninstantiate_kernel("softmax", softmax_looped, float, float)\n'
    )
    run(library, "softmax", {0: x, 1: out, 2: integer(5000)}, (2,), (1024,))
    close(out, softmax(x), 2e-6)


@pytest.mark.parametrize("kind", TYPES)
def test_mlx_logsumexp(kind: str) -> None:
    dtype, tolerance = TYPES[kind]
    x, out = random(3, 333).astype(dtype), nan(3, dtype=dtype)
    library = mlx(
        f'{MLX_START}#include "{KERNELS}/logsumexp.h"\ninstantiate_kernel("logsumexp", logsumexp, {kind}, float)\n'
    )
    run(library, "logsumexp", {0: x, 1: out, 2: integer(333)}, (3,), (96,))
    close(out, np.log(np.exp(x.astype(np.float64)).sum(-1)), tolerance)


@pytest.mark.parametrize("kind", TYPES)
def test_mlx_matrix_vector(kind: str) -> None:
    dtype, tolerance = TYPES[kind]
    rows, columns = 37, 130
    matrix, vector, out = (
        random(rows, columns).astype(dtype),
        random(columns, seed=1).astype(dtype),
        nan(rows, dtype=dtype),
    )
    library = mlx(
        f'#include "{KERNELS}/gemv.h"\ninstantiate_kernel("gemv", gemv, {kind}, 4, 1, 1, 32, 4, 4, false, false)\n'
    )
    one, none = np.float32(1).tobytes(), np.zeros(1, np.int64)
    arguments = {0: matrix, 1: vector, 2: np.zeros(1, dtype), 3: out, 4: integer(columns), 5: integer(rows)}
    arguments |= {6: integer(columns), 7: one, 8: one, 9: integer(1), 10: np.ones(1, np.int32), 11: none}
    run(library, "gemv", arguments | {12: none, 13: none, 14: integer(0)}, (-(-rows // 16),), (32, 1, 4))
    close(out, matrix.astype(np.float64) @ vector.astype(np.float64), tolerance)


@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", TYPES)
def test_mlx_matrix_product(kind: str, transpose_a: bool, transpose_b: bool) -> None:
    dtype, tolerance = TYPES[kind]
    m, n, k = 45, 70, 51
    a = random(*((k, m) if transpose_a else (m, k))).astype(dtype)
    b = random(*((n, k) if transpose_b else (k, n)), seed=1).astype(dtype)
    out = nan(m, n, dtype=dtype)
    flags = f"{str(transpose_a).lower()}, {str(transpose_b).lower()}"
    library = mlx(
        f'#include "{KERNELS}/utils.h"\n#include "{KERNELS}/steel/gemm/gemm.h"\n'
        f'#include "{KERNELS}/steel/gemm/kernels/steel_gemm_fused.h"\n'
        f'instantiate_kernel("gemm", gemm, {kind}, 32, 32, 16, 2, 2, {flags}, float)\n'
    )
    tiles_m, tiles_n = -(-m // 32), -(-n // 32)
    sizes = np.array([m, n, k, a.shape[1], b.shape[1], n, tiles_n, tiles_m], np.int32).tobytes()
    params = sizes + np.zeros(3, np.int64).tobytes() + np.array([0, k // 16, 1, 0], np.int32).tobytes()
    constants = dict.fromkeys(("has_batch", "use_out_source", "do_axpby", "align_M", "align_N", "align_K"), False)
    run(library, "gemm", {0: a, 1: b, 3: out, 4: params}, (tiles_n, tiles_m), (32, 2, 2), constants=constants)
    left, right = (a.T if transpose_a else a), (b.T if transpose_b else b)
    close(out, left.astype(np.float64) @ right.astype(np.float64), tolerance)


def affine(rows: int, columns: int, bits: int, group: int, dtype: Any) -> tuple[NDArray[np.uint32], Any, Any, Floats]:
    """Packed codes, scales, biases, and the weights that they stand for."""
    generator = np.random.default_rng(7)
    codes = generator.integers(0, 1 << bits, (rows, columns), np.uint32)
    scales = generator.uniform(0.01, 0.05, (rows, columns // group)).astype(dtype)
    biases = generator.uniform(-0.3, 0, (rows, columns // group)).astype(dtype)
    per_word = 32 // bits
    shifts = np.arange(per_word, dtype=np.uint32) * bits
    packed = (codes.reshape(rows, -1, per_word) << shifts).sum(-1, dtype=np.uint32)
    wide = [np.repeat(each.astype(np.float32), group, axis=1) for each in (scales, biases)]
    return packed, scales, biases, codes * wide[0] + wide[1]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["float", "half", "bfloat16_t"])
def test_mlx_quantized_matrix_vector(kind: str, bits: int) -> None:
    dtype, tolerance = TYPES[kind]
    rows, columns, group = 24, 512, 64
    packed, scales, biases, weights = affine(rows, columns, bits, group, dtype)
    x, out = random(columns).astype(dtype), nan(rows, dtype=dtype)
    library = mlx(quantized(f'instantiate_kernel("qmv", affine_qmv, {kind}, {group}, {bits}, false)'))
    none, shape = np.zeros(1, np.int64), np.ones(1, np.int32)
    arguments = {0: packed, 1: scales, 2: biases, 3: x, 4: out, 5: integer(columns), 6: integer(rows), 7: integer(0)}
    arguments |= {8: shape, 9: none, 10: integer(0), 11: shape, 12: none, 13: none, 14: none}
    run(library, "qmv", arguments, (1, rows // 8), (32, 2))
    close(out, weights.astype(np.float64) @ x.astype(np.float64), tolerance)


def quantized(instantiation: str) -> str:
    return (
        f'{MLX_START}#include "{KERNELS}/steel/gemm/gemm.h"\n#include "{KERNELS}/quantized_utils.h"\n'
        f'#include "{KERNELS}/quantized.h"\n{instantiation}\n'
    )


@pytest.mark.parametrize("kind", ["float", "half"])
def test_mlx_quantized_matrix_product(kind: str) -> None:
    dtype, tolerance = TYPES[kind]
    m, n, k, group, bits = 19, 64, 128, 64, 4
    packed, scales, biases, weights = affine(n, k, bits, group, dtype)
    x, out = random(m, k).astype(dtype), nan(m, n, dtype=dtype)
    library = mlx(quantized(f'instantiate_kernel("qmm", affine_qmm_t, {kind}, {group}, {bits}, true, false)'))
    none, shape = np.zeros(1, np.int64), np.ones(1, np.int32)
    arguments = {0: packed, 1: scales, 2: biases, 3: x, 4: out, 5: integer(k), 6: integer(n), 7: integer(m)}
    arguments |= {8: integer(0), 9: shape, 10: none, 11: integer(0), 12: shape, 13: none, 14: none, 15: none}
    run(library, "qmm", arguments, (n // 32, -(-m // 32)), (32, 2, 2))
    close(out, x.astype(np.float64) @ weights.T.astype(np.float64), tolerance)


def attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], scale: float, causal: bool) -> NDArray[np.float64]:
    """Heads of queries share heads of keys; causal masks align the last query with the last key."""
    repeat = q.shape[0] // k.shape[0]
    keys, values = (np.repeat(each.astype(np.float64), repeat, axis=0) for each in (k, v))
    scores = scale * q.astype(np.float64) @ keys.swapaxes(1, 2)
    if causal:
        lengths = scores.shape[1:]
        scores = np.where(np.tri(*lengths, lengths[1] - lengths[0], dtype=bool), scores, -np.inf)
    return softmax(scores) @ values


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("length", [7, 65])
def test_mlx_attention_of_one_query(kind: str, length: int) -> None:
    dtype, tolerance = TYPES[kind]
    heads, kv_heads, size = 4, 2, 64
    q, k, v = (
        random(h, n, size, seed=s).astype(dtype)
        for s, (h, n) in enumerate([(heads, 1), (kv_heads, length), (kv_heads, length)])
    )
    out = nan(heads, 1, size, dtype=dtype)
    instantiation = f'instantiate_kernel("sdpa", sdpa_vector, {kind}, {size}, {size})'
    library = mlx(f'{MLX_START}#include "{KERNELS}/sdpa_vector.h"\n{instantiation}\n')
    stride = [np.uint64(each).tobytes() for each in (length * size, size)]
    arguments = {0: q, 1: k, 2: v, 3: out, 4: integer(heads // kv_heads), 5: integer(length)}
    arguments |= {6: stride[0], 7: stride[1], 8: stride[0], 9: stride[1], 10: np.float32(0.125).tobytes()}
    names = ("has_mask", "query_transposed", "do_causal", "bool_mask", "float_mask", "has_sinks")
    run(library, "sdpa", arguments, (heads, 1), (1024,), constants=dict.fromkeys(names, False) | {"blocks": 1})
    close(out, attention(q, k, v, 0.125, causal=False), tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["float", "half"])
def test_mlx_attention_of_many_queries(kind: str, causal: bool) -> None:
    dtype, tolerance = TYPES[kind]
    heads, kv_heads, length, size = 2, 1, 45, 64
    q, k, v = (random(h, length, size, seed=s).astype(dtype) for s, h in enumerate((heads, kv_heads, kv_heads)))
    out = nan(heads, length, size, dtype=dtype)
    library = mlx(
        f'{MLX_START}#include "{KERNELS}/steel/attn/kernels/steel_attention.h"\n'
        f'instantiate_kernel("attention", attention, {kind}, 32, 16, {size}, {size}, 4, 1, float, float)\n'
    )
    queries, keys = -(-length // 32), -(-length // 16)
    sizes = (
        np.array([1, heads, size, length, length, heads // kv_heads], np.int32).tobytes() + np.float32(0.125).tobytes()
    )
    sizes += np.array([queries, keys, length // 32, length // 16, length % 32, length % 16, 0], np.int32).tobytes()
    strides = [[h * length * size, length * size, size] for h in (heads, kv_heads, kv_heads, heads)]
    params = sizes + np.array(strides, np.int64).tobytes()
    names = ("align_Q", "align_K", "has_mask", "has_sinks", "save_lse")
    constants = dict.fromkeys(names, False) | {"do_causal": causal}
    run(library, "attention", {0: q, 1: k, 2: v, 3: out, 4: params}, (queries, heads), (32, 4), constants=constants)
    close(out, attention(q, k, v, 0.125, causal), 2 * tolerance)


def test_mlx_arange() -> None:
    out = nan(100)
    library = mlx(f'{MLX_START}#include "{KERNELS}/arange.h"\ninstantiate_kernel("arange", arange, float)\n')
    run(library, "arange", {0: np.float32(3).tobytes(), 1: np.float32(0.5).tobytes(), 2: out}, (4,), (25,))
    np.testing.assert_array_equal(out, 3 + 0.5 * np.arange(100, dtype=np.float32))


# llama.cpp


def norm_arguments(rows: int, columns: int, vector: int) -> bytes:
    row = 4 * columns
    nbf = (row, row, row)
    ones = (1, 1, 1)
    sizes: dict[str, Any] = {"ne00": columns, "ne00_t": columns // vector, "eps": 1e-5, "scale": 1.0}
    strides: dict[str, Any] = {"nb1": row, "nb2": row * rows, "nb3": row * rows, "nbf1": nbf, "nbf2": nbf, "nbf3": nbf}
    return llama_arguments("norm", **sizes, **strides, nef1=ones, nef2=ones, nef3=ones)


@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("name", ["rms_norm", "rms_norm_mul", "norm", "norm_mul_add"])
def test_llama_norms(name: str, vector: int) -> None:
    rows, columns = 3, 516
    x, weight, bias, out = random(rows, columns), random(columns, seed=1), random(columns, seed=2), nan(rows, columns)
    kernel = f"kernel_{name}_f32" + ("_4" if vector == 4 else "")
    arguments = {0: norm_arguments(rows, columns, vector), 1: x, 2: weight, 3: bias, 4: out}
    constants = {"FC_norm_use_scale": False}
    run(
        llama("norm.metal", (kernel,)),
        kernel,
        arguments,
        (rows,),
        (128,),
        constants=constants,
        threadgroup_bytes={0: 128},
    )
    exact = x.astype(np.float64)
    centred = exact if name.startswith("rms") else exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = expected * weight if "mul" in name else expected
    close(out, expected + bias if "add" in name else expected, 3e-6)


@pytest.mark.parametrize("vector", [1, 4])
def test_llama_softmax(vector: int) -> None:
    rows, columns = 3, 300
    x, out = random(rows, columns), nan(rows, columns)
    kernel = "kernel_soft_max_f32" + ("_4" if vector == 4 else "")
    row = 4 * columns
    args = llama_arguments(
        "soft_max",
        ne00=columns,
        ne01=rows,
        ne02=1,
        ne11=1,
        ne12=1,
        ne13=1,
        **{f"nb{k}{d}": row for k in ("0", "1", "") for d in (1, 2, 3)},
        scale=0.5,
        m0=1.0,
        m1=1.0,
    )
    arguments = {0: args, 1: x, 2: x, 3: x, 4: out}  # the input in the place of a mask: there is none
    run(llama("softmax.metal", (kernel,)), kernel, arguments, (rows,), (64,), threadgroup_bytes={0: 128})
    close(out, softmax(0.5 * x), 3e-6)


BLOCKS = {
    "q4_0": (4, 2, 32, 18),
    "q8_0": (2, 4, 32, 34),
    "q4_K": (2, 2, 256, 144),
    "q6_K": (2, 2, 256, 210),
    "q5_0": (4, 2, 32, 22),
}


def blocks(name: str, rows: int, columns: int) -> tuple[NDArray[np.uint8], Floats]:
    """A quantized matrix and its values; formats that gguf cannot encode are random blocks with sane scales."""
    kind = GGMLQuantizationType[name.upper()]
    if not name.endswith("K"):
        data = quantize(random(rows, columns), kind)
        return data, dequantize(data, kind)
    _, _, elements, nbytes = BLOCKS[name]
    data = np.random.default_rng(3).integers(0, 256, (rows, columns // elements, nbytes), np.uint8)
    scales = np.random.default_rng(4).uniform(0.001, 0.01, (*data.shape[:2], 2)).astype(np.float16).view(np.uint8)
    if name == "q4_K":
        data[..., :4] = scales
    else:
        data[..., -2:] = scales[..., :2]
    data = data.reshape(rows, -1)
    return data, dequantize(data, kind)


@pytest.mark.parametrize("name", BLOCKS)
def test_llama_quantized_matrix_vector(name: str) -> None:
    rows_per_simdgroup, simdgroups, _, _ = BLOCKS[name]
    rows, columns = 32, 512
    data, weights = blocks(name, rows, columns)
    x, out = random(columns, seed=5), nan(rows)
    args = vector_arguments(rows, columns, data.shape[1], 4, rows_per_simdgroup)
    kernel = f"kernel_mul_mv_{name}_f32"
    per_group = rows_per_simdgroup * (1 if name == "q8_0" else simdgroups)
    run(
        llama("mul_mv.metal", (kernel,)),
        kernel,
        {0: args, 1: data, 2: x, 3: out},
        (rows // per_group, 1, 1),
        (32, simdgroups),
        constants=VECTOR_CONSTANTS | {"FC_mul_mv_nsg": simdgroups},
        threadgroup_bytes={0: 32 * 4 * 4},
    )
    close(out, weights.astype(np.float64) @ x.astype(np.float64), 2e-5)


VECTOR_CONSTANTS = {"FC_mul_mv_nxpsg": 1, "FC_mul_mv_ne12": 1, "FC_mul_mv_r2": 1, "FC_mul_mv_r3": 1}


def vector_arguments(rows: int, columns: int, row_bytes: int, element_bytes: int, rows_per_simdgroup: int) -> bytes:
    return llama_arguments(
        "mul_mv",
        ne00=columns,
        ne01=rows,
        ne02=1,
        ne10=columns,
        ne11=1,
        ne12=1,
        ne0=rows,
        ne1=1,
        nb00=element_bytes,
        nb01=row_bytes,
        nb02=row_bytes * rows,
        nb03=row_bytes * rows,
        nb10=4,
        nb11=4 * columns,
        nb12=4 * columns,
        nb13=4 * columns,
        nr0=rows_per_simdgroup,
        r2=1,
        r3=1,
    )


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_llama_matrix_vector(kind: Any) -> None:
    rows, columns = 10, 260
    matrix, x, out = random(rows, columns).astype(kind), random(columns, seed=5), nan(rows)
    name = {4: "f32"}.get(matrix.itemsize) or ("f16" if kind is np.float16 else "bf16")
    kernel = f"kernel_mul_mv_{name}_f32_4"
    args = vector_arguments(rows, columns, matrix.itemsize * columns, matrix.itemsize, 2)
    run(
        llama("mul_mv.metal", (kernel,)),
        kernel,
        {0: args, 1: matrix, 2: x, 3: out},
        (rows // 2, 1, 1),
        (32, 3),
        constants=VECTOR_CONSTANTS | {"FC_mul_mv_nsg": 3},
        threadgroup_bytes={0: 256},
    )
    close(out, matrix.astype(np.float64) @ x.astype(np.float64), 3e-6)


@pytest.mark.parametrize("name", ["f32", "f16", "q4_0", "q8_0", "q4_K", "q6_K"])
def test_llama_matrix_product(name: str) -> None:
    rows, columns, count = 72, 256, 37
    if name in BLOCKS:
        data, weights = blocks(name, rows, columns)
    else:
        data = random(rows, columns).astype(np.float32 if name == "f32" else np.float16)
        weights = data.astype(np.float32)
    x, out = random(count, columns, seed=5), nan(count, rows)
    row_bytes = data.nbytes // rows
    args = llama_arguments(
        "mul_mm",
        ne00=columns,
        ne02=1,
        ne12=1,
        ne0=rows,
        ne1=count,
        r2=1,
        r3=1,
        nb01=row_bytes,
        nb02=row_bytes * rows,
        nb03=row_bytes * rows,
        nb10=4,
        nb11=4 * columns,
        nb12=4 * columns * count,
        nb13=4 * columns * count,
    )
    kernel = f"kernel_mul_mm_{name}_f32"
    constants = {"FC_mul_mm_bc_inp": False, "FC_mul_mm_bc_out": True, "FC_mul_mm_ne12": 1, "FC_mul_mm_ne13": 1}
    run(
        llama("mul_mm.metal", (kernel,)),
        kernel,
        {0: args, 1: data, 2: x, 3: out},
        (-(-count // 32), -(-rows // 64), 1),
        (128,),
        constants=constants | {"FC_mul_mm_r2": 1, "FC_mul_mm_r3": 1},
        threadgroup_bytes={0: 8192},
    )
    close(out, x.astype(np.float64) @ weights.T.astype(np.float64), 2e-3)  # the tiles are half


def test_llama_attention_of_one_query() -> None:
    heads, kv_heads, length, size = 4, 2, 96, 64
    q = random(heads, 1, size)
    k, v = (random(kv_heads, length, size, seed=s).astype(np.float16) for s in (1, 2))
    out = nan(heads, 1, size)
    kv, row = 2 * length * size, 2 * size
    args = llama_arguments(
        "flash_attn_ext_vec",
        ne01=1,
        ne02=heads,
        ne03=1,
        nb01=4 * size,
        nb02=4 * size,
        nb03=4 * size * heads,
        ne11=length,
        ne_12_2=kv_heads,
        ne_12_3=1,
        ns10=size,
        ns20=size,
        nb11=row,
        nb12=kv,
        nb13=kv * kv_heads,
        nb21=row,
        nb22=kv,
        nb23=kv * kv_heads,
        ne31=1,
        ne32=1,
        ne33=1,
        ne1=heads,
        ne2=1,
        ne3=1,
        scale=0.125,
        m0=1.0,
        m1=1.0,
    )
    prefix = "FC_flash_attn_ext_vec_"
    constants: dict[str, bool | int | float] = dict.fromkeys(
        (f"{prefix}has_{each}" for each in ("mask", "sinks", "bias", "scap", "kvpad", "sparse")), False
    )
    constants |= {f"{prefix}ns10": size, f"{prefix}ns20": size, f"{prefix}nsg": 1, f"{prefix}nwg": 1}
    kernel = f"kernel_flash_attn_ext_vec_f16_dk{size}_dv{size}"
    unused = np.zeros(64, np.uint8)
    run(
        llama("fa_vec_f16.metal", (kernel,)),
        kernel,
        {0: args, 1: q, 2: k, 3: v, 4: unused, 5: unused.copy(), 6: unused.copy(), 7: out, 8: unused.copy()},
        (1, heads, 1),
        (32, 1),
        constants=constants,
        threadgroup_bytes={0: 2 * (128 + 4 * 32 + 2 * 128)},
    )
    close(out, attention(q, k, v, 0.125, causal=False), 2e-3)


def test_llama_swiglu() -> None:
    rows, columns = 3, 100
    gate, up, out = random(rows, columns), random(rows, columns, seed=1), nan(rows, columns)
    row = 4 * columns
    args = llama_arguments("glu", ne00=columns, nb01=row, ne10=columns, nb11=row, ne0=columns, nb1=row)
    run(
        llama("unary.metal", ("kernel_swiglu_f32",)),
        "kernel_swiglu_f32",
        {0: args, 1: gate, 2: up, 3: out},
        (rows,),
        (32,),
    )
    close(out, gate / (1 + np.exp(-gate.astype(np.float64))) * up, 2e-6)
