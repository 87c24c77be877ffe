"""MetalStorage: tensors to the device and back, mapped files without a copy, results that stay there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.base.system import page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import metal_context, using_metal
from lbrx.devices.metal.context.storage import MetalStorage, wrapped_windows
from lbrx.devices.metal.context.transfers import Transfers, transfers
from lbrx.devices.metal.driver.errors import KernelFault, MetalError, MetalUnavailable
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.errors import DTypeError, ShapeError, UsageError
from support.metal_passes import assert_same_bits, device
from support.metal_shaders import driver, needs_clang

pytestmark = needs_clang
RANDOM = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def counts() -> Iterator[Transfers]:
    found = transfers(device())
    found.reset()
    with using_metal(device()):
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tensors, the second of which begins in the middle of a page."""
    path = tmp_path_factory.mktemp("metal") / "model.safetensors"
    values = RANDOM.standard_normal((300, 70)).astype(np.float32)
    lbrx.save(path, {"first": lbrx.tensor(values[:7], "bf16"), "second": lbrx.tensor(values)})
    return path


def test_there_and_back(counts: Transfers) -> None:
    for name in ("f32", "bf16", "i8", "i4", "f64"):
        here = lbrx.tensor(np.arange(-6, 6).reshape(3, 4), name, name="w")
        there = here.to_device("metal")
        back = there.to_device("cpu")
        assert (here.device, there.device, back.device) == ("cpu", "metal", "cpu")
        assert there.name == back.name == "w"
        assert back.dtype is here.dtype
        assert_same_bits(back.numpy(), here.numpy())
        assert_same_bits(there.numpy(), here.numpy())
    assert counts.copied_bytes == 12 * (4 + 2 + 1 + 8) + 6
    assert there.to_device("metal").storage is there.storage


def test_a_mapped_file_is_used_where_it_is(file: Path, counts: Transfers) -> None:
    opened = lbrx.open(file)
    there = opened["second"].to_device("metal")
    assert counts.wrapped_bytes == there.nbytes
    assert_same_bits((there * 2).numpy(), opened["second"].numpy() * np.float32(2))
    assert counts.copied_bytes == 0
    assert counts.dispatches == 1
    storage = there.storage
    assert isinstance(storage, MetalStorage)
    assert storage.is_mapped
    binding = storage.binding(0, 8)
    assert binding.buffer.nbytes % page_bytes() == 0
    assert binding.offset % page_bytes() != 0
    with pytest.raises(UsageError, match="mapped file, which cannot be written"):
        storage.copy_from_cpu(np.zeros(4, np.uint8), offset=0)


def test_elements_that_are_not_aligned_are_copied(tmp_path: Path, counts: Transfers) -> None:
    path = tmp_path / "raw"
    path.write_bytes(b"\0" * 3 + np.arange(100, dtype=np.float32).tobytes())
    storage = lbrx.MmapStorage.from_file(path, offset=3)
    expr = lbrx.tensor(np.zeros(100, np.float32)).expr
    x = lbrx.Tensor(type(expr)(storage, lbrx.dtype("f32"), lbrx.Layout.contiguous((100,))))
    for tensor in (x, x.to_device("metal")):
        counts.reset()
        with lbrx.using(device="metal"):
            assert_same_bits((tensor + 1).numpy(), np.arange(1, 101, dtype=np.float32))
        assert (counts.copied_bytes, counts.dispatches) == (400, 1)


