"""Weights of quantized checkpoints are those that the library which quantized them computes, bit for bit.

Libraries that are not installed are skipped: transformers is enough for FP8, gpt-oss and BitNet.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lbrx

Tensors = dict[str, torch.Tensor]
ROWS, COLUMNS = 96, 256


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


def model(path: Path, tensors: Tensors, settings: Mapping[str, Any], dtype: str = "bfloat16") -> lbrx.Checkpoint:
    path.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    config = {"model_type": "llama", "dtype": dtype, "quantization_config": dict(settings)}
    (path / "config.json").write_text(json.dumps(config))
    return lbrx.open(path)


def assert_same(tensor: lbrx.Tensor, expected: torch.Tensor) -> None:
    """The same dtype and the same bits, whole and in pieces."""
    assert tensor.dtype.name == {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[expected.dtype]
    assert tensor.shape == tuple(expected.shape)
    wide = expected.float().numpy()
    np.testing.assert_array_equal(tensor.to("f32").numpy(), wide)
    np.testing.assert_array_equal(tensor[..., 3:37, 5:70].to("f32").numpy(), wide[..., 3:37, 5:70])


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


# -- FP8 ---------------------------------------------------------------------------------------------------------------


def fp8_reference(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(None)._dequantize_one(codes, scales, output_dtype=dtype)


@pytest.mark.parametrize("grid", [(3, 2), (1, 1), (ROWS, 1), (ROWS, COLUMNS // 32)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fp8(grid: tuple[int, int], dtype: torch.dtype, tmp_path: Path) -> None:
    codes, scales = floats(ROWS, COLUMNS).to(torch.float8_e4m3fn), torch.rand(grid) + 0.1
    block = [ROWS // grid[0], COLUMNS // grid[1]]
    settings = {"quant_method": "fp8", "weight_block_size": block}
    opened = model(tmp_path / "m", {"l.weight": codes, "l.weight_scale_inv": scales}, settings, str(dtype)[6:])
    assert_same(opened["l.weight"], fp8_reference(codes, scales, dtype))


@pytest.mark.parametrize("scale_type", [torch.uint8, torch.float8_e8m0fnu])
def test_mxfp8(scale_type: torch.dtype, tmp_path: Path) -> None:
    codes = floats(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    scales = torch.randint(110, 140, (ROWS, COLUMNS // 32), dtype=torch.uint8).view(scale_type)
    opened = model(tmp_path / "m", {"l.weight": codes, "l.weight_scale_inv": scales}, {"quant_method": "mxfp8"})
    assert_same(opened["l.weight"], fp8_reference(codes, scales, torch.bfloat16))


def test_fp4_pairs_beside_fp8(tmp_path: Path) -> None:
    codes = torch.randint(-128, 128, (ROWS, COLUMNS // 2), dtype=torch.int8)
    scales = torch.randint(110, 140, (ROWS, COLUMNS // 32), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    opened = model(tmp_path / "m", {"l.weight": codes, "l.weight_scale_inv": scales}, {"quant_method": "fp8"})
    assert_same(opened["l.weight"], fp8_reference(codes, scales, torch.bfloat16))


def test_fused_fp8_experts(tmp_path: Path) -> None:
    codes, scales = floats(4, ROWS, COLUMNS).to(torch.float8_e4m3fn), torch.rand(4, 3, 2)
    tensors = {"l.gate_up_proj": codes, "l.gate_up_proj_scale_inv": scales}
    settings = {"quant_method": "fp8", "weight_block_size": [32, 128]}
    expected = torch.stack([fp8_reference(*pair, torch.bfloat16) for pair in zip(codes, scales, strict=True)])
    assert_same(model(tmp_path / "m", tensors, settings)["l.gate_up_proj"], expected)


# -- compressed-tensors ------------------------------------------------------------------------------------------------


def compressed(path: Path, format: str, dtype: torch.dtype, **weights: Any) -> None:
    """Compress a weight as a format, and compare with what the library decompresses."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = floats(ROWS, COLUMNS, dtype=dtype)
    group = args.group_size or COLUMNS
    if args.strategy == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    elif args.strategy == "block":
        tiles = weight.reshape(ROWS // 32, 32, COLUMNS // 64, 64)
        low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
    else:
        tiles = weight.reshape(ROWS, COLUMNS // group, group)
        low, high = tiles.amin(-1), tiles.amax(-1)
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = torch.tensor([6.0 * 448.0 / 4.0])
    scale, zero_point = calculate_qparams(low, high, args, state.get("weight_global_scale"))
    state |= {"weight_scale": scale}
    if not args.symmetric:
        state["weight_zero_point"] = zero_point
    compressor = BaseCompressor.get_value_from_registry(format)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(stored, scheme)["weight"]
    settings = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}},
        "ignore": ["lm_head"],
    }
    tensors = {f"l.{name}": tensor for name, tensor in stored.items()}
    opened = model(path, {**tensors, "lm_head.weight": weight}, settings, str(dtype)[6:])
    assert sorted(opened) == ["l.weight", "lm_head.weight"]
    assert_same(opened["l.weight"], expected.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("strategy", "size"), [("group", {"group_size": 64}), ("channel", {})], ids=["group", "channel"]
)
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_packed_integers(
    bits: int, strategy: str, size: dict[str, int], symmetric: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": symmetric, **size}
    compressed(tmp_path / "m", "pack-quantized", dtype, **weights)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_plain_integers(bits: int, symmetric: bool, strategy: str, tmp_path: Path) -> None:
    size = {"group_size": 32} if strategy == "group" else {}
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": symmetric, **size}
    compressed(tmp_path / "m", "int-quantized" if bits == 8 else "naive-quantized", torch.bfloat16, **weights)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group", "block"])
def test_compressed_floats(strategy: str, tmp_path: Path) -> None:
    size = {"group": {"group_size": 32}, "block": {"block_structure": [32, 64]}}.get(strategy, {})
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, **size}
    compressed(tmp_path / "m", "float-quantized", torch.bfloat16, **weights)


