"""Unmodified kernels of MLX give the right results in the emulator, forwards and backwards."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from foreign_metal import attention, close, mlx, mlx_include, nan, random, run, softmax
from numpy.typing import NDArray

Floats = NDArray[np.float32]
KERNELS = "mlx/backend/metal/kernels"
MLX_START = f'#include <metal_stdlib>\nusing namespace metal;\n#include "{KERNELS}/utils.h"\n'
ABOVE = (
    *("atomic.h", "defines.h", "steel/defines.h", "steel/gemm/gemm.h", "steel/conv/params.h", "sort.h"),
    "reduction/ops.h",
)
"""Headers that others take for granted."""
TYPES: dict[str, tuple[Any, float]] = {  # the C++ type: NumPy's, and the tolerance of its results
    "float": (np.float32, 2e-6),
    "half": (np.float16, 2e-3),
    "bfloat16_t": (ml_dtypes.bfloat16, 2e-2),
}


def above(name: str) -> str:
    """What MLX's shaders have before they include a header."""
    if name.startswith("steel/attn/") or name == "sort.h":  # their classes have the names of others
        return ""
    text = "".join(f'#include "{KERNELS}/{each}"\n' for each in ABOVE)
    is_convolution = name.startswith("steel/conv/kernels/")
    return f'{text}#include "{KERNELS}/steel/conv/conv.h"\nusing namespace mlx::steel;\n' if is_convolution else text


def test_no_header_of_mlx_raises_a_false_alarm() -> None:
    """Headers that use the tensor operations of Metal 4 are left out: the emulator has none."""
    root = mlx_include() / KERNELS
    texts = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.h"))}
    headers = [name for name, text in texts.items() if not re.search(r"nax|metal_tensor|MetalPerformance", name + text)]
    for name in headers:
        assert mlx(f'{MLX_START}{above(name)}#include "{KERNELS}/{name}"\n') is not None, name
    assert len(headers) > 40


def integer(value: int) -> bytes:
    return np.int32(value).tobytes()


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
