"""Modules `objc`, `Metal` and `Foundation` for the time of a test, as on a Mac with some version of PyObjC."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lbrx.devices.metal.driver import pyobjc as bindings
from support.fake_objc import shaders
from support.fake_objc.metal import MTLDeviceBefore15, MTLDeviceFrom15
from support.fake_objc.runtime import Failed, Method, MTLSize, Native, Proxy, Runtime

RESIDENCY_SETS = MATH_MODES = 15  # the first macOS with them
_DESCRIPTORS = ("MTLComputePipelineDescriptor", "MTLBinaryArchiveDescriptor", "MTLFunctionConstantValues")


class FakeMac(Runtime):
    """A runtime with a GPU."""

    def __init__(
        self, pyobjc: str = "12.2.2", core: str | None = None, macos: int = 15, *, executes: bool = False, lag: int = 8
    ) -> None:
        super().__init__(pyobjc, core, macos)
        device_class = MTLDeviceFrom15 if macos >= RESIDENCY_SETS else MTLDeviceBefore15
        self.device = device_class(self, executes=executes, lag=lag)
        self.has_device = True
        self.captured: list[str] = []


def install(patch: pytest.MonkeyPatch, mac: FakeMac) -> FakeMac:
    """Make this process a Mac, as far as the native driver can tell."""
    contents: dict[str, dict[str, Any]] = {
        "objc": {
            "registerMetaDataForSelector": _registering(mac),
            "autorelease_pool": _pool_class(mac),
            "__version__": ".".join(map(str, mac.core)),
        },
        "Metal": _metal(mac),
        "Foundation": {"NSURL": ClassProxy("NSURL", mac, fileURLWithPath_=lambda path: NSURL(mac, path).autorelease())},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]  # what find_spec looks at
        patch.setitem(sys.modules, name, module)
    patch.setattr(bindings, "sys", SimpleNamespace(platform="darwin"))
    patch.setattr(bindings, "_loaded", None)
    patch.setattr("platform.mac_ver", lambda: (f"{mac.macos}.0", ("", "", ""), "arm64"))
    return mac


class ClassProxy:
    """A class: ``alloc().init()``, and its methods."""

    def __init__(self, name: str, mac: FakeMac, made: type[Native] | None = None, **methods: Any) -> None:
        for method, function in methods.items():
            setattr(self, method, Method(method.replace("_", ":"), function, mac, of_class=True))
        if made is not None:
            self.alloc = Method("alloc", lambda: made(mac), mac, of_class=True)
        self.name = name


def _metal(mac: FakeMac) -> dict[str, Any]:
    options = shaders.MTLCompileOptions if mac.macos >= MATH_MODES else shaders.MTLCompileOptionsBefore15
    manager = CaptureManager(mac)
    members: dict[str, Any] = {
        "MTLCreateSystemDefaultDevice": lambda: Proxy(mac.device, owned=False) if mac.has_device else None,
        "MTLSize": MTLSize,
        "MTLCompileOptions": ClassProxy("MTLCompileOptions", mac, options),
        "MTLCaptureDescriptor": ClassProxy("MTLCaptureDescriptor", mac, CaptureDescriptor),
        "MTLCaptureManager": ClassProxy("MTLCaptureManager", mac, sharedCaptureManager=lambda: manager),
    }
    for name in _DESCRIPTORS:
        members[name] = ClassProxy(name, mac, getattr(shaders, name))
    if mac.macos >= RESIDENCY_SETS:
        members["MTLResidencySetDescriptor"] = ClassProxy("MTLResidencySetDescriptor", mac, MTLResidencySetDescriptor)
    return members


def _registering(mac: FakeMac) -> Any:
    def register(owner: bytes, selector: bytes, metadata: dict[str, Any]) -> None:
        assert owner in (b"NSObject", b"MTLFunctionConstantValues")
        mac.registered[selector.decode()] = metadata

    return register


def _pool_class(mac: FakeMac) -> type:
    class AutoreleasePool:
        def __enter__(self) -> None:
            mac.push_pool()

        def __exit__(self, *_: object) -> None:
            mac.pop_pool()

    return AutoreleasePool


class NSURL(Native):
    def __init__(self, mac: FakeMac, path: str) -> None:
        super().__init__(mac)
        self.path = path


class MTLResidencySetDescriptor(Native):
    pass


class CaptureDescriptor(Native):
    path = ""
    destination = 0
    target: Native | None = None

    def setCaptureObject_(self, target: Native) -> None:
        self.target = self.hold(target)

    def setDestination_(self, destination: int) -> None:
        self.destination = destination

    def setOutputURL_(self, url: NSURL) -> None:
        self.path = url.path


class CaptureManager(Native):
    def startCaptureWithDescriptor_error_(self, descriptor: CaptureDescriptor, _error: None) -> bool | Failed:
        mac = self.runtime
        assert isinstance(mac, FakeMac)
        assert descriptor.target is mac.device
        assert descriptor.destination == 2
        if not descriptor.path.endswith(".gputrace"):
            return Failed("Capturing is not supported")
        mac.captured.append(descriptor.path)
        return True

    def stopCapture(self) -> None:
        pass
