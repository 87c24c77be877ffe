"""Weights quantized as other libraries store them, and their values, by NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import lbrx
from lbrx.demo.models import demo_models

Array = npt.NDArray[Any]
Shape = tuple[int, int]
GROUP = 32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn


@dataclass
class Quantized:
    """The parts of a weight by what their names end with, the settings in config.json, and the values."""

    parts: dict[str, Array]
    settings: dict[str, Any]
    values: Array


def pack_stream(codes: Array, bits: int) -> Array:
    """The codes of each row as a stream of bits, lowest first, in words of 32."""
    stream = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    flat = stream.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    padded = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, -flat.shape[-1] % 32)])
    return np.packbits(padded, axis=-1, bitorder="little").view(np.int32)


def pack_halves(codes: Array, *, high_first: bool = False) -> Array:
    """Two codes of four bits in each byte."""
    first, second = codes[..., 0::2].astype(np.uint8), codes[..., 1::2].astype(np.uint8)
    return (first << 4) | second if high_first else first | (second << 4)


def repeat(numbers: Array, block: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """Numbers of blocks for each element."""
    rows = np.repeat(np.repeat(numbers, block[0], axis=-2), block[1], axis=-1)
    return rows[..., : shape[-2], : shape[-1]]


def as_bf16(values: Array) -> Array:
    return values.astype(BF16)


def fp8(rng: np.random.Generator, shape: Shape, block: tuple[int, int] = (16, 32)) -> Quantized:
    codes = rng.standard_normal(shape).astype(np.float32).astype(E4M3)
    grid = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
    scales = rng.uniform(0.1, 2, grid).astype(np.float32)
    settings = {"quant_method": "fp8", "weight_block_size": list(block)}
    values = codes.astype(np.float32) * repeat(scales, block, shape)
    return Quantized({".weight": codes, ".weight_scale_inv": scales}, settings, as_bf16(values))


def fp8_of_rows(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.standard_normal(shape).astype(np.float32).astype(E4M3)
    scales = rng.uniform(0.1, 2, (shape[0], 1)).astype(np.float32)
    parts = {".weight": codes, ".weight_scale": scales, ".input_scale": np.ones(1, np.float32)}
    return Quantized(parts, {"quant_method": "fbgemm_fp8"}, as_bf16(codes.astype(np.float32) * scales))


def fp8_of_tensor(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.standard_normal(shape).astype(np.float32).astype(E4M3)
    parts = {".weight": codes, ".weight_scale": np.array(0.37, np.float32)}
    values = codes.astype(np.float32) * np.float32(0.37)
    return Quantized(parts, {"quant_method": "modelopt", "quant_algo": "FP8"}, as_bf16(values))


def compressed_integers(rng: np.random.Generator, shape: Shape, bits: int = 4, symmetric: bool = False) -> Quantized:
    rows, columns = shape
    half = 1 << (bits - 1)
    codes = rng.integers(-half, half, shape)
    scales = rng.uniform(0.01, 0.1, (rows, columns // GROUP)).astype(BF16)
    zeros = np.zeros(scales.shape, int) if symmetric else rng.integers(-half, half, scales.shape)
    parts = {
        ".weight_packed": pack_stream(codes + half, bits),
        ".weight_scale": scales,
        ".weight_shape": np.array(shape, np.int64),
    }
    if not symmetric:
        parts[".weight_zero_point"] = np.ascontiguousarray(pack_stream(zeros.T + half, bits).T)
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": symmetric}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    differences = (codes - repeat(zeros, (1, GROUP), shape)).astype(np.float32)
    return Quantized(parts, settings, as_bf16(differences * repeat(scales, (1, GROUP), shape).astype(np.float32)))


def compressed_int8(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    scales, zeros = rng.uniform(0.01, 0.1, (shape[0], 1)).astype(BF16), rng.integers(-9, 9, (shape[0], 1))
    parts = {".weight": codes, ".weight_scale": scales, ".weight_zero_point": zeros.astype(np.int8)}
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    return Quantized(parts, settings, as_bf16((codes - zeros).astype(np.float32) * scales.astype(np.float32)))


def compressed_nvfp4(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes, scales = rng.integers(0, 16, shape), rng.uniform(1, 400, (shape[0], shape[1] // 16)).astype(E4M3)
    whole = np.array([700.0], np.float32)
    parts = {".weight_packed": pack_halves(codes), ".weight_scale": scales, ".weight_global_scale": whole}
    settings = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    factors = repeat(scales.astype(np.float32) / whole, (1, 16), shape)
    return Quantized(parts, settings, as_bf16(E2M1[codes] * factors))


def compressed_mxfp4(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.integers(0, 16, shape)
    exponents = rng.integers(100, 140, (shape[0], shape[1] // 32)).astype(np.uint8)
    parts = {".weight_packed": pack_halves(codes), ".weight_scale": exponents}
    settings = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    factors = np.exp2(exponents.astype(np.float32) - 127)
    return Quantized(parts, settings, as_bf16(E2M1[codes] * repeat(factors, (1, 32), shape)))


def gptq(rng: np.random.Generator, shape: Shape, bits: int = 4, act_order: bool = True, version: int = 1) -> Quantized:
    rows, columns = shape
    codes = rng.integers(0, 1 << bits, (columns, rows))
    index = np.arange(columns, dtype=np.int32) // GROUP
    if act_order:
        index = rng.permutation(index)
    groups = columns // GROUP
    scales = rng.uniform(0.01, 0.1, (groups, rows)).astype(np.float16)
    zeros = rng.integers(1, 1 << bits, (groups, rows))
    parts = {
        ".qweight": np.ascontiguousarray(pack_stream(codes.T, bits).T),
        ".qzeros": pack_stream(zeros - (version == 1), bits),
        ".scales": scales,
        ".g_idx": index,
    }
    settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": act_order}
    settings["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    values = (codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)
    return Quantized(parts, settings, as_bf16(values.astype(np.float16).T))


def awq(rng: np.random.Generator, shape: Shape) -> Quantized:
    rows, columns = shape
    order = np.arange(rows).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    codes, zeros = rng.integers(0, 16, (columns, rows)), rng.integers(0, 16, (columns // GROUP, rows))
    scales = rng.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    parts = {".qweight": pack_stream(codes[:, order], 4), ".qzeros": pack_stream(zeros[:, order], 4), ".scales": scales}
    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    of = np.arange(columns) // GROUP
    values = (codes - zeros[of]).astype(np.float32) * scales[of].astype(np.float32)
    return Quantized(parts, settings, as_bf16(values.astype(np.float16).T))


def modelopt(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes, scales = rng.integers(0, 16, shape), rng.uniform(1, 400, (shape[0], shape[1] // 16)).astype(E4M3)
    whole = np.array(0.0013, np.float32)
    parts = {".weight": pack_halves(codes), ".weight_scale": scales, ".weight_scale_2": whole}
    parts[".input_scale"] = np.array(0.5, np.float32)
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    factors = repeat(scales.astype(np.float32) * whole, (1, 16), shape)
    return Quantized(parts, settings, as_bf16(E2M1[codes] * factors))


def bitnet(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.integers(-1, 2, shape)
    lanes = (codes + 1).reshape(4, shape[0] // 4, shape[1]).astype(np.uint8)
    packed = lanes[0] | lanes[1] << 2 | lanes[2] << 4 | lanes[3] << 6
    scale = np.array([1.7], BF16)
    settings = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
    values = codes.astype(np.float32) * scale.astype(np.float32)
    return Quantized({".weight": packed, ".weight_scale": scale}, settings, as_bf16(values))


def bitsandbytes(rng: np.random.Generator, shape: Shape, nested: bool = True, block: int = 64) -> Quantized:
    codes, table = rng.integers(0, 16, shape), np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
    blocks = codes.size // block
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": list(shape)}
    parts = {".weight": pack_halves(codes.reshape(-1), high_first=True)[:, None], ".weight.quant_map": table}
    if nested:
        own, numbers = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32), rng.integers(0, 256, blocks)
        size = 16
        largest_of = rng.uniform(0.1, 0.2, -(-blocks // size)).astype(np.float32)
        state |= {"nested_blocksize": size, "nested_dtype": "float32", "nested_offset": 0.25}
        parts |= {".weight.absmax": numbers.astype(np.uint8), ".weight.nested_absmax": largest_of}
        parts[".weight.nested_quant_map"] = own
        largest = own[numbers] * np.repeat(largest_of, size)[:blocks] + np.float32(0.25)
    else:
        largest = rng.uniform(0.1, 2, blocks).astype(np.float32)
        parts[".weight.absmax"] = largest
    parts[".weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    values = (table[codes].reshape(-1) * np.repeat(largest, block)).reshape(shape)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    return Quantized(parts, settings, as_bf16(values.astype(np.float16)))


def bitsandbytes_int8(rng: np.random.Generator, shape: Shape) -> Quantized:
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    scales = rng.uniform(0.1, 3, shape[0]).astype(np.float32)
    parts = {".weight": codes, ".SCB": scales, ".weight_format": np.array(0, np.uint8)}
    values = codes.astype(np.float32) * scales[:, None] * np.float32(7.874015718698502e-3)
    return Quantized(parts, {"quant_method": "bitsandbytes", "load_in_8bit": True}, as_bf16(values))


Quantize = Callable[[np.random.Generator, Shape], Quantized]
SCHEMES: Mapping[str, Quantize] = {
    "fp8 blocks": fp8,
    "fp8 rows": fp8_of_rows,
    "fp8 tensor": fp8_of_tensor,
    **{
        f"compressed {bits} bits{', symmetric' * symmetric}": partial(
            compressed_integers, bits=bits, symmetric=symmetric
        )
        for bits in (2, 3, 4, 8)
        for symmetric in (False, True)
    },
    "compressed int8": compressed_int8,
    "compressed nvfp4": compressed_nvfp4,
    "compressed mxfp4": compressed_mxfp4,
    **{
        f"gptq {bits} bits v{version}{', act-order' * act_order}": partial(
            gptq, bits=bits, act_order=act_order, version=version
        )
        for bits in (2, 3, 4, 8)
        for version, act_order in ((1, True), (2, False))
    },
    "awq": awq,
    "modelopt nvfp4": modelopt,
    "bitnet": bitnet,
    "bitsandbytes nested": bitsandbytes,
    "bitsandbytes": partial(bitsandbytes, nested=False, block=128),
    "bitsandbytes int8": bitsandbytes_int8,
}


def write_model(
    path: Path, tensors: Mapping[str, Any], settings: Mapping[str, Any] | None, config: Mapping[str, Any] | None = None
) -> Path:
    """Write a directory with a config that describes the quantization."""
    path.mkdir(parents=True, exist_ok=True)
    lbrx.save(path / "model.safetensors", dict(tensors), {"format": "pt"})
    described = {} if settings is None else {"quantization_config": dict(settings)}
    full = {"model_type": "unknown", "dtype": "bfloat16", **(config or {}), **described}
    (path / "config.json").write_text(json.dumps(full))
    return path


def named(module: str, weight: Quantized) -> dict[str, Array]:
    """The parts of a weight under the name of its module."""
    return {module + ending: part for ending, part in weight.parts.items()}


def quantized_demo(path: Path, scheme: str, seed: int = 0) -> tuple[Path, Path]:
    """A demo model whose layers have random quantized weights, and the same model with their values."""
    base, rng = demo_models().base, np.random.default_rng(seed)
    config = json.loads((base / "config.json").read_text())
    quantized: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    settings: Mapping[str, Any] = {}
    for name, tensor in lbrx.open(base).items():
        quantized[name] = plain[name] = tensor
        if name.endswith("proj.weight"):
            weight = SCHEMES[scheme](rng, (tensor.shape[0], tensor.shape[1]))
            del quantized[name]
            quantized |= named(name.removesuffix(".weight"), weight)
            plain[name], settings = weight.values, weight.settings
    for folder, tensors, described in ((path / "quantized", quantized, settings), (path / "plain", plain, None)):
        write_model(folder, tensors, described, config)
        for file in base.glob("tokenizer*"):
            (folder / file.name).write_bytes(file.read_bytes())
    return path / "quantized", path / "plain"