def test_what_is_larger_than_a_buffer_becomes_overlapping_windows(tmp_path: Path) -> None:
    page = page_bytes()
    path = tmp_path / "raw"
    data = RANDOM.integers(0, 256, 11 * page + 100, np.uint8)
    path.write_bytes(data.tobytes())
    storage = lbrx.MmapStorage.from_file(path, offset=50)
    small = MetalContext(EmulatedDriver(info=replace(driver().info, max_buffer_bytes=4 * page)))
    windows = wrapped_windows(small, storage, 0, storage.nbytes)
    assert len(windows) > 2
    assert all(window.buffer.nbytes <= 4 * page for window in windows)
    there = MetalStorage.from_storage(small, storage)
    for start in range(0, storage.nbytes - 2 * page, page // 3):
        binding = there.binding(start, start + page)
        found = binding.buffer.view()[binding.offset : binding.offset + page]
        np.testing.assert_array_equal(found, data[50 + start : 50 + start + page])
    np.testing.assert_array_equal(there.read_at(3, 9 * page), data[53 : 53 + 9 * page])
    with pytest.raises(MetalError, match="do not lie in one buffer"):
        there.binding(0, 9 * page)


def test_results_stay_on_the_device_and_nobody_waits(counts: Transfers) -> None:
    a = RANDOM.standard_normal((50, 40)).astype(np.float32)
    x = lbrx.tensor(a).to_device("metal")
    y = (x * 2 + 1).realize()
    z = (y - x).realize()
    assert (y.device, z.device, (y + z).device) == ("metal", "metal", "metal")
    assert counts.dispatches == 2
    assert counts.returned_bytes == 0
    storage = z.storage
    assert isinstance(storage, MetalStorage)
    assert storage.binding(0, 4).buffer.last_use is not None
    assert_same_bits(z.numpy(), (a * np.float32(2) + np.float32(1)) - a)
    assert counts.copied_bytes == a.nbytes


def test_expressions_are_computed_where_they_go(counts: Transfers) -> None:
    a = np.arange(5, dtype=np.float32)
    here, there = lbrx.tensor(a), lbrx.tensor(a).to_device("metal")
    assert ((here * 2).to_device("cpu").device, (there * 2).to_device("cpu").device) == ("cpu", "cpu")
    assert counts.dispatches == 1  # what comes from the device is computed there
    for tensor, value in ((here.sum(), 10.0), (there.sum() + 1, 11.0)):
        moved = tensor.to_device("metal")
        assert (moved.device, moved.shape, float(moved)) == ("metal", (), value)


def test_an_array_keeps_the_memory_of_its_tensor(counts: Transfers) -> None:  # noqa: ARG001
    array = (lbrx.tensor(np.arange(1000, dtype=np.float32)).to_device("metal") * 2).realize().numpy()
    gc.collect()
    others = [(lbrx.tensor(np.zeros(1000, np.float32)).to_device("metal") * 1).realize() for _ in range(3)]
    assert_same_bits(array, np.arange(1000, dtype=np.float32) * 2)
    assert len(others) == 3


def test_memory_goes_back_to_the_pool() -> None:
    lent = device().pool.statistics().lent_bytes
    x = lbrx.tensor(np.zeros(100_000, np.float32)).to_device("metal")
    assert device().pool.statistics().lent_bytes >= lent + 400_000
    del x
    gc.collect()
    assert device().pool.statistics().lent_bytes == lent


def test_quantization_survives(counts: Transfers) -> None:
    values = RANDOM.standard_normal((4, 64)).astype(np.float32)
    for scheme in ("q8_0", "int4"):
        here = lbrx.tensor(np.tile(values, (1, 4)), name="w").quantize(scheme).realize()
        there = here.to_device("metal")
        assert there.type_name == here.type_name == there.to_device("cpu").type_name
        assert (there.quantization is here.quantization) == (scheme == "q8_0")  # int4 has scales of its own
        assert there.nbytes == here.nbytes
        assert_same_bits(there.numpy(), here.numpy())
        assert_same_bits((there.dequantize() * 2).numpy(), here.numpy() * np.float32(2))
    assert counts.copied_bytes > 0


def test_bytes_can_be_put_in_and_taken_out() -> None:
    storage = MetalStorage.empty(device(), 10)
    storage.copy_from_cpu(np.arange(10, dtype=np.uint8))
    storage.copy_from_cpu(np.full(2, 77, np.uint8), offset=3)
    assert storage.copy_to_cpu().tolist() == [0, 1, 2, 77, 77, 5, 6, 7, 8, 9]
    with pytest.raises(ShapeError, match="bytes 9 to 11 are outside a storage of 10"):
        storage.copy_from_cpu(np.zeros(2, np.uint8), offset=9)


def test_arrays_of_any_dtype_keep_their_bytes(counts: Transfers) -> None:
    storage = MetalStorage.empty(device(), 16)
    for array in (np.array([1.5, 2.5, 3.5, 300], np.float32), np.array([[7, -1]]), np.zeros((2, 4), np.float16)):
        storage.copy_from_cpu(array)
        assert storage.copy_to_cpu().tobytes() == array.tobytes()
        out = np.empty_like(array)
        assert storage.copy_to_cpu(out) is out
        assert_same_bits(out, array)
    assert (counts.copied_bytes, counts.returned_bytes) == (48, 96)
    storage.copy_from_cpu(np.array([9, 8], np.float32), offset=8)
    assert storage.copy_to_cpu(dtype="f32").tolist() == [0, 0, 9, 8]
    assert storage.copy_to_cpu(dtype="f32", offset=12).tolist() == [8]


def test_arrays_that_cannot_be_copied_are_refused_and_change_nothing() -> None:
    storage = MetalStorage.empty(device(), 16)
    storage.copy_from_cpu(np.arange(4, dtype=np.float32))
    read_only = np.zeros(4, np.float32)
    read_only.flags.writeable = False
    for wrong, error, message in (
        (np.zeros(4), ShapeError, "an array of 32 bytes does not fill a storage of 16; expected the same size"),
        (np.zeros(3, np.float32), ShapeError, "an array of 12 bytes does not fill"),
        (np.zeros((2, 4), np.float32)[:, ::2], ShapeError, "is not C-contiguous; call numpy.ascontiguousarray"),
        (np.zeros(4, ">f4"), DTypeError, "has the other byte order"),
        (np.zeros(2, object), DTypeError, "no plain elements"),
        (np.zeros(2, np.complex64), DTypeError, "an array of complex64 has no plain elements"),
        ([1.0, 2.0], UsageError, "cannot copy a list; expected a NumPy array"),
    ):
        for copy in (storage.copy_from_cpu, storage.copy_to_cpu):
            with pytest.raises(error, match=message):
                copy(wrong)  # type: ignore[operator]
    with pytest.raises(DTypeError, match="an array of int32 cannot be copied as f32"):
        storage.copy_from_cpu(np.zeros(4, np.int32), dtype="f32")
    with pytest.raises(UsageError, match="out is read-only"):
        storage.copy_to_cpu(read_only)
    with pytest.raises(ShapeError, match="bytes 20 to 20 are outside"):
        storage.copy_to_cpu(offset=20)
    assert storage.copy_to_cpu(dtype="f32").tolist() == [0, 1, 2, 3]
    assert repr(storage) == "MetalStorage(16 B)"


def test_a_fault_tells_kernel_and_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    lent = device().pool.statistics().lent_bytes
    x = lbrx.tensor(np.ones((64, 64), np.float32))
    monkeypatch.setattr("lbrx.devices.metal.inputs.element_span", lambda *_: (0, 100))
    with (
        lbrx.using(device="metal"),
        pytest.raises(KernelFault, match=r"(?s)kernel 'pass_\w+'.*leaf0.*pass over \(64, 64\)"),
    ):
        (x * 2).numpy()
    monkeypatch.undo()
    assert device().pool.statistics().lent_bytes == lent
    with lbrx.using(device="metal"):
        assert_same_bits((x * 2).numpy(), np.full((64, 64), 2, np.float32))


def test_unknown_devices_and_machines_without_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    x = lbrx.tensor(np.ones(3, np.float32))
    with pytest.raises(
        UsageError, match="unknown device 'metall'; expected one of cpu, metal, numpy; did you mean 'metal'"
    ):
        x.to_device("metall")
    with pytest.raises(UsageError, match="unknown device 'cuda'"), lbrx.using(device="cuda"):
        pass
    monkeypatch.setattr("lbrx.devices.metal.context.current._context", None)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(MetalUnavailable, match=r"needs macOS on Apple Silicon.*LBRX_METAL_DRIVER=emulated"):
        x.to_device("metal")
    monkeypatch.setenv("LBRX_METAL_DRIVER", "emulated")
    assert metal_context().info.emulated
