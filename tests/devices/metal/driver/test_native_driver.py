"""The native driver without a Mac: against PyObjC's metadata, and against a stand-in for Metal's objects."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lbrx.base.system import page_bytes
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import BufferBinding, CompileOptions, GpuFamily, pyobjc
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import KernelFault, MetalError, MetalUnavailable, ShaderError
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.driver.pyobjc import CLASS_SELECTORS, SELECTORS
from lbrx.errors import MemoryBudgetError, UsageError

RECORD = json.loads((Path(__file__).parent / "pyobjc_metal_selectors.json").read_text())["selectors"]
NATIVE_TEXT = Path(sys.modules["lbrx.devices.metal.driver.native"].__file__ or "").read_text()


def python_name(selector: str) -> str:
    return selector.replace(":", "_")


def test_pyobjc_knows_every_selector() -> None:
    assert set(RECORD) == set(SELECTORS)
    assert all(len(record["arguments"]) == name.count(":") for name, record in RECORD.items())


def test_errors_come_back_as_a_second_value() -> None:
    """The driver unpacks a pair from each of these, which is what PyObjC makes of an out-argument."""
    pairs = {name for name, record in RECORD.items() if any(each.startswith("o") for each in record["arguments"])}
    assert pairs == {name for name in SELECTORS if name.endswith("error:")}


def test_every_selector_is_used_and_every_call_is_listed() -> None:
    for selector in (*SELECTORS, *CLASS_SELECTORS):
        assert f".{python_name(selector)}(" in NATIVE_TEXT, selector


def test_the_driver_is_small() -> None:
    assert len(NATIVE_TEXT.splitlines()) < 250


class Fake:
    """An Objective-C object: methods by selector, each call checked against the driver's table and recorded."""

    calls: list[tuple[str, tuple[Any, ...]]] = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Callable[..., Any]:
        selector = name.replace("_", ":")
        assert selector in SELECTORS or selector in CLASS_SELECTORS, f"{selector} is not in the table"

        def call(*arguments: Any) -> Any:
            assert len(arguments) == selector.count(":")
            Fake.calls.append((selector, arguments))
            method = self._methods.get(name)
            return method(*arguments) if callable(method) else method

        return call


