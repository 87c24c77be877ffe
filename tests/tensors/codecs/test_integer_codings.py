"""The integer codings against NumPy, and their parts in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.errors import FormatError, ShapeError, UsageError
from lbrx.files.checkpoint.integer_parts import QUANTIZATION_KEY
from lbrx.tensors.coded import SCHEMES

Floats = npt.NDArray[np.float32]


def reference(values: Floats, bits: int, size: int, symmetric: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """Codes, scales, zero points and values in NumPy, all f32."""
    groups = values.reshape(*values.shape[:-1], -1, size)
    bottom, top = np.float32(-(1 << (bits - 1))), np.float32((1 << (bits - 1)) - 1)
    if symmetric:
        scales = np.abs(groups).max(-1) / top
        zero_points = np.zeros_like(scales)
    else:
        low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
        scales = (high - low) / np.float32((1 << bits) - 1)
        with np.errstate(invalid="ignore"):
            zero_points = np.where(scales == 0, 0, np.clip(np.rint(bottom - low / scales), bottom, top))
    zero_points = zero_points.astype(np.float32)
    safe = np.where(scales == 0, np.float32(1), scales)[..., None]
    codes = np.where(
        scales[..., None] == 0, 0, np.clip(np.rint(groups / safe) + zero_points[..., None], bottom, top)
    ).astype(np.float32)
    back = ((codes - zero_points[..., None]) * scales[..., None]).reshape(values.shape)
    return codes.reshape(values.shape), scales, zero_points, back


def check(values: Floats, scheme: str, size: int, symmetric: bool) -> None:
    quantized = lbrx.tensor(values).quantize(scheme, group_size=size, symmetric=symmetric)
    info = quantized.quantization
    assert info is not None
    codes, scales, zero_points, back = reference(values, SCHEMES[scheme], size, symmetric)
    assert np.array_equal(info.scales.numpy(), scales)
    assert (info.zero_points is None) == symmetric
    if info.zero_points is not None:
        assert np.array_equal(info.zero_points.numpy(), zero_points)
    raw = quantized.raw().numpy()
    per_byte = 8 // SCHEMES[scheme]
    mask = (1 << SCHEMES[scheme]) - 1
    unpacked = np.stack([(raw >> (SCHEMES[scheme] * place)) & mask for place in range(per_byte)], -1).reshape(-1)
    assert np.array_equal(unpacked, codes.astype(np.int64).reshape(-1) & mask)
    assert np.array_equal(quantized.numpy(), back)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", [8, 32, 128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_integers_against_numpy(scheme: str, size: int, symmetric: bool) -> None:
    values = np.random.default_rng(size).standard_normal((5, 256)).astype(np.float32)
    values[1] = 0
    values[2] = np.abs(values[2]) + 3
    values[3] *= np.float32(1e-20)
    check(values, scheme, size, symmetric)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=16, max_size=16),
    st.sampled_from(list(SCHEMES)),
    st.booleans(),
)
def test_any_values_against_numpy(values: list[float], scheme: str, symmetric: bool) -> None:
    numbers = np.array(values, np.float32)
    numbers[np.abs(numbers) < 1e-30] = 0
    check(numbers, scheme, 16, symmetric)


def test_error_is_at_most_half_a_step() -> None:
    values = np.random.default_rng(9).standard_normal((3, 128)).astype(np.float32)
    for symmetric in (True, False):
        quantized = lbrx.tensor(values).quantize("int8", group_size=32, symmetric=symmetric)
        assert quantized.quantization is not None
        step = np.repeat(quantized.quantization.scales.numpy(), 32, axis=-1)
        bound = 0.5001 if symmetric else 1.0001  # the zero point is rounded too
        assert (np.abs(quantized.numpy() - values) <= bound * step).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_files_keep_the_coding(scheme: str, symmetric: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(7).standard_normal((6, 128)).astype(np.float32)
    quantized = lbrx.tensor(values).quantize(scheme, group_size=32, symmetric=symmetric)
    lbrx.save(tmp_path / "a.safetensors", {"w": quantized, "b": lbrx.tensor(values)})
    model = lbrx.open(tmp_path / "a.safetensors")
    assert sorted(model) == ["b", "w"]
    assert len(model) == 2
    again = model["w"]
    assert again.quantization is not None
    assert (again.type_name, again.quantization.group_size, again.name) == (scheme, 32, "w")
    assert np.array_equal(again.numpy(), quantized.numpy())
    lbrx.save(tmp_path / "b.safetensors", dict(model), model.metadata)
    assert np.array_equal(lbrx.open(tmp_path / "b.safetensors")["w"].numpy(), quantized.numpy())
    lbrx.save(tmp_path / "c.safetensors", {"w": again.dequantize()}, model.metadata)
    plain = lbrx.open(tmp_path / "c.safetensors")
    assert plain["w"].type_name == "f32"
    assert QUANTIZATION_KEY not in plain.metadata


def test_shapes_and_options_are_checked(tmp_path: Path) -> None:
    tensor = lbrx.tensor(np.zeros((2, 96), np.float32))
    with pytest.raises(ShapeError, match="in groups of 64; expected rows of whole groups"):
        tensor.quantize("int4")
    with pytest.raises(UsageError, match="the group size is 12; expected a multiple of 8"):
        tensor.quantize("int4", group_size=12)
    with pytest.raises(UsageError, match="int4 does not support an importance matrix"):
        tensor.quantize("int4", np.ones(96), group_size=32)
    coded = tensor.quantize("int4", group_size=32)
    with pytest.raises(UsageError, match="coded as int4, which gguf files do not support"):
        lbrx.save(tmp_path / "a.gguf", {"w": coded})
    with pytest.raises(UsageError, match=r"'w.scales' names both a tensor and a part"):
        lbrx.save(tmp_path / "a.safetensors", {"w": coded, "w.scales": tensor})


@pytest.mark.parametrize(
    ("codings", "message"),
    [
        ("[]", "lbrx.quantization"),
        ({"w": 1}, "expected a 'scheme'"),
        ({"w": {"scheme": "int3", "scales": "s"}}, "expected a 'scheme'"),
        ({"w": {"scheme": "int8"}}, "expected a 'scheme'"),
        ({"w": {"scheme": "int8", "scales": 1}}, "expected a 'scheme'"),
        ({"w": {"scheme": "int8", "scales": "missing"}}, "coded with 'missing', which is missing"),
        ({"w": {"scheme": "int4", "scales": "s"}}, "is i8, expected i4 as a part"),
        ({"w": {"scheme": "int8", "scales": "w"}}, "is i8, expected f32 as a part"),
        ({"w": {"scheme": "int8", "scales": "t"}}, "expected one for each group"),
        ({"w": {"scheme": "int8", "scales": "s", "zero_points": "w"}}, "and zero points of shape"),
    ],
)
def test_codings_that_do_not_fit_are_refused(tmp_path: Path, codings: Any, message: str) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {
        "w": lbrx.tensor(np.zeros((2, 32), np.int8)),
        "s": lbrx.tensor(np.zeros((2, 4), np.float32)),
        "t": lbrx.tensor(np.zeros((2, 5), np.float32)),
    }
    lbrx.save(path, tensors, {"note": "placeholder"})
    header_length = int.from_bytes(path.read_bytes()[:8], "little")
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + header_length])
    header["__metadata__"] = {QUANTIZATION_KEY: codings if isinstance(codings, str) else json.dumps(codings)}
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[8 + header_length :])
    with pytest.raises(FormatError, match=message):
        lbrx.open(path)["w"]


@pytest.mark.parametrize("shape", [(3, 0), (0, 64), (0,)])
def test_tensors_without_elements(shape: tuple[int, ...], tmp_path: Path) -> None:
    quantized = lbrx.tensor(np.zeros(shape, np.float32)).quantize("int4", symmetric=False)
    lbrx.save(tmp_path / "empty.safetensors", {"t": quantized})
    for each in (quantized, lbrx.open(tmp_path / "empty.safetensors")["t"]):
        assert each.quantization is not None
        assert each.quantization.group_size == 64
        assert each.dequantize().numpy().shape == shape
