"""What is counted: tensor operations, each as a function of the number of elements.

A workload is run with two sizes, and the difference is counted, so that what is done once per call drops out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import lbrx
from lbrx.devices.cpu.ops.coded_groups import CODED_GROUPS
from lbrx.ops import linear, rms_norm, silu, softmax
from lbrx.registry import CODECS
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.coded import Blocks
from lbrx.tensors.storage import CpuStorage

COLUMNS = 2048
Run = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """``prepare(size)`` makes a function to count, of ``size * elements`` elements.

    ``nbytes`` are those that an element moves from and to memory.
    """

    name: str
    nbytes: float
    prepare: Callable[[int], Run]
    elements: int = 16384
    sizes: tuple[int, int] = (2, 6)
    ggml: str | None = None  # the type in ggml


def _values(size: int, dtype: str = "f32", seed: int = 1, scale: float = 1.0) -> lbrx.Tensor:
    numbers = np.random.default_rng(seed).standard_normal(size) * scale
    return lbrx.tensor(numbers.astype(np.float32)).to(dtype).realize()


def _elementwise(name: str, nbytes: float, operation: Callable[..., Any], inputs: int, dtype: str = "f32") -> Workload:
    def prepare(size: int) -> Run:
        tensors = [_values(16384 * size, dtype, seed) for seed in range(inputs)]
        return lambda: _evaluate(operation(*tensors))

    return Workload(name, nbytes, prepare)


def _evaluate(result: Any) -> object:
    return result.realize() if isinstance(result, lbrx.Tensor) and result.shape else float(result)


def _blocks(codec_name: str, rows: int) -> lbrx.Tensor:
    """A weight of arbitrary blocks whose scales are finite: no byte begins the exponent of infinity or NaN."""
    nbytes = codec(codec_name).nbytes((rows, COLUMNS))
    content = np.random.default_rng(3).integers(0, 0x3C, nbytes, dtype=np.uint8)
    return lbrx.Tensor(Blocks(CpuStorage(content), codec_name, (rows, COLUMNS)))


def _vectors(count: int = 1) -> Any:
    return np.random.default_rng(4).standard_normal((count, COLUMNS)).astype(np.float32)


def _product(
    name: str, bits: float, weight: Callable[[int], lbrx.Tensor], ggml: str | None = None, activation_bits: int = 16
) -> Workload:
    def prepare(size: int) -> Run:
        matrix, x = weight(8 * size), _vectors()

        def run() -> object:
            with lbrx.using(activation_bits=activation_bits):
                return linear(x, matrix)

        return run

    return Workload(f"gemv {name}", bits / 8, prepare, 8 * COLUMNS, ggml=ggml)


def _coded_product(codec_name: str, activation_bits: int = 16) -> Workload:
    name = codec_name if activation_bits == 16 else f"{codec_name}, {activation_bits}-bit vector"
    bits = codec(codec_name).bits
    return _product(name, bits, lambda rows: _blocks(codec_name, rows), codec_name, activation_bits)


def _float_product(dtype: str, bits: int) -> Workload:
    return _product(dtype, bits, lambda rows: _values(rows * COLUMNS, dtype).reshape(rows, COLUMNS), dtype)


def _mlx_product(mode: mlx.MlxMode, name: str, bits: float) -> Workload:
    def weight(rows: int) -> lbrx.Tensor:
        generator, groups = np.random.default_rng(5), COLUMNS // mode.group_size
        words = generator.integers(-(1 << 31), 1 << 31, (rows, COLUMNS * mode.bits // 32), dtype=np.int32)
        codes = lbrx.tensor(words)
        if mode.mode != "affine":
            return mlx.dequantize(codes, lbrx.tensor(np.full((rows, groups), 120, np.uint8)), None, mode)
        scales, biases = (_values(rows * groups, "bf16", seed).reshape(rows, groups) for seed in (6, 7))
        return mlx.dequantize(codes, scales, biases, mode)

    return _product(f"MLX {name}", bits, weight)


def _integer_product(scheme: str) -> Workload:
    bits = {"int8": 8, "int4": 4, "int2": 2}[scheme] + 16 / 64
    return _product(
        scheme, bits, lambda rows: _values(rows * COLUMNS).reshape(rows, COLUMNS).quantize(scheme).realize()
    )


def _decode(codec_name: str) -> Workload:
    def prepare(size: int) -> Run:
        blocks = _blocks(codec_name, 8 * size)
        return lambda: (blocks * 1).realize()

    return Workload(f"decode {codec_name} to f32", codec(codec_name).bits / 8 + 4, prepare, 8 * COLUMNS)


def _encode(codec_name: str) -> Workload:
    def prepare(size: int) -> Run:
        values = _values(COLUMNS * size).reshape(size, COLUMNS)
        return lambda: values.quantize(codec_name).realize()

    return Workload(f"encode f32 to {codec_name}", codec(codec_name).bits / 8 + 4, prepare, COLUMNS)


def _of_rows(name: str, nbytes: float, operation: Callable[[Any], object]) -> Workload:
    def prepare(size: int) -> Run:
        rows = np.tile(_vectors(8), (size, 1))
        return lambda: operation(rows)

    return Workload(name, nbytes, prepare, 8 * COLUMNS)


def _merge(name: str, nbytes: float, method: str, inputs: int, **parameters: Any) -> Workload:
    from lbrx.jobs.merge.methods import load_method

    def prepare(size: int) -> Run:
        base, *others = (_values(16384 * size, "bf16", seed) for seed in range(inputs + 1))
        function = load_method(method)
        return lambda: function(base, others, **parameters).to("bf16").realize()

    return Workload(name, nbytes, prepare)


ELEMENTWISE = (
    _elementwise("linear merge, 2 x bf16", 6, lambda a, b: (0.3 * a + 0.7 * b).to("bf16"), 2, "bf16"),
    _elementwise("linear merge, 3 x bf16", 8, lambda a, b, c: (0.3 * a + 0.5 * b + 0.2 * c).to("bf16"), 3, "bf16"),
    _elementwise("a x + b y, f16", 6, lambda a, b: (0.3 * a + 0.7 * b).to("f16"), 2, "f16"),
    _elementwise("a x + b y, f32", 12, lambda a, b: 0.3 * a + 0.7 * b, 2),
    _elementwise("cast bf16 to f32", 6, lambda a: a.to("f32"), 1, "bf16"),
    _elementwise("cast f32 to bf16", 6, lambda a: a.to("bf16"), 1),
    _elementwise("cast f32 to f8_e4m3", 5, lambda a: a.to("f8_e4m3"), 1),
    _elementwise("cast f8_e4m3 to f32", 5, lambda a: a.to("f32"), 1, "f8_e4m3"),
    _elementwise("exp f32", 8, lambda a: a.exp(), 1),
    _elementwise("exp bf16", 4, lambda a: a.exp().to("bf16"), 1, "bf16"),
    _elementwise("log f32", 8, lambda a: abs(a).log(), 1),
    _elementwise("where, bf16", 4, lambda a: lbrx.where(a > 0.5, a, 0).to("bf16"), 1, "bf16"),
)
REDUCTIONS = (
    _elementwise("sum f32", 4, lambda a: a.sum(), 1),
    _elementwise("sum bf16", 2, lambda a: a.sum(), 1, "bf16"),
    _elementwise("norm bf16", 2, lambda a: a.norm(), 1, "bf16"),
    _elementwise("max bf16", 2, lambda a: a.max(), 1, "bf16"),
    _elementwise("k-th largest bf16", 2, lambda a: a.kth_largest(1000), 1, "bf16"),
)
PRODUCTS = (
    *(_float_product(dtype, bits) for dtype, bits in (("f32", 32), ("f16", 16), ("bf16", 16))),
    *(_coded_product(name) for name in CODECS),
    *(_coded_product(name, 8) for name in CODED_GROUPS),
    *(_mlx_product(mlx.MlxMode("affine", bits, 64), f"{bits} bit", bits + 0.5) for bits in (2, 3, 4, 5, 6, 8)),
    *(
        _mlx_product(mlx.MlxMode(name, *mlx.FLOAT_MODES[name]), name, 4.25 if "4" in name else 8.25)
        for name in ("mxfp4", "mxfp8")
    ),
    *(_integer_product(scheme) for scheme in ("int8", "int4", "int2")),
)
CODINGS = (
    *(_decode(name) for name in ("q4_0", "q8_0", "q4_k", "q6_k", "iq4_nl", "mxfp4")),
    *(_encode(name) for name in ("q8_0", "q4_0", "q4_k", "q6_k")),
)
OTHERS = (
    _of_rows("silu f32", 8, lambda x: silu(x)),
    _of_rows("softmax f32", 8, lambda x: softmax(x)),
    _of_rows("rms_norm f32", 8, lambda x: rms_norm(x, np.ones(COLUMNS, np.float32))),
)
WORKLOADS = (*ELEMENTWISE, *REDUCTIONS, *PRODUCTS, *CODINGS, *OTHERS)