class FakeDevice(Fake):
    """An M2 with 1 MiB of memory."""

    def __init__(self) -> None:
        super().__init__(
            name="Apple M2",
            supportsFamily_=lambda family: family <= 1008,
            hasUnifiedMemory=True,
            maxBufferLength=1 << 20,
            maxThreadsPerThreadgroup=SimpleNamespace(width=1024, height=1024, depth=1024),
            maxThreadgroupMemoryLength=32768,
            recommendedMaxWorkingSetSize=1 << 20,
            newCommandQueue=lambda: Fake(commandBuffer=lambda: self.commands),
            newBufferWithLength_options_=lambda length, _: self.buffer(np.zeros(length, np.uint8)),
            newBufferWithBytesNoCopy_length_options_deallocator_=lambda memory, *_: self.buffer(memory),
            newLibraryWithSource_options_error_=self.compile,
            newBinaryArchiveWithDescriptor_error_=self.archive,
            newComputePipelineStateWithDescriptor_options_reflection_error_=lambda *_: (
                Fake(maxTotalThreadsPerThreadgroup=512, threadExecutionWidth=32),
                None,
            ),
        )
        self.status = 4
        self.commands = Fake(
            computeCommandEncoder=lambda: Fake(),
            status=lambda: self.status,
            error=Fake(localizedDescription="Caused GPU Hang Error"),
            GPUStartTime=1.0,
            GPUEndTime=1.5,
        )

    def buffer(self, memory: Any) -> Fake:
        return Fake(contents=SimpleNamespace(as_buffer=lambda _: memory))

    def compile(self, source: str, *_: Any) -> tuple[Fake | None, Fake | None]:
        if "broken" in source:
            return None, Fake(localizedDescription="program_source:3:5: error: broken")
        constant = Fake(type=29)
        function = Fake(functionConstantsDictionary={"width": constant})
        return (
            Fake(
                functionNames=("twice",),
                newFunctionWithName_=lambda _: function,
                newFunctionWithName_constantValues_error_=lambda *_: (function, None),
            ),
            None,
        )

    def archive(self, *_: Any) -> tuple[Fake, None]:
        def serialize(url: str, _: Any) -> tuple[bool, None]:
            Path(url).write_bytes(b"archive")
            return True, None

        added = (True, None)
        return Fake(
            addComputePipelineFunctionsWithDescriptor_error_=lambda *_: added, serializeToURL_error_=serialize
        ), None


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A Mac, as far as the driver can tell."""
    made = FakeDevice()
    modules: dict[str, dict[str, Any]] = {
        "Metal": {
            "MTLCreateSystemDefaultDevice": lambda: made,
            "MTLSize": lambda *extents: extents,
            **dict.fromkeys(
                (
                    *("MTLCompileOptions", "MTLComputePipelineDescriptor"),
                    *("MTLBinaryArchiveDescriptor", "MTLFunctionConstantValues"),
                ),
                Fake(alloc=lambda: Fake(init=lambda: Fake())),
            ),
        },
        "objc": {"registerMetaDataForSelector": lambda *_: None},
        "Foundation": {"NSURL": Fake(fileURLWithPath_=lambda path: path)},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]  # what find_spec looks at
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(pyobjc.sys, "platform", "darwin")
    Fake.calls.clear()
    return made


def called(selector: str) -> list[tuple[Any, ...]]:
    return [arguments for name, arguments in Fake.calls if name == selector]


@pytest.mark.usefixtures("device")
def test_the_device_describes_itself() -> None:
    info = NativeDriver().info
    assert (info.name, info.family, info.emulated) == ("Apple M2", GpuFamily.APPLE8, False)
    assert (info.max_buffer_bytes, info.threadgroup_memory_bytes, info.max_threads_per_threadgroup) == (
        1 << 20,
        32768,
        1024,
    )


@pytest.mark.usefixtures("device")
def test_a_dispatch_is_encoded_and_committed() -> None:
    driver = NativeDriver()
    buffer = driver.allocate(64)
    pipeline = driver.compile("source", CompileOptions(defines=(("N", "3"),))).pipeline("twice", {"width": 7})
    batch = CommandBatch(driver, "label")
    arguments = {0: BufferBinding(buffer, 16), 1: b"abcd"}
    batch.dispatch(pipeline, arguments, (4, 2), (32,), threadgroup_bytes={0: 128})
    batch.dispatch(pipeline, arguments, (100,), (32,), grid_unit="threads")
    batch.wait()
    assert called("setPreprocessorMacros:") == [({"N": "3"},)]
    assert called("setFastMathEnabled:") == [(False,)]
    assert called("setConstantValue:type:withName:") == [(struct.pack("i", 7), 29, "width")]
    assert called("setBuffer:offset:atIndex:") == [(buffer.handle, 16, 0)] * 2
    assert called("setBytes:length:atIndex:") == [(b"abcd", 4, 1)] * 2
    assert called("setThreadgroupMemoryLength:atIndex:") == [(128, 0)]
    assert called("dispatchThreadgroups:threadsPerThreadgroup:") == [((4, 2, 1), (32, 1, 1))]
    assert called("dispatchThreads:threadsPerThreadgroup:") == [((100, 1, 1), (32, 1, 1))]
    order = [name for name, _ in Fake.calls if name in ("endEncoding", "commit", "waitUntilCompleted")]
    assert order == ["endEncoding", "commit", "waitUntilCompleted"]
    assert batch.gpu_seconds == (1.0, 1.5)


def test_an_error_of_the_gpu_names_the_kernels(device: FakeDevice) -> None:
    driver = NativeDriver()
    pipeline = driver.compile("source", CompileOptions()).pipeline("twice", {})
    batch = CommandBatch(driver)
    batch.dispatch(pipeline, {}, (1,), (1,))
    device.status = 5
    with pytest.raises(KernelFault, match="the GPU stopped while it ran twice: Caused GPU Hang Error"):
        batch.wait()


@pytest.mark.usefixtures("device")
def test_memory_is_shared_and_limited() -> None:
    driver = NativeDriver()
    buffer = driver.allocate(100)
    buffer.view()[:] = 5
    assert buffer.view().tolist() == [5] * 100
    buffer.fit(40)
    assert buffer.view().nbytes == 40
    with pytest.raises(UsageError, match="101 bytes do not fit into a buffer of 100"):
        buffer.fit(101)
    with pytest.raises(MemoryBudgetError, match="the largest on Apple M2 is 1 MiB"):
        driver.allocate((1 << 20) + 1)


@pytest.mark.usefixtures("device")
def test_mapped_pages_are_wrapped_without_a_copy() -> None:
    memory = np.zeros(3 * page_bytes(), np.uint8)
    address = -(-memory.ctypes.data // page_bytes()) * page_bytes()
    driver = NativeDriver()
    buffer = driver.wrap(address, page_bytes(), memory)
    ctypes.memset(address, 7, page_bytes())
    assert (buffer.view() == 7).all()
    assert not buffer.view().flags.writeable
    with pytest.raises(UsageError, match="needs whole pages"):
        driver.wrap(address + 16, page_bytes(), memory)


def test_copied_pages_are_noticed(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "buffer", lambda memory: FakeDevice.buffer(device, bytearray(memory)))
    memory = np.zeros(3 * page_bytes(), np.uint8)
    address = -(-memory.ctypes.data // page_bytes()) * page_bytes()
    with pytest.raises(MetalError, match="copied mapped pages"):
        NativeDriver().wrap(address, page_bytes(), memory)


@pytest.mark.usefixtures("device")
def test_a_shader_that_does_not_compile_is_told_with_its_line() -> None:
    with pytest.raises(ShaderError, match=r"shader\.metal:3:5: error: broken"):
        NativeDriver().compile("broken", CompileOptions())


@pytest.mark.usefixtures("device")
def test_archives_are_kept_when_a_pipeline_is_new() -> None:
    library = NativeDriver().compile("source", CompileOptions())
    assert library.artifact() is None
    library.pipeline("twice", {})
    assert library.artifact() == b"archive"
    assert library.artifact() is None
    assert NativeDriver().compile("source", CompileOptions(), b"archive").function_names == ("twice",)
    assert called("setUrl:")


@pytest.mark.usefixtures("device")
def test_a_function_constant_that_the_compiler_left_out_is_not_set() -> None:
    NativeDriver().compile("source", CompileOptions()).pipeline("twice", {"height": 1})
    assert not called("setConstantValue:type:withName:")


@pytest.mark.usefixtures("device")
def test_auto_takes_the_gpu_where_there_is_one() -> None:
    assert not MetalContext.open().info.emulated


def test_no_metal_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyobjc.sys, "platform", "linux")
    assert not pyobjc.is_available()
    with pytest.raises(MetalUnavailable, match="there is no Metal on this machine: it needs macOS on Apple Silicon"):
        NativeDriver()


def test_a_mac_without_pyobjc_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyobjc.sys, "platform", "darwin")
    monkeypatch.setattr(pyobjc.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MetalUnavailable, match="pip install pyobjc-framework-Metal"):
        NativeDriver()


def test_another_gpu_is_an_error(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device._methods, "supportsFamily_", lambda _: False)
    with pytest.raises(MetalUnavailable, match="Apple M2 is not an Apple GPU"):
        NativeDriver()


def test_an_unknown_driver_is_an_error() -> None:
    with pytest.raises(UsageError, match="expected one of auto, native, emulated"):
        MetalContext.open("cuda")  # type: ignore[arg-type]
