"""The work that is measured: what a model of some width does, on the CPU and on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx import ops
from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.device import MetalDevice
from lbrx.devices.metal.ops import activations, rows
from lbrx.devices.metal.ops.arrays import DeviceArray, upload
from lbrx.devices.metal.ops.attention import attention
from lbrx.devices.metal.ops.blocks import dequantize, embedding
from lbrx.devices.metal.ops.linear import linear
from lbrx.devices.metal.ops.rope import apply_rope
from lbrx.devices.metal.ops.weights import device_array, device_mlx_weight, device_weight
from lbrx.engine.attention_options import AttentionOptions
from lbrx.errors import UsageError
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.mlx import encoded_mlx
from lbrx.tensors.rope import RopeFrequencies
from lbrx.tensors.tensor import Tensor, tensor

Array = NDArray[Any]
WIDTHS = {"tiny": 256, "small": 1024, "large": 4096}
_PLAIN: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_CODINGS = ("q4_0", "q8_0", "q4_k", "q6_k")
_HEAD_SIZE = 64
_EXACT_BOUND = 1e-4  # of the largest element
_HALF_BOUND = 1e-2


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One piece of work: on the CPU, and on the device, where its inputs are already."""

    name: str
    on_cpu: Callable[[], Array]
    on_metal: Callable[[], DeviceArray]
    bound: float = _EXACT_BOUND


def cases(context: MetalContext, size: str, only: str | None = None) -> Iterator[BenchCase]:
    """The cases of a size whose names contain ``only``, each made when it is asked for: they need memory.

    >>> [case.name for case in cases(MetalContext.open("emulated"), "tiny", "softmax")]
    ['softmax']
    """
    if size not in WIDTHS:
        raise UsageError(f"unknown size {size!r}; expected one of {', '.join(WIDTHS)}")
    for name, make in _makers(context, WIDTHS[size]).items():
        if only is None or only in name:
            yield make(name)