@pytest.mark.parametrize(
    ("format", "weights"),
    [
        ("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
        ("mxfp4-pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
        ("mxfp6-pack-quantized", {"num_bits": 6, "strategy": "group", "group_size": 32}),
        ("mxfp8-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}),
    ],
)
def test_compressed_small_floats(format: str, weights: dict[str, Any], tmp_path: Path) -> None:
    scale = {"scale_dtype": "torch.float8_e4m3fn" if format.startswith("nv") else "torch.uint8"}
    compressed(tmp_path / "m", format, torch.bfloat16, type="float", symmetric=True, **weights, **scale)


# -- gpt-oss, GPTQ, AWQ, ModelOpt, BitNet, bitsandbytes ----------------------------------------------------------------


def test_gpt_oss(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (3, ROWS, COLUMNS // 32, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, ROWS, COLUMNS // 32), dtype=torch.uint8)
    tensors = {"mlp.experts.gate_up_proj_blocks": blocks, "mlp.experts.gate_up_proj_scales": scales}
    opened = model(tmp_path / "m", tensors, {"quant_method": "mxfp4"})
    assert_same(opened["mlp.experts.gate_up_proj"], convert_moe_packed_tensors(blocks, scales))


@pytest.mark.parametrize("format", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits: int, act_order: bool, format: str, tmp_path: Path) -> None:
    linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    group = 64
    own = linear(
        bits=bits,
        group_size=group,
        sym=False,
        desc_act=act_order,
        in_features=COLUMNS,
        out_features=ROWS,
        bias=False,
        register_buffers=True,
    )
    groups = COLUMNS // group
    index = torch.arange(COLUMNS, dtype=torch.int32) // group
    own.g_idx = index[torch.randperm(COLUMNS)] if act_order else index
    own.qweight = torch.randint(-(2**31), 2**31 - 1, own.qweight.shape, dtype=torch.int32)
    own.scales = torch.rand(groups, ROWS).half() + 0.01
    zeros = torch.randint(1, 1 << bits, (groups, ROWS), dtype=torch.int64)  # v1 cannot store 0
    stored = {each: pack_rows(zeros - int(each == "gptq"), bits) for each in ("gptq", "gptq_v2")}
    own.qzeros = stored["gptq_v2"]
    own.post_init()
    expected = own.dequantize_weight().T.half()
    tensors = {"l.qweight": own.qweight, "l.qzeros": stored[format], "l.scales": own.scales, "l.g_idx": own.g_idx}
    settings = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": format}
    opened = model(tmp_path / "m", tensors, settings, "float16")
    assert list(opened) == ["l.weight"]
    assert_same(opened["l.weight"], expected)


def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes of each row as a stream of bits in words of 32."""
    stream = ((codes[..., None] >> torch.arange(bits)) & 1).reshape(len(codes), -1).numpy().astype(np.uint8)
    return torch.from_numpy(np.packbits(stream, axis=1, bitorder="little").view(np.int32).copy())


def test_awq(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("awq")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("autoawq is not installed")
    path = Path(spec.submodule_search_locations[0]) / "utils" / "packing_utils.py"
    source = importlib.util.spec_from_file_location("packing_utils", path)
    assert source is not None
    assert source.loader is not None
    packing = importlib.util.module_from_spec(source)
    source.loader.exec_module(packing)
    qweight = torch.randint(-(2**31), 2**31 - 1, (COLUMNS, ROWS // 8), dtype=torch.int32)
    qzeros = torch.randint(-(2**31), 2**31 - 1, (COLUMNS // 64, ROWS // 8), dtype=torch.int32)
    scales = torch.rand(COLUMNS // 64, ROWS).half()
    expected = packing.dequantize_gemm(qweight, qzeros, scales, 4, 64).T
    settings = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
    opened = model(tmp_path / "m", {"l.qweight": qweight, "l.qzeros": qzeros, "l.scales": scales}, settings, "float16")
    assert_same(opened["l.weight"], expected)


def test_modelopt_nvfp4(tmp_path: Path) -> None:
    packed = torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8)
    scales, whole = (torch.rand(ROWS, COLUMNS // 16) * 400).to(torch.float8_e4m3fn), torch.tensor(0.00123)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(ROWS, COLUMNS).int()
    values = magnitudes[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    factors = (scales.float() * whole).repeat_interleave(16, 1)
    tensors = {"l.weight": packed, "l.weight_scale": scales, "l.weight_scale_2": whole, "l.input_scale": whole.clone()}
    opened = model(tmp_path / "m", tensors, {"quant_method": "modelopt", "quant_algo": "NVFP4"})
    assert list(opened) == ["l.weight"]
    assert_same(opened["l.weight"], (values * factors).bfloat16())


@pytest.mark.parametrize("linear_class", ["bitlinear", "autobitlinear"])
def test_bitnet(linear_class: str, tmp_path: Path) -> None:
    from transformers.integrations.bitnet import pack_weights

    codes, scale = torch.randint(-1, 2, (ROWS, COLUMNS)), torch.tensor([1.7], dtype=torch.bfloat16)
    tensors = {"l.weight": pack_weights(codes.clone()), "l.weight_scale": scale}
    opened = model(tmp_path / "m", tensors, {"quant_method": "bitnet", "linear_class": linear_class})
    wide = codes.float() * scale.float() if linear_class == "autobitlinear" else codes.float() / scale.float()
    assert_same(opened["l.weight"], wide.bfloat16())


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
@pytest.mark.parametrize("columns", [COLUMNS, 96])
def test_bitsandbytes_4_bits(columns: int, scheme: str, nested: bool, block: int, tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    weight = floats(ROWS, columns, dtype=torch.bfloat16)
    codes, state = functional.quantize_4bit(weight, blocksize=block, compress_statistics=nested, quant_type=scheme)
    if columns % block:  # the kernel for CPUs begins a block with each row, but quantizing does not
        largest = state.absmax
        if nested:
            largest = functional.dequantize_blockwise(largest, state.state2) + state.offset
        nibbles = torch.stack([codes >> 4, codes & 15], -1).flatten().int()
        values = state.code[nibbles] * largest.repeat_interleave(block)[: weight.numel()]
        expected = values.reshape(weight.shape).bfloat16()
        assert (expected - weight).abs().max() < 1
    else:
        expected = functional.dequantize_4bit(codes, state)
    parts = {f"l.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    opened = model(tmp_path / "m", {"l.weight": codes, **parts}, settings)
    assert list(opened) == ["l.weight"]
    assert_same(opened["l.weight"], expected)


def test_bitsandbytes_int8(tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    codes, scales, _ = functional.int8_vectorwise_quant(floats(ROWS, COLUMNS).half())
    expected = functional.int8_vectorwise_dequant(codes, scales)
    tensors = {"l.weight": codes, "l.SCB": scales, "l.weight_format": torch.tensor(0, dtype=torch.uint8)}
    opened = model(tmp_path / "m", tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert list(opened) == ["l.weight"]
    assert_same(opened["l.weight"], expected.bfloat16())
