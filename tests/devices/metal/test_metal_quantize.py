"""`lbrx quantize --device metal`: Q8_0 and Q4_0 blocks are made on the device, with the bytes of the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.devices.metal.context.current import metal_context
from lbrx.devices.metal.context.transfers import transfers
from lbrx.devices.metal.ops.arrays import BLOCKS
from lbrx.devices.metal.ops.blocks import ENCODABLE
from lbrx.engine.device import CpuFallback
from lbrx.tensors.codecs import mlx
from lbrx.tensors.codecs.mlx import encoded_mlx
from support.metal_passes import on_metal
from support.metal_shaders import needs_clang
from support.strategies import numpy_type

pytestmark = needs_clang
METADATA = {"general.architecture": "llama", "llama.block_count": 1, "llama.attention.head_count": 4}
MATRICES = {"token_embd.weight": (40, 256), "blk.0.ffn_down.weight": (256, 512), "blk.0.ffn_up.weight": (512, 256)}
SOURCE_TYPES = ("bf16", "f16", "f32")


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBRX_METAL_DRIVER", "emulated")
    monkeypatch.setattr("lbrx.devices.metal.context.current._context", None)
    monkeypatch.setattr("lbrx.engine.device._warned", set())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    values = {
        name: lbrx.normal(shape, 1, name).to(type_name)
        for (name, shape), type_name in zip(MATRICES.items(), SOURCE_TYPES, strict=True)
    }
    values["blk.0.attn_norm.weight"] = lbrx.normal((256,), 1, "norm")
    lbrx.save(tmp_path / "in.gguf", values, METADATA)
    return tmp_path / "in.gguf"


def quantized(model: Path, device: str, *options: str) -> bytes:
    out = model.with_name(f"{device}.gguf")
    assert run(["quantize", str(model), str(out), *options, "--json", "--device", device]) == 0
    return out.read_bytes()


def warnings_of(printed: str) -> list[str]:
    events = [json.loads(line) for line in printed.splitlines()]
    return [event["message"] for event in events if event["event"] == "warning"]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("coding", ENCODABLE)
def test_blocks_are_made_on_the_device(coding: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = quantized(model, "cpu", "--to", coding, "--pure")
    assert quantized(model, "metal", "--to", coding, "--pure") == expected
    assert warnings_of(capsys.readouterr().out) == []
    counts = transfers(metal_context())
    elements = sum(int(np.prod(shape)) for shape in MATRICES.values())
    assert counts.dispatches == len(MATRICES)
    assert (counts.copied_bytes, counts.read_bytes) == (0, counts.wrapped_bytes)
    assert counts.written_bytes == counts.returned_bytes == elements // 32 * BLOCKS[coding][1]


@pytest.mark.usefixtures("emulated")
def test_other_types_are_left_to_the_cpu_with_one_warning(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--to", "q4_k_s", "--tensor-type", "ffn_up=q8_0")
    expected = quantized(model, "cpu", *options)
    assert quantized(model, "metal", *options) == expected
    types = {tensor.type_name for tensor in lbrx.open(model.with_name("metal.gguf")).values()}
    assert {"q4_k", "q8_0", "f32"} <= types
    left = sorted(types - {"q8_0", "f32"})
    expected_warnings = [f"computed partly on the CPU: the Metal backend cannot encode {name} blocks" for name in left]
    assert warnings_of(capsys.readouterr().out) == expected_warnings


@pytest.mark.usefixtures("emulated")
def test_values_that_are_not_finite_are_seen(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = dict(lbrx.open(model))
    bad = np.array(tensors["blk.0.ffn_up.weight"].numpy())
    bad[3, 7:9], bad[100, 100] = np.nan, -np.inf
    lbrx.save(model.with_name("bad.gguf"), {**tensors, "blk.0.ffn_up.weight": lbrx.tensor(bad)}, METADATA)
    found, files = [], []
    for device in ("cpu", "metal"):
        files.append(quantized(model.with_name("bad.gguf"), device, "--to", "q8_0"))
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        found.append([event["nonfinite"] for event in events if "nonfinite" in event])
    assert files[1] == files[0]
    assert found[1] == found[0]
    assert list(found[1][0]) == ["blk.0.ffn_up.weight"]


def blocks_of(tensor: lbrx.Tensor) -> bytes:
    storage = tensor.realize().storage
    assert storage is not None
    return bytes(storage.read_at(0, storage.nbytes))


VALUES = np.random.default_rng(4).standard_normal((700, 1024)).astype(np.float32)
MAKERS: dict[str, Callable[[lbrx.Tensor], lbrx.Tensor]] = {
    "an expression": lambda x: x * 0.3 + x.to("bf16"),
    "a transposed view": lambda x: x[:, :].T[:, :672],
    "rows minus their mean": lambda x: x - x.mean(axis=-1, keepdims=True),
    "joined tensors": lambda x: lbrx.concatenate([x[:3], x * 2, x[5:6]]),
    "stored values": lambda x: x,
    "halves": lambda x: x.to("f16").realize(),
    "three axes": lambda x: x.reshape(7, 100, 1024) * 2,
}


@pytest.mark.parametrize("coding", ENCODABLE)
@pytest.mark.parametrize("maker", MAKERS)
def test_whatever_is_computed_is_encoded_where_it_is(maker: str, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.devices.metal.run.CHUNK_BYTES", 1 << 20)
    make: Any = MAKERS[maker]
    expected = blocks_of(make(lbrx.tensor(VALUES)).quantize(coding))
    x = lbrx.tensor(VALUES)
    with on_metal() as counts:
        values = make(x)
        counts.reset()
        found = blocks_of(values.quantize(coding))
    assert found == expected
    assert counts.returned_bytes == len(expected)
    assert counts.dispatches > 2  # several chunks


def test_numbers_that_cannot_be_bound_where_they_are_go_through_a_pass() -> None:
    values = VALUES.astype(numpy_type("bf16")).reshape(-1)
    with on_metal() as counts:
        on_device = lbrx.tensor(values).to_device("metal")
        for first, dispatches in ((0, 1), (2, 1), (1, 2)):  # a buffer's offset is a multiple of four bytes
            part = slice(first, first + 640)
            counts.reset()
            found = blocks_of(on_device[part].quantize("q8_0"))
            assert counts.dispatches == dispatches
            with lbrx.using(device="cpu"):
                assert found == blocks_of(lbrx.tensor(values[part].copy()).quantize("q8_0"))


def test_an_importance_matrix_is_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.engine.device._warned", set())
    weights = np.linspace(0.5, 2, 1024, dtype=np.float32)
    expected = blocks_of(lbrx.tensor(VALUES).quantize("q4_0", weights))
    with (
        on_metal(),
        pytest.warns(CpuFallback, match="the Metal backend cannot encode q4_0 blocks with an importance matrix"),
    ):
        assert blocks_of(lbrx.tensor(VALUES).quantize("q4_0", weights)) == expected


def test_codes_of_groups_are_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> list[bytes]:
        coded = encoded_mlx(lbrx.tensor(VALUES), mlx.MlxMode())
        tensors = (coded.weight, coded.scales, coded.biases)
        return [part.raw().numpy().tobytes() for part in tensors if part is not None]

    monkeypatch.setattr("lbrx.engine.device._warned", set())
    expected = parts()
    with on_metal(), pytest.warns(CpuFallback, match="the Metal backend cannot encode groups with scales") as warned:
        assert parts() == expected
    assert len(warned) == 1
