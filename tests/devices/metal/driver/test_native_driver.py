"""The native driver on a fake Mac: what it calls, what it frees, and what its errors are."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lbrx.base.system import page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import BufferBinding, CompileOptions, GpuFamily, pyobjc
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import (
    GpuLost,
    GpuOutOfMemory,
    GpuPageFault,
    GpuTimeout,
    KernelFault,
    MetalError,
    MetalUnavailable,
    ShaderError,
)
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.driver.selectors import CLASS_SELECTORS, OWNED_SELECTORS, PROTOCOL_SELECTORS
from lbrx.errors import MemoryBudgetError, UsageError
from support.fake_objc import FakeMac, install
from support.fake_objc.runtime import RECORD, BridgeError, Failed, Method, Native

SOURCE = """#include <metal_stdlib>
constant int width [[function_constant(0)]];
kernel void twice(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
"""
DRIVER = Path(pyobjc.__file__).parent


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> FakeMac:
    return install(monkeypatch, FakeMac())


def batch_of(driver: NativeDriver, *arguments: Any, label: str = "") -> CommandBatch:
    """A batch with one dispatch."""
    batch = CommandBatch(driver, label)
    pipeline = driver.compile(SOURCE, CompileOptions()).pipeline("twice", {})
    batch.dispatch(pipeline, dict(enumerate(arguments)), (4,), (32,))
    return batch


# -- the table of methods ---------------------------------------------------------------------------------------------


def test_pyobjc_knows_every_method_with_these_types() -> None:
    assert set(RECORD) == set(PROTOCOL_SELECTORS)
    for name, selector in PROTOCOL_SELECTORS.items():
        known = RECORD[name]
        assert (known["returns"], tuple(known["arguments"])) == (selector.returns, selector.arguments), name
        assert name.count(":") == len(selector.arguments)
    for name, selector in CLASS_SELECTORS.items():
        assert name.count(":") == len(selector.arguments)


def test_what_differs_between_releases_does_not_matter() -> None:
    assert {name for name, known in RECORD.items() if "later" in known} == {"status"}  # signed or not: 0 to 5
    later = {name for name, known in RECORD.items() if known["since"] != "10.0"}
    assert later == {
        *("newResidencySetWithDescriptor:error:", "addResidencySet:", "requestResidency"),
        *("addAllocation:", "removeAllocation:"),
    }


def test_every_method_is_called_and_every_call_is_in_the_table() -> None:
    text = "".join(path.read_text() for path in DRIVER.glob("*.py"))
    for selector in (*PROTOCOL_SELECTORS, *CLASS_SELECTORS):
        assert f".{selector.replace(':', '_')}(" in text, selector
    assert {name for name in RECORD if name.startswith("new")} == set(OWNED_SELECTORS)


def test_the_driver_is_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in DRIVER.glob("native*.py"))
    assert lines < 600


def test_the_fake_bridge_rejects_what_pyobjc_rejects(mac: FakeMac) -> None:
    device = NativeDriver().device
    for call, message in (
        (lambda: device.newBufferWithLength_options_(16), "Need 2 arguments, got 1"),
        (lambda: device.newBufferWithLength_options_(-1, 0), "-1 is no argument of type Q"),
        (lambda: device.newBufferWithLength_options_(1.0, 0), "1.0 is no argument of type Q"),
        (lambda: device.newLibraryWithSource_options_error_("", None, "error"), "'error' is no argument of type o"),
        (lambda: device.newBufferWithBytesNoCopy_length_options_deallocator_(b"12", 4, 0, None), "2 bytes are fewer"),
        (lambda: device.newBufferWithBytesNoCopy_length_options_deallocator_(7, 4, 0, None), "7 is no argument"),
    ):
        with pytest.raises(BridgeError, match=message):
            call()
    with pytest.raises(AttributeError, match="no attribute 'newBuffer_'"):
        device.newBuffer_(1)
    with pytest.raises(BridgeError, match="makeBuffer is not in the tables"):
        Method("makeBuffer", lambda: None, mac)()


# -- the device -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mac")
def test_the_device_describes_itself() -> None:
    info = NativeDriver().info
    assert (info.name, info.family, info.emulated, info.language) == ("Apple M2", GpuFamily.APPLE8, False, (3, 2))
    assert (info.max_buffer_bytes, info.threadgroup_memory_bytes, info.max_threads_per_threadgroup) == (
        1 << 29,
        32768,
        1024,
    )
    assert not MetalContext.open().info.emulated


@pytest.mark.parametrize(
    ("macos", "language", "math"),
    [
        (13, 3 << 16, [("setFastMathEnabled:", (False,))]),
        (14, (3 << 16) + 1, [("setFastMathEnabled:", (False,))]),
        (15, (3 << 16) + 2, [("setMathMode:", (0,)), ("setMathFloatingPointFunctions:", (1,))]),
        (26, 4 << 16, [("setMathMode:", (0,)), ("setMathFloatingPointFunctions:", (1,))]),
    ],
)
def test_language_and_math_are_explicit(
    monkeypatch: pytest.MonkeyPatch, macos: int, language: int, math: list[tuple[str, Any]]
) -> None:
    mac = install(monkeypatch, FakeMac(macos=macos))
    NativeDriver().compile(SOURCE, CompileOptions(defines=(("N", "3"),)))
    assert mac.called("setLanguageVersion:") == [(language,)]
    assert mac.called("setPreprocessorMacros:") == [({"N": "3"},)]
    assert [call for call in mac.calls if "Math" in call[0]] == math


@pytest.mark.usefixtures("mac")
def test_a_dispatch_is_encoded_and_committed(mac: FakeMac) -> None:
    driver = NativeDriver()
    buffer = driver.allocate(64)
    pipeline = driver.compile(SOURCE, CompileOptions()).pipeline("twice", {"width": 7})
    batch = CommandBatch(driver, "a label")
    arguments = {0: BufferBinding(buffer, 16), 1: b"abcd"}
    batch.dispatch(pipeline, arguments, (4, 2), (32,), threadgroup_bytes={0: 128})
    batch.dispatch(pipeline, arguments, (100,), (32,), grid_unit="threads")
    batch.wait()
    assert mac.called("setConstantValue:type:withName:") == [(struct.pack("i", 7), 29, "width")]
    assert mac.called("setBuffer:offset:atIndex:") == [(buffer.handle, 16, 0)] * 2
    assert mac.called("setBytes:length:atIndex:") == [(b"abcd", 4, 1)] * 2
    assert mac.called("setThreadgroupMemoryLength:atIndex:") == [(128, 0)]
    assert mac.called("dispatchThreadgroups:threadsPerThreadgroup:") == [((4, 2, 1), (32, 1, 1))]
    assert mac.called("dispatchThreads:threadsPerThreadgroup:") == [((100, 1, 1), (32, 1, 1))]
    order = [name for name, _ in mac.calls if name in ("endEncoding", "commit", "waitUntilCompleted")]
    assert order == ["endEncoding", "commit", "waitUntilCompleted"]
    assert batch.gpu_seconds == (1.0, 1.5)
    assert mac.called("setLabel:")[-2:] == [("a label",)] * 2
    batch_of(driver, BufferBinding(buffer)).wait()
    assert mac.called("setLabel:")[-2:] == [("lbrx: twice",), ("twice",)]
    assert ("lbrx: 64 B",) in mac.called("setLabel:")


@pytest.mark.usefixtures("mac")
def test_memory_is_shared_and_limited() -> None:
    driver = NativeDriver()
    buffer = driver.allocate(100)
    buffer.view()[:] = 5
    assert buffer.view().tolist() == [5] * 100
    assert driver.allocated_bytes == 100
    buffer.fit(40)
    assert buffer.view().nbytes == 40
    with pytest.raises(UsageError, match="101 bytes do not fit into a buffer of 100"):
        buffer.fit(101)
    with pytest.raises(MemoryBudgetError, match="the largest on Apple M2 is 512 MiB"):
        driver.allocate((1 << 29) + 1)
    del buffer
    assert driver.allocated_bytes == 0


@pytest.mark.usefixtures("mac")
def test_a_function_constant_that_the_compiler_left_out_is_not_set(mac: FakeMac) -> None:
    NativeDriver().compile(SOURCE, CompileOptions()).pipeline("twice", {"height": 1})
    assert not mac.called("setConstantValue:type:withName:")


@pytest.mark.usefixtures("mac")
def test_a_shader_that_does_not_compile_is_an_error_with_its_line() -> None:
    with pytest.raises(ShaderError, match=r"shader\.metal:3:5: error: expected ';'"):
        NativeDriver().compile("this does not compile", CompileOptions())


# -- archives ---------------------------------------------------------------------------------------------------------


def test_archives_are_written_when_a_pipeline_is_new(mac: FakeMac) -> None:
    driver = NativeDriver()
    library = driver.compile(SOURCE, CompileOptions())
    assert library.artifact() is None
    library.pipeline("twice", {})
    artifact = library.artifact()
    assert artifact is not None
    assert json.loads(artifact) == ["twice []"]
    assert library.artifact() is None
    assert (mac.device.compilations, driver.archive_misses) == (1, 1)  # compiled into the archive, not twice

    again = driver.compile(SOURCE, CompileOptions(), artifact)
    again.pipeline("twice", {})
    assert again.artifact() is None  # nothing to write
    assert (mac.device.compilations, driver.archive_hits) == (1, 1)
    again.pipeline("twice", {"width": 2})
    assert json.loads(again.artifact() or b"") == ["twice []", "twice [('width', 2)]"]
    assert (mac.device.compilations, driver.archive_misses) == (2, 2)


@pytest.mark.usefixtures("mac")
def test_a_damaged_archive_is_an_error_of_the_artifact() -> None:
    with pytest.raises(ShaderError, match="a binary archive cannot be used: not an archive"):
        NativeDriver().compile(SOURCE, CompileOptions(), b"damaged")


# -- errors of the GPU ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error_class", "message"),
    [
        (2, GpuTimeout, "macOS stopped the GPU because it took too long; give less --memory"),
        (3, GpuPageFault, "the GPU touched memory that is not mapped; run `lbrx doctor`"),
        (4, GpuLost, "macOS revoked this process's access to the GPU"),
        (8, GpuOutOfMemory, "the GPU has not enough memory; give less --memory"),
        (12, KernelFault, "the stack of a kernel overflowed"),
        (1, KernelFault, "the GPU stopped while it ran twice: Caused GPU Hang Error"),
    ],
)
def test_errors_of_the_gpu_are_told_apart(mac: FakeMac, code: int, error_class: type, message: str) -> None:
    batch = batch_of(NativeDriver())
    mac.device.failures.append(Failed("Caused GPU Hang Error", code, "MTLCommandBufferErrorDomain"))
    with pytest.raises(error_class, match=message) as caught:
        batch.wait()
    assert type(caught.value) is error_class
    assert "while it ran twice: Caused GPU Hang Error" in str(caught.value)


def test_memory_errors_of_the_gpu_are_memory_errors() -> None:
    assert issubclass(GpuOutOfMemory, MemoryBudgetError)
    assert issubclass(GpuOutOfMemory, MetalError)
    assert issubclass(GpuTimeout, KernelFault)
    assert issubclass(GpuPageFault, KernelFault)


# -- mapped pages -----------------------------------------------------------------------------------------------------


def some_pages(count: int = 1) -> tuple[mmap.mmap, int]:
    mapping = mmap.mmap(-1, count * page_bytes())
    return mapping, np.frombuffer(mapping, np.uint8).ctypes.data


def test_mapped_pages_are_wrapped_without_a_copy(mac: FakeMac) -> None:
    mapping, address = some_pages(3)
    driver = NativeDriver()
    buffer = driver.wrap(address, 2 * page_bytes(), mapping)
    assert buffer is not None
    ctypes.memset(address, 7, page_bytes())
    assert (buffer.view()[: page_bytes()] == 7).all()
    assert not buffer.view().flags.writeable
    assert mac.device.mapped_bytes == 2 * page_bytes()
    with pytest.raises(UsageError, match="needs whole pages"):
        driver.wrap(address + 16, page_bytes(), mapping)
    assert driver.wrap(address, driver.info.max_buffer_bytes + page_bytes(), mapping) is None


@pytest.mark.parametrize("answer", ["none", "empty"])
def test_refused_pages_are_no_buffer_and_are_let_go(mac: FakeMac, answer: str) -> None:
    mac.device.no_copy = answer
    mapping, address = some_pages()
    driver = NativeDriver()
    assert driver.wrap(address, page_bytes(), mapping) is None
    facts = driver.facts()
    assert facts["mapped_bytes"] == 0
    assert facts["refused_pages"].startswith("no buffer" if answer == "none" else "a buffer of 0 bytes")


def test_pages_are_kept_until_metal_frees_the_buffer(mac: FakeMac) -> None:
    """Nobody but the command buffer that runs has the buffer: the pages stay mapped, and go when it is done."""
    mac.records_calls = False
    driver = NativeDriver()
    pipeline = driver.compile(SOURCE, CompileOptions()).pipeline("twice", {})
    mapping, address = some_pages()
    buffer = driver.wrap(address, page_bytes(), mapping)
    assert buffer is not None
    batch = CommandBatch(driver)
    batch.dispatch(pipeline, {0: BufferBinding(buffer)}, (1,), (1,))
    batch.commit()
    buffer.last_use = None
    driver._last = None
    del buffer, mapping, batch
    gc.collect()
    assert driver.facts()["mapped_bytes"] == page_bytes()
    assert mac.device.running
    mac.device.finish_one()  # checks that the pages are mapped
    assert (driver.facts()["mapped_bytes"], mac.device.mapped_bytes) == (0, 0)


def test_pages_that_are_unmapped_too_early_are_noticed(mac: FakeMac) -> None:
    mapping, address = some_pages()
    driver = NativeDriver()
    buffer = driver.wrap(address, page_bytes(), None)
    assert buffer is not None
    batch = batch_of(driver, BufferBinding(buffer))
    batch.commit()
    del mapping
    gc.collect()
    with pytest.raises(AssertionError, match="reads pages that were unmapped"):
        mac.device.finish_one()


def test_resident_pages_are_in_the_residency_set(mac: FakeMac) -> None:
    mac.records_calls = False
    mapping, address = some_pages()
    driver = NativeDriver()
    plain, resident = (driver.wrap(address, page_bytes(), mapping, resident=each) for each in (False, True))
    assert plain is not None
    assert resident is not None
    residency = mac.device.residency
    assert residency is not None
    assert residency.allocations == [resident.handle.native]
    del resident
    assert residency.allocations == []
    assert mac.device.mapped_bytes == page_bytes()


def test_before_macos_15_there_is_no_residency_set(monkeypatch: pytest.MonkeyPatch) -> None:
    mac = install(monkeypatch, FakeMac(macos=14))
    mapping, address = some_pages()
    driver = NativeDriver()
    assert driver.wrap(address, page_bytes(), mapping, resident=True) is not None
    assert not mac.called("addAllocation:")
    assert driver.facts()["residency_set"] is False


# -- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_names_the_dispatches(mac: FakeMac, tmp_path: Path) -> None:
    driver = NativeDriver()
    with driver.capture(tmp_path / "one.gputrace"):
        batch_of(driver).wait()
    batch_of(driver).wait()
    assert mac.captured == [str(tmp_path / "one.gputrace")]
    assert mac.called("pushDebugGroup:") == [("twice",)]
    assert len(mac.called("stopCapture")) == 1
    with pytest.raises(UsageError, match="set MTL_CAPTURE_ENABLED=1"), driver.capture(tmp_path / "one.txt"):
        pass


# -- without a GPU ----------------------------------------------------------------------------------------------------


def test_no_metal_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyobjc, "sys", SimpleNamespace(platform="linux"))
    assert not pyobjc.is_available()
    with pytest.raises(MetalUnavailable, match="there is no Metal on this machine: it needs macOS on Apple Silicon"):
        NativeDriver()


def test_a_mac_without_pyobjc_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyobjc, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(pyobjc.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MetalUnavailable, match="pip install pyobjc-framework-Metal"):
        NativeDriver()


def test_another_gpu_is_an_error(mac: FakeMac, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(mac.device), "supportsFamily_", lambda *_: False)
    with pytest.raises(MetalUnavailable, match="Apple M2 is not an Apple GPU"):
        NativeDriver()


def test_no_gpu_is_an_error(mac: FakeMac) -> None:
    mac.has_device = False
    assert not pyobjc.is_available()
    with pytest.raises(MetalUnavailable, match="macOS offers no GPU to this process"):
        NativeDriver()


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(UsageError, match="expected one of auto, native, emulated"):
        MetalContext.open("cuda")  # type: ignore[arg-type]


def test_the_fake_counts_references(mac: FakeMac) -> None:
    native = Native(mac)
    native.retain().release()
    assert mac.objects()["Native"] == 1
    native.release()
    assert "Native" not in mac.objects()
    with pytest.raises(AssertionError, match="released once too often"):
        native.release()
