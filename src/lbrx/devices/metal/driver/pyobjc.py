"""PyObjC and Metal: whether they are there, and what PyObjC has to be told of Metal's methods.

PyObjC up to 12.2.2 applies Objective-C's rule that the caller owns what a method ``new...`` returns to methods of
classes only. Metal's are methods of objects: each buffer, library and pipeline would be retained once too often and
never freed. Therefore the driver registers the ownership of those that it calls. Later versions follow the rule, and
the registration changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import AbstractContextManager
from typing import Any

from lbrx.devices.metal.driver.errors import MetalUnavailable
from lbrx.devices.metal.driver.forks import ForkGuard
from lbrx.devices.metal.driver.selectors import OWNED_SELECTORS, Selector

_loaded: ForkGuard | None = None


def is_available() -> bool:
    """Whether this machine has an Apple GPU that Python can reach."""
    if sys.platform != "darwin" or importlib.util.find_spec("Metal") is None:
        return False
    return load_metal().MTLCreateSystemDefaultDevice() is not None


def load_metal() -> Any:
    """Import Metal and register what PyObjC does not know of its methods."""
    global _loaded
    if sys.platform != "darwin":
        raise MetalUnavailable(
            "there is no Metal on this machine: it needs macOS on Apple Silicon; the 'emulated' driver runs anywhere"
        )
    if importlib.util.find_spec("Metal") is None:
        raise MetalUnavailable("Python cannot reach Metal: install it with `pip install pyobjc-framework-Metal`")
    if _loaded is not None and _loaded.is_foreign:
        raise MetalUnavailable(
            "this process was forked from one that uses the GPU, which macOS does not allow; start workers with "
            "multiprocessing.get_context('spawn')"
        )
    metal: Any = importlib.import_module("Metal")
    objc: Any = importlib.import_module("objc")
    for name, selector in OWNED_SELECTORS.items():
        objc.registerMetaDataForSelector(b"NSObject", name.encode(), metadata_of(selector))
    # The runtime says only `const void *` of this method's first argument; this makes it take bytes.
    objc.registerMetaDataForSelector(
        b"MTLFunctionConstantValues",
        b"setConstantValue:type:withName:",
        {"arguments": {2: {"type": b"^v", "type_modifier": b"n", "c_array_of_variable_length": True}}},
    )
    _loaded = _loaded or ForkGuard()
    return metal


def metadata_of(selector: Selector) -> dict[str, Any]:
    """The metadata of a method whose result the caller owns. It replaces that of PyObjC, so it is complete.

    >>> from lbrx.devices.metal.driver.selectors import OWNED_SELECTORS
    >>> metadata_of(OWNED_SELECTORS["newLibraryWithURL:error:"])["arguments"][3]
    {'type': b'^@', 'type_modifier': b'o'}
    """
    arguments = {index: _argument(kind, index) for index, kind in enumerate(selector.arguments, 2)}
    result: dict[str, Any] = {"type": selector.returns.encode(), "already_retained": selector.owned}
    return {"retval": result, "arguments": arguments}


def _argument(kind: str, index: int) -> dict[str, Any]:
    if kind == "n^v":  # the length is the next argument
        return {"type": b"^v", "type_modifier": b"n", "c_array_length_in_arg": index + 1}
    if kind == "@?":
        # A block that gets an address and a length. PyObjC would read a byte at an address of type `n^v`.
        block = {"retval": {"type": b"v"}, "arguments": {0: {"type": b"^v"}, 1: {"type": b"Q"}, 2: {"type": b"Q"}}}
        return {"type": b"@?", "callable": block}
    if kind.startswith("o"):
        return {"type": kind[1:].encode(), "type_modifier": b"o"}
    return {"type": kind.encode()}


def autorelease_pool() -> AbstractContextManager[Any]:
    """Free what Metal's methods return without the caller owning it: a process without a window has no other pool."""
    pool: AbstractContextManager[Any] = importlib.import_module("objc").autorelease_pool()
    return pool


def file_url(path: object) -> Any:
    """An NSURL."""
    return importlib.import_module("Foundation").NSURL.fileURLWithPath_(str(path))


def error_text(error: Any) -> str:
    """The text of an NSError."""
    return "no reason was given" if error is None else str(error.localizedDescription())
