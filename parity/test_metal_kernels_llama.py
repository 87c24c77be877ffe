"""Unmodified kernels of llama.cpp give the right results in the emulator, forwards and backwards."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from foreign_metal import attention, close, llama, llama_arguments, llama_kernels, nan, random, run, softmax
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def test_no_file_of_llama_raises_a_false_alarm() -> None:
    files = [path.name for path in (llama_kernels() / "ggml-metal" / "kernels").glob("*.metal")]
    libraries = [llama(name, ()) for name in sorted(files) if not name.endswith("common.metal")]
    assert len(libraries) > 30
    assert sum(len(library.function_names) for library in libraries) > 1000


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