def _makers(context: MetalContext, width: int) -> dict[str, Callable[[str], BenchCase]]:
    makers: dict[str, Callable[[str], BenchCase]] = {}
    for label, vectors in (("matmul", width // 4), ("matrix-vector", 1)):
        for dtype in _PLAIN:
            makers[f"{label} {dtype}"] = _plain(context, width, dtype, vectors)
        for coding in _CODINGS:
            makers[f"{label} {coding}"] = _blocks(context, width, coding, vectors)
        makers[f"{label} affine 4"] = _affine(context, width, vectors)
    makers["attention, prompt"] = _attention(context, width, width // 2)
    makers["attention, one token"] = _attention(context, width, 1)
    makers["softmax"] = _softmax(context, width)
    makers["rms_norm"] = _rms_norm(context, width)
    makers["silu_mul"] = _silu_mul(context, width)
    makers["rope"] = _rope(context, width)
    makers |= {"copy": _copy(context, width), "merge of two, bf16": _merge(context, width)}
    makers["sum, bf16"] = _sum(context, width)
    makers["embedding q6_k"] = _embedding(context, width)
    makers["dequantize q4_k"] = _dequantize(context, width)
    return makers


def _numbers(*shape: int, seed: int = 0) -> Array:
    values: Array = np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
    return values


def _plain(context: MetalContext, width: int, dtype: str, vectors: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x, stored = _numbers(vectors, width).astype(_PLAIN[dtype]), tensor(_numbers(width, width, seed=1), dtype)
        weight, on_device = device_weight(context, stored), upload(context, x)
        wide = x.astype(np.float32)
        bound = _EXACT_BOUND if dtype == "f32" else _HALF_BOUND
        return BenchCase(name, lambda: ops.linear(wide, stored), lambda: linear(context, on_device, weight), bound)

    return make


def _coded(width: int, coding: str) -> Tensor:
    return tensor(_numbers(width, width, seed=1)).quantize(coding).realize()


def _blocks(context: MetalContext, width: int, coding: str, vectors: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x, stored = _numbers(vectors, width).astype(np.float16), _coded(width, coding)
        weight, on_device = device_weight(context, stored), upload(context, x)
        wide = x.astype(np.float32)
        return BenchCase(
            name, lambda: ops.linear(wide, stored), lambda: linear(context, on_device, weight), _HALF_BOUND
        )

    return make


def _affine(context: MetalContext, width: int, vectors: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        mode = mlx.MlxMode()
        coded = encoded_mlx(tensor(_numbers(width, width, seed=1), "f16"), mode)
        decoded = mlx.dequantize(coded.weight, coded.scales, coded.biases, mode)
        x = _numbers(vectors, width).astype(np.float16)
        weight, on_device = device_mlx_weight(context, coded, mode), upload(context, x)
        wide = x.astype(np.float32)
        return BenchCase(
            name, lambda: ops.linear(wide, decoded), lambda: linear(context, on_device, weight), _HALF_BOUND
        )

    return make


def _attention(context: MetalContext, width: int, queries: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        heads, keys = max(4, width // 4 // _HEAD_SIZE), width // 2
        arrays = [
            _numbers(count, rows, _HEAD_SIZE, seed=seed).astype(np.float16)
            for seed, (count, rows) in enumerate(((heads, queries), (heads // 4, keys), (heads // 4, keys)))
        ]
        q, k, v = (upload(context, array) for array in arrays)
        offset = keys - queries
        return BenchCase(
            name,
            lambda: ops.attention(arrays[0], arrays[1], arrays[2], offset=offset),
            lambda: attention(context, q, k, v, AttentionOptions(offset=offset)),
            _HALF_BOUND,
        )

    return make


def _softmax(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x = _numbers(width, width)
        on_device = upload(context, x)
        return BenchCase(name, lambda: ops.softmax(x), lambda: rows.softmax(context, on_device))

    return make


def _rms_norm(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x, weight = _numbers(width, width), _numbers(width)
        values, factors = upload(context, x), upload(context, weight)
        return BenchCase(name, lambda: ops.rms_norm(x, weight), lambda: rows.rms_norm(context, values, factors))

    return make


def _silu_mul(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        gate, up = _numbers(width, width), _numbers(width, width, seed=1)
        gates, ups = upload(context, gate), upload(context, up)
        return BenchCase(name, lambda: ops.silu_mul(gate, up), lambda: activations.silu_mul(context, gates, ups))

    return make


def _rope(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x = _numbers(16, width, _HEAD_SIZE)
        positions = np.arange(width)
        frequencies = RopeFrequencies(10000.0 ** -(np.arange(_HEAD_SIZE // 2) / (_HEAD_SIZE // 2)))
        on_device = upload(context, x)
        return BenchCase(
            name,
            lambda: ops.apply_rope(x, positions, frequencies),
            lambda: apply_rope(context, on_device, positions, frequencies),
        )

    return make


def _pass(context: MetalContext, name: str, on_cpu: Tensor, on_device: Tensor) -> BenchCase:
    """A fused pass over tensors that are on the CPU and on the device."""

    def run() -> DeviceArray:
        with using_metal(context):
            return device_array(context, on_device.realize())

    return BenchCase(name, lambda: np.asarray(on_cpu.numpy(), np.float32), run)


def _on_both(context: MetalContext, width: int, dtype: str, seed: int) -> tuple[Tensor, Tensor]:
    values = tensor(_numbers(width, width, seed=seed), dtype)
    with using_metal(context):
        return values, values.to_device(MetalDevice.name)


def _copy(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x, on_device = _on_both(context, width, "f32", 1)
        return _pass(context, name, -x, -on_device)

    return make


def _merge(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        (a, a_there), (b, b_there) = (_on_both(context, width, "bf16", seed) for seed in (1, 2))
        merged, merged_there = ((x * 0.25 + y * 0.75).to("bf16") for x, y in ((a, b), (a_there, b_there)))
        return _pass(context, name, merged, merged_there)

    return make


def _sum(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        x, on_device = _on_both(context, width, "bf16", 1)
        return _pass(context, name, x.sum(axis=-1), on_device.sum(axis=-1))

    return make


def _embedding(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        stored = _coded(width, "q6_k")
        weight, ids = device_weight(context, stored), np.arange(0, width, 2)
        return BenchCase(name, lambda: ops.embedding(ids, stored), lambda: embedding(context, ids, weight))

    return make


def _dequantize(context: MetalContext, width: int) -> Callable[[str], BenchCase]:
    def make(name: str) -> BenchCase:
        stored = _coded(width, "q4_k")
        weight = device_weight(context, stored)
        return BenchCase(name, lambda: stored.to("f32").numpy(), lambda: dequantize(context, weight))

    return make
