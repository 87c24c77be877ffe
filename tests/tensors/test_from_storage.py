"""Tensors over storages of every kind, arrays over storages, parts of storages, and ranges of tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx import metal
from lbrx.errors import ShapeError, UsageError
from lbrx.tensors.storage import CpuStorage, MmapStorage, Storage, StoragePiece
from lbrx.tensors.storage_views import JoinedStorage
from support.metal_passes import device as emulated

VALUES = np.arange(600, dtype=np.float32)


def _mapped(path: Path) -> Storage:
    VALUES.tofile(path)
    return MmapStorage.from_file(path)


def _joined(_path: Path) -> Storage:
    return JoinedStorage([CpuStorage.from_array(VALUES[:7]), CpuStorage.from_array(VALUES[7:])])


def _on_metal(path: Path) -> Storage:
    return metal.MetalStorage.from_storage(emulated(), _mapped(path))


KINDS: list[Callable[[Path], Storage]] = [_mapped, _joined, lambda _: CpuStorage.from_array(VALUES), _on_metal]


@pytest.mark.parametrize("kind", KINDS, ids=["mapped", "joined", "memory", "metal"])
@pytest.mark.parametrize("offset", [0, 8, 401])
def test_every_storage(tmp_path: Path, kind: Callable[[Path], Storage], offset: int) -> None:
    storage = kind(tmp_path / "raw")
    expected = np.frombuffer(VALUES.tobytes()[offset : offset + 800], np.float32).reshape(20, 10)
    with metal.using_metal(emulated()):
        tensor = lbrx.Tensor.from_storage(storage, "f32", (20, 10), offset, name="w")
        assert (tensor.name, tensor.shape, tensor.device) == ("w", (20, 10), storage.device)
        assert np.array_equal(tensor.numpy(), expected)
        assert np.array_equal((tensor[3:] + 0).numpy(), expected[3:])
    with pytest.raises(ShapeError, match=r"needs 2400 bytes from byte 4, but the storage has 2400"):
        lbrx.Tensor.from_storage(storage, "f32", 600, 4)
    with pytest.raises(ShapeError, match="from byte -4"):
        lbrx.Tensor.from_storage(storage, "f32", 1, -4)


def test_memory_is_shared() -> None:
    array = VALUES.copy()
    tensor = lbrx.Tensor.from_storage(CpuStorage.from_array(array), "f32", (10, 10), 400)
    array[100] = -7
    assert tensor.numpy()[0, 0] == -7
    assert np.shares_memory(tensor.numpy(), array)


def test_a_mapped_storage_is_used_by_the_gpu_without_a_copy(tmp_path: Path) -> None:
    with metal.using_metal(emulated()):
        counts = metal.transfers(emulated())
        counts.reset()
        there = lbrx.Tensor.from_storage(_mapped(tmp_path / "raw"), "f32", (20, 10), 400).to_device("metal")
        assert (counts.copied_bytes, counts.wrapped_bytes) == (0, 800)
        part = lbrx.Tensor.from_storage(there.storage, "f32", (3, 5), 40)  # type: ignore[arg-type]
        assert part.device == "metal"
        assert np.array_equal((part * 2).numpy(), VALUES[110:125].reshape(3, 5) * 2)
        assert (counts.copied_bytes, counts.wrapped_bytes, counts.dispatches) == (0, 800, 1)


def test_a_part_keeps_the_memory_of_the_gpu() -> None:
    with metal.using_metal(emulated()):
        whole = metal.MetalStorage.empty(emulated(), 2400)
        whole.copy_from_cpu(VALUES)
        part = whole.piece(400, 16)
        lent = emulated().pool.statistics().lent_bytes
        del whole
        assert emulated().pool.statistics().lent_bytes == lent
        assert part.as_slice("f32").tolist() == [100, 101, 102, 103]


def test_what_is_not_a_storage() -> None:
    with pytest.raises(UsageError, match=r"expected a storage, not a ndarray; lbrx\.tensor\(\) takes arrays"):
        lbrx.Tensor.from_storage(VALUES, "f32", (2,))  # type: ignore[arg-type]
    for wrong in ([1.0], np.array([None])):
        with pytest.raises(UsageError, match="expected a NumPy array of numbers"):
            CpuStorage.from_array(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[3]], ids=["mapped", "memory", "metal"])
def test_arrays_over_a_storage(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    storage = kind(tmp_path / "raw")
    array = storage.as_array("f32", (2, 3), offset=8)
    assert array.tolist() == [[2, 3, 4], [5, 6, 7]]
    assert np.shares_memory(array, storage.as_slice("f32"))
    assert storage.as_slice("f32", 3, 5).tolist() == [3, 4]
    assert storage.as_slice("f32").size == 600
    assert storage.as_array("f32", (1,), offset=3).tolist() == [np.frombuffer(VALUES.tobytes()[3:7], np.float32)[0]]
    with pytest.raises(ShapeError, match="needs 4000 bytes, but the storage has 2400, 2396 from there on"):
        storage.as_array("f32", (1000,), offset=4)
    with pytest.raises(ShapeError, match="cannot go from element 5 to 3"):
        storage.as_slice("f32", 5, 3)
    with pytest.raises(ShapeError, match="i4 elements share bytes"):
        storage.as_slice("i4")
    with pytest.raises(ShapeError, match="a storage of 6 bytes does not consist of whole f32 elements"):
        storage.piece(0, 6).as_slice("f32")
    with pytest.raises(ShapeError, match="bytes 2398 to 2402 are outside a storage of 2400 bytes"):
        storage.piece(2398, 4)


def test_a_part_of_a_storage_that_is_read() -> None:
    part = StoragePiece(_joined(Path()), 20, 16)
    assert part.read_at(4, 8).view(np.float32).tolist() == [6, 7]
    assert part.piece(8, 8).read_at(0, 8).view(np.float32).tolist() == [7, 8]


# -- ranges -------------------------------------------------------------------------------------------------------


def test_ranges_are_slices_that_must_fit() -> None:
    x = lbrx.tensor(np.arange(20).reshape(4, 5))
    assert x.view(range(1, 3)).tolist() == x[1:3].tolist()
    assert x.view(range(3, -1, -1), range(0, 5, 2)).tolist() == x[::-1, ::2].tolist()
    assert x.view(slice(None), range(2, 2)).shape == (4, 0)
    view = x.view(range(2))
    assert isinstance(view, lbrx.TensorView)
    assert view.is_view
    assert view.storage is x.storage
    with pytest.raises(ShapeError, match=r"range\(2, 5\) does not fit into axis 0 of size 4"):
        x.view(range(2, 5))
    with pytest.raises(ShapeError, match=r"range\(-1, 2\) does not fit"):
        x.view(range(-1, 2))
    with pytest.raises(ShapeError, match=r"3 ranges for a tensor of shape \(4, 5\)"):
        x.view(range(1), range(1), range(1))
    with pytest.raises(UsageError, match=r"view\(\) takes ranges, not 2; reshape\(\) changes the shape"):
        x.view(2, 10)  # type: ignore[arg-type]


def test_a_device_is_its_name() -> None:
    device = lbrx.tensor([1.0]).device
    assert isinstance(device, lbrx.Device)
    assert (device, str(device), f"{device}", hash(device)) == ("cpu", "cpu", "cpu", hash("cpu"))
    assert repr(lbrx.Device("metal")) == "Device('metal')"
    with pytest.raises(UsageError, match=r"unknown device 'metall'.*did you mean 'metal'"):
        lbrx.Device("metall")


@pytest.mark.parametrize("name", ["metal", "numpy", "cpu"])
def test_scales_and_zero_points_move_with_their_tensor(name: str) -> None:
    values = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    with metal.using_metal(emulated()):
        coded = lbrx.tensor(values).quantize("int4", symmetric=False).realize()
        info, moved = coded.quantization, coded.to_device(name).quantization
        assert info is not None
        assert moved is not None
        assert (moved.scales.device, moved.zero_points.device) == (name, name)
        assert (moved.scheme, moved.bits, moved.group_size) == (info.scheme, info.bits, info.group_size)
        assert np.array_equal(moved.scales.numpy(), info.scales.numpy())
        back = coded.to_device(name).to_device("cpu").quantization
        assert back is not None
        assert back.scales.device == "cpu"


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_blocks_are_made_on_the_way_to_a_device(name: str) -> None:
    values = lbrx.tensor(np.random.default_rng(13).standard_normal((3, 256)).astype(np.float32))
    for type_name in ("q8_0", "q4_k", "mxfp4"):
        there = values.quantize(type_name).to_device(name)
        assert there.device == name
        assert np.array_equal(there.raw().numpy(), values.quantize(type_name).raw().numpy())
