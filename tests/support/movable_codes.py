"""Quantized models whose codes other formats have, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lbrx
from lbrx.demo.models import demo_models
from support.quantized_weights import E2M1, E4M3, Quantized, as_bf16, named, pack_halves, repeat, write_model

Shape = tuple[int, int]
Make = Callable[[np.random.Generator, Shape], Quantized]


def mxfp4(rng: np.random.Generator, shape: Shape, low: int = 100, high: int = 140) -> Quantized:
    codes = rng.integers(0, 16, shape)
    exponents = rng.integers(low, high, (shape[0], shape[1] // 32)).astype(np.uint8)
    settings = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    factors = np.ldexp(np.float32(1), exponents.astype(int) - 127)
    values = as_bf16(E2M1[codes] * repeat(factors, (1, 32), shape))
    return Quantized({".weight_packed": pack_halves(codes), ".weight_scale": exponents}, settings, values)


def nvfp4(rng: np.random.Generator, shape: Shape, whole: float = 0.25, modelopt: bool = True) -> Quantized:
    codes = rng.integers(0, 16, shape)
    scales = np.ldexp(rng.integers(8, 16, (shape[0], shape[1] // 16)).astype(np.float32), -5).astype(E4M3)
    factors = scales.astype(np.float32) * np.float32(whole)
    values = as_bf16(E2M1[codes] * repeat(factors, (1, 16), shape))
    if modelopt:
        parts = {".weight": pack_halves(codes), ".weight_scale": scales, ".weight_scale_2": np.array(whole, np.float32)}
        return Quantized(parts, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, values)
    whole_scale = np.array([1 / whole], np.float32)
    parts = {".weight_packed": pack_halves(codes), ".weight_scale": scales, ".weight_global_scale": whole_scale}
    return Quantized(parts, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, values)


def finite(rng: np.random.Generator, shape: Shape) -> npt.NDArray[Any]:
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # NaN
    return codes.view(E4M3)


def mxfp8(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes, exponents = finite(rng, shape), rng.integers(100, 140, (shape[0], shape[1] // 32)).astype(np.uint8)
    factors = np.ldexp(np.float32(1), exponents.astype(int) - 127)
    values = as_bf16(codes.astype(np.float32) * repeat(factors, (1, 32), shape))
    return Quantized({".weight": codes, ".weight_scale_inv": exponents}, {"quant_method": "mxfp8"}, values)


def fp8(rng: np.random.Generator, shape: Shape, grid: tuple[int, int] | None, block: Shape = (24, 64)) -> Quantized:
    """Scales that are powers of two; ``grid`` None is one scale for the weight."""
    codes = finite(rng, shape)
    powers = rng.integers(-9, 9, grid or ())
    scales = np.asarray(np.ldexp(np.float32(1), powers), np.float32)
    wide = scales if grid is None else repeat(scales, block, shape)
    settings = {"quant_method": "fp8", "weight_block_size": list(block)}
    parts = {".weight": codes, ".weight_scale_inv": scales}
    return Quantized(parts, settings, as_bf16(codes.astype(np.float32) * wide))


def model(path: Path, make: Make) -> tuple[Path, dict[str, Any]]:
    """A demo model with quantized layers, and the values of all its tensors."""
    base, rng = demo_models().base, np.random.default_rng(3)
    tensors: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, tensor in lbrx.open(base).items():
        tensors[name], plain[name] = tensor, tensor.to("f32").numpy()
        if name.endswith("proj.weight"):
            weight = make(rng, (tensor.shape[0], tensor.shape[1]))
            del tensors[name]
            tensors |= named(name.removesuffix(".weight"), weight)
            plain[name], settings = weight.values.astype(np.float32), weight.settings
    write_model(path, tensors, settings, json.loads((base / "config.json").read_text()))
    for file in base.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path, plain


CASES: dict[str, tuple[Make, str | None, str | None]] = {  # the types in GGUF and MLX
    "mxfp4": (mxfp4, "mxfp4", "mxfp4"),
    "nvfp4 of modelopt": (nvfp4, "nvfp4", "nvfp4"),
    "nvfp4 of compressed-tensors": (lambda rng, shape: nvfp4(rng, shape, 4.0, False), "nvfp4", "nvfp4"),
    "nvfp4 with another scale": (lambda rng, shape: nvfp4(rng, shape, 0.3), None, None),
    "nvfp4 whose scales do not fit": (lambda rng, shape: nvfp4(rng, shape, 2.0**-9), None, None),
    "mxfp8": (mxfp8, None, "mxfp8"),
    "fp8 tensors": (lambda rng, shape: fp8(rng, shape, None), None, "mxfp8"),
    "fp8 rows": (lambda rng, shape: fp8(rng, shape, (shape[0], 1), (1, shape[1])), None, "mxfp8"),
    "fp8 blocks": (lambda rng, shape: fp8(rng, shape, (-(-shape[0] // 24), -(-shape[1] // 64))), None, "mxfp8"),
    "fp8 blocks of 16": (
        lambda rng, shape: fp8(rng, shape, (-(-shape[0] // 24), shape[1] // 16), (24, 16)),
        None,
        None,
    ),
}
