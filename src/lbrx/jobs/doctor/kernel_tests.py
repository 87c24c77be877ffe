"""Self-tests of kernels for models: small shapes on the device and on the CPU, for `lbrx doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx import ops
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.ops import activations, rows
from lbrx.devices.metal.ops.arrays import DeviceArray, download, upload
from lbrx.devices.metal.ops.attention import Kernel, attention
from lbrx.devices.metal.ops.blocks import ENCODABLE, dequantize, embedding, quantize
from lbrx.devices.metal.ops.linear import linear
from lbrx.devices.metal.ops.matmul import VARIANTS, matmul
from lbrx.devices.metal.ops.rope import apply_rope
from lbrx.devices.metal.ops.weights import device_mlx_weight, device_weight
from lbrx.engine.attention_options import AttentionOptions
from lbrx.jobs.doctor.self_test import SelfTest, SelfTestResult
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.mlx import encoded_mlx
from lbrx.tensors.rope import RopeFrequencies
from lbrx.tensors.tensor import Tensor, tensor

Array = NDArray[Any]
_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_BLOCK_CODINGS = ("q4_0", "q8_0", "q4_k", "q6_k")
_INNER = 768
_PRODUCT_BOUND = 2e-5  # of the largest element, for sums of 768 products in f32
_ROW_BOUND = 1e-5


def self_tests() -> dict[str, SelfTest]:
    """The self-tests by name; every kernel is in one of them.

    >>> len(self_tests()) > 20
    True
    """
    tests: dict[str, SelfTest] = {}
    for name in _DTYPES:
        for variant in VARIANTS:
            tests[f"matmul {name} {variant}"] = _matmul(name, variant)
        tests[f"matrix-vector {name}"] = _plain_vector(name)
    for coding in _BLOCK_CODINGS:
        tests[f"matmul {coding}"] = _blocks_product(coding, 40)
        tests[f"matrix-vector {coding}"] = _blocks_product(coding, 2)
        tests[f"dequantize {coding}"] = _dequantize(coding)
    for bits in (4, 8):
        tests[f"affine {bits} bits"] = _affine(bits)
    for coding in ENCODABLE:
        tests[f"quantize {coding}"] = _quantize(coding)
    tests["attention of many queries"] = _attention("long", None, "f32", 1e-5)
    tests["attention of many queries, f16"] = _attention("long", None, "f16", 4e-3)
    tests["attention of few queries"] = _attention("vector", "1", "f32", 1e-5)
    tests["attention of few queries, keys shared"] = _attention("vector", "4", "f32", 1e-5)
    tests |= {"embedding": _embedding, "rope": _rope, "softmax and norms": _rows, "activations": _activations}
    return tests


def _numbers(*shape: int, dtype: str = "f32", seed: int = 0) -> Array:
    values: Array = np.random.default_rng([seed, *shape]).normal(size=shape).astype(_DTYPES[dtype])
    return values


def _compare(context: MetalContext, got: DeviceArray, expected: Array, bound: float) -> SelfTestResult:
    """The largest error, in units of the largest magnitude if that is above one."""
    values = download(context, got).astype(np.float64)
    unit = max(1.0, float(np.abs(expected).max()))
    errors = np.abs(values - expected.astype(np.float64)) / unit
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(errors), np.inf, errors))), errors.shape)
    index = ", ".join(str(int(i)) for i in worst)
    return SelfTestResult(float(errors[worst]), bound, f"largest error at [{index}] of {values.shape}")


def _same_bits(got: Array, expected: Array) -> SelfTestResult:
    different = int(np.count_nonzero(got.reshape(-1).view(np.uint8) != expected.reshape(-1).view(np.uint8)))
    return SelfTestResult(float(different), 0.0, f"{different} of {expected.nbytes} bytes differ")


def _matmul(dtype: str, variant: str) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        a, b = _numbers(2, 70, 100, dtype=dtype, seed=1), _numbers(1, 100, 67, dtype=dtype, seed=2)
        turned = upload(context, np.ascontiguousarray(np.swapaxes(a, 1, 2)))
        got = matmul(context, turned, upload(context, b), transpose_a=True, out_dtype="f32", variant=variant)
        return _compare(context, got, a.astype(np.float64) @ b.astype(np.float64), _PRODUCT_BOUND)

    return run


def _plain_vector(dtype: str) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        x, weight, bias = _numbers(3, 300, seed=1), _numbers(37, 300, dtype=dtype, seed=2), _numbers(37, seed=3)
        got = linear(context, upload(context, x), upload(context, weight), upload(context, bias), activation="silu")
        return _compare(context, got, ops.silu(ops.linear(x, tensor(weight), bias)), _PRODUCT_BOUND)

    return run


def _coded(coding: str) -> Tensor:
    return tensor(_numbers(37, _INNER, seed=5)).quantize(coding).realize()


def _blocks_product(coding: str, vectors: int) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        weight, x = _coded(coding), _numbers(vectors, _INNER, seed=1)
        expected = x.astype(np.float64) @ weight.to("f32").numpy().astype(np.float64).T
        got = linear(context, upload(context, x), device_weight(context, weight))
        return _compare(context, got, expected, _PRODUCT_BOUND)

    return run


def _dequantize(coding: str) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        weight = _coded(coding)
        got = download(context, dequantize(context, device_weight(context, weight)))
        return _same_bits(got, weight.to("f32").numpy())

    return run


def _quantize(coding: str) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        weight = quantize(context, upload(context, _numbers(37, _INNER, seed=5)), coding)
        expected = download(context, device_weight(context, _coded(coding)).values)
        return _same_bits(download(context, weight.values), expected)

    return run


def _affine(bits: int) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        mode = mlx.MlxMode(bits=bits, group_size=64)
        coded = encoded_mlx(tensor(_numbers(37, _INNER, dtype="bf16", seed=5)), mode)
        values = mlx.dequantize(coded.weight, coded.scales, coded.biases, mode).numpy()
        weight, x = device_mlx_weight(context, coded, mode), _numbers(40, _INNER, seed=1)
        bits_result = _same_bits(download(context, dequantize(context, weight)), values)
        if not bits_result.passed:
            return bits_result
        expected = x.astype(np.float64) @ values.astype(np.float64).T
        results = [
            _compare(context, linear(context, upload(context, x[:count]), weight), expected[:count], _PRODUCT_BOUND)
            for count in (2, 40)
        ]
        return _worst(results)

    return run


def _worst(results: list[SelfTestResult]) -> SelfTestResult:
    failed = [result for result in results if not result.passed]
    return failed[0] if failed else max(results, key=lambda result: result.error)


def _attention(kernel: Kernel, variant: str | None, dtype: str, bound: float) -> SelfTest:
    def run(context: MetalContext) -> SelfTestResult:
        results = []
        for size, options in ((64, {}), (128, {"window": 9}), (256, {"softcap": 20.0, "causal": False})):
            arrays = [_numbers(heads, 37, size, dtype=dtype, seed=heads) for heads in (4, 2, 2)]
            q, k, v = (upload(context, each) for each in arrays)
            got = attention(context, q, k, v, AttentionOptions(**options), kernel=kernel, variant=variant)
            results.append(_compare(context, got, ops.attention(*arrays, **options), bound))
        return _worst(results)

    return run


def _embedding(context: MetalContext) -> SelfTestResult:
    weight = _coded("q6_k")
    ids = [3, 36, 0, 3]
    return _same_bits(
        download(context, embedding(context, ids, device_weight(context, weight))), ops.embedding(ids, weight)
    )


def _rope(context: MetalContext) -> SelfTestResult:
    x, frequencies = _numbers(4, 9, 64), RopeFrequencies(10000.0 ** -(np.arange(24) / 24))
    results = [
        _same_bits(
            download(context, apply_rope(context, upload(context, x), range(9), frequencies, style)),
            ops.apply_rope(x, range(9), frequencies, style),
        )
        for style in ("neox", "interleaved")
    ]
    return _worst(results)


def _rows(context: MetalContext) -> SelfTestResult:
    x, weight, bias = _numbers(5, 1111, seed=1), _numbers(1111, seed=2), _numbers(1111, seed=3)
    values, factors, terms = (upload(context, each) for each in (x, weight, bias))
    return _worst(
        [
            _compare(context, rows.softmax(context, values), ops.softmax(x), _ROW_BOUND),
            _compare(context, rows.rms_norm(context, values, factors), ops.rms_norm(x, weight), _ROW_BOUND),
            _compare(
                context,
                rows.layer_norm(context, values, factors, terms),
                ops.layer_norm(x, weight, bias),
                _ROW_BOUND,
            ),
        ]
    )


def _activations(context: MetalContext) -> SelfTestResult:
    x, other = np.linspace(-12, 12, 1001, dtype=np.float32), _numbers(1001)
    pairs: dict[str, tuple[Callable[..., DeviceArray], Array]] = {
        "silu": (activations.silu, ops.silu(x)),
        "gelu": (activations.gelu, ops.gelu(x)),
    }
    on_device = upload(context, x)
    results = [_compare(context, function(context, on_device), cpu, 1e-6) for function, cpu in pairs.values()]
    gated = activations.gelu_mul(context, on_device, upload(context, other))
    results.append(_compare(context, gated, ops.gelu_mul(x, other), 1e-6))
    results.append(_compare(context, activations.softcap(context, on_device, 5.0), ops.softcap(x, 5.0), 1e-6))
    return _worst(results)
