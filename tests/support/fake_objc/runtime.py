"""Objects with reference counts, autorelease pools, and the proxies through which Python sees objects."""

from __future__ import annotations

import inspect
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from lbrx.devices.metal.driver.selectors import CLASS_SELECTORS

RECORD = json.loads(
    (Path(__file__).parents[2] / "devices/metal/driver/pyobjc_selectors.json").read_text(encoding="utf-8")
)["selectors"]
Version = tuple[int, ...]
FIRST_FIXED_CORE: Version = (12, 2, 3)  # follows the rule of `new` for methods of objects, too


class BridgeError(TypeError):
    """What PyObjC raises for a wrong call."""


class MTLSize(NamedTuple):
    width: int
    height: int
    depth: int


class Pointer:
    """An address, as PyObjC returns memory of unknown length."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def as_buffer(self, nbytes: int) -> Any:
        return memoryview(self._memory)[: max(nbytes, 1)]


def version_of(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


class Runtime:
    """What the fake process counts. ``pyobjc`` is the version of the Metal bindings, ``core`` of pyobjc-core."""

    def __init__(self, pyobjc: str = "12.2.2", core: str | None = None, macos: int = 15) -> None:
        self.pyobjc, self.core, self.macos = version_of(pyobjc), version_of(core or pyobjc), macos
        self.live: Counter[str] = Counter()  # objects by class
        self.created = self.retains = self.releases = 0
        self.registered: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.records_calls = True
        self._pools = threading.local()
        self.root_pool: list[Native] = []  # what no pool will ever release
        self.pools_opened = self.pools_closed = 0

    def objects(self) -> dict[str, int]:
        """How many objects of each class are alive."""
        return {name: count for name, count in sorted(self.live.items()) if count}

    def called(self, selector: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a method."""
        return [arguments for name, arguments in self.calls if name == selector]

    # -- autorelease pools --------------------------------------------------------------------------------------------

    def autorelease(self, native: Native) -> Native:
        pools = self._open_pools()
        (pools[-1] if pools else self.root_pool).append(native)
        return native

    def _open_pools(self) -> list[list[Native]]:
        if not hasattr(self._pools, "stack"):
            self._pools.stack = []
        stack: list[list[Native]] = self._pools.stack
        return stack

    def push_pool(self) -> None:
        self.pools_opened += 1
        self._open_pools().append([])

    def pop_pool(self) -> None:
        self.pools_closed += 1
        for native in self._open_pools().pop():
            native.release()

    # -- what PyObjC knows --------------------------------------------------------------------------------------------

    def types(self, selector: str) -> tuple[str, list[str]]:
        """Types of result and arguments: registered, from PyObjC's metadata, or from the Objective-C runtime."""
        if selector in self.registered:
            return self._registered_types(selector)
        if selector in RECORD:
            known = RECORD[selector]
            if version_of(known["since"]) <= self.pyobjc:
                return known["returns"], known["arguments"]
            return known["returns"], [
                each.lstrip("on") for each in known["arguments"]
            ]  # the runtime knows no modifiers
        if selector in CLASS_SELECTORS:
            return CLASS_SELECTORS[selector].returns, [each.lstrip("n") for each in CLASS_SELECTORS[selector].arguments]
        raise BridgeError(f"{selector} is not in the tables")

    def _registered_types(self, selector: str) -> tuple[str, list[str]]:
        """Registered metadata replaces that of PyObjC; what it leaves out comes from the Objective-C runtime."""
        fields = self.registered[selector]
        plain = RECORD[selector] if selector in RECORD else CLASS_SELECTORS[selector]._asdict()
        types = [each.lstrip("on") for each in plain["arguments"]]
        for index, argument in fields.get("arguments", {}).items():
            kind = argument.get("type_modifier", b"") + argument.get("type", types[index - 2].encode())
            types[index - 2] = kind.decode()
            if kind == b"@?" and "callable" not in argument:
                raise BridgeError(f"{selector}: the block of argument {index} has no signature")
        return plain["returns"], types

    def takes_ownership(self, selector: str, *, of_class: bool) -> bool:
        """Whether PyObjC releases a result once more than it retains it."""
        if self.registered.get(selector, {}).get("retval", {}).get("already_retained"):
            return True
        follows_rule = of_class or self.core >= FIRST_FIXED_CORE
        return selector == "alloc" or (follows_rule and is_new(selector))


def is_new(selector: str) -> bool:
    return selector.startswith("new") and (len(selector) == 3 or selector[3].isupper())


class Native:
    """An Objective-C object with methods named as in PyObjC. Those named ``new...`` return what the caller owns."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.references = 1
        runtime.created += 1
        runtime.live[type(self).__name__] += 1
        self._held: list[Native] = []

    def hold(self, native: Any) -> Any:
        """Retain an object for as long as this one is alive."""
        if isinstance(native, Native):
            self._held.append(native.retain())
        return native

    def retain(self) -> Native:
        assert self.references > 0, f"{type(self).__name__} was retained after it was freed"
        self.runtime.retains += 1
        self.references += 1
        return self

    def release(self) -> None:
        assert self.references > 0, f"{type(self).__name__} was released once too often"
        self.runtime.releases += 1
        self.references -= 1
        if not self.references:
            self.runtime.live[type(self).__name__] -= 1
            self.dealloc()
            for held in self._held:
                held.release()
            self._held = []

    def dealloc(self) -> None:
        """What happens when nobody needs the object any more."""

    def autorelease(self) -> Native:
        return self.runtime.autorelease(self)

    def init(self) -> Native:
        return self

    def setLabel_(self, label: str) -> None:
        self.label = label


class NSString(Native):
    """What PyObjC makes of a Python string for a call."""


class Proxy:
    """How Python sees an object: PyObjC's side of the bridge."""

    def __init__(self, native: Native, *, owned: bool) -> None:
        self.native = native if owned else native.retain()

    def __del__(self) -> None:
        self.native.release()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(type(self.native), name, None)
        if method is None:
            raise AttributeError(f"'{type(self.native).__name__}' object has no attribute '{name}'")
        return Method(name.replace("_", ":"), lambda *arguments: method(self.native, *arguments), self.native.runtime)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and other.native is self.native

    def __hash__(self) -> int:
        return id(self.native)


class Method:
    """A call through the bridge: arguments are checked and converted, and so is the result."""

    def __init__(self, selector: str, function: Any, runtime: Runtime, *, of_class: bool = False) -> None:
        self.selector, self.function, self.runtime, self.of_class = selector, function, runtime, of_class

    def __call__(self, *arguments: Any) -> Any:
        runtime, selector = self.runtime, self.selector
        returns, types = runtime.types(selector)
        if len(arguments) != len(types):
            raise BridgeError(f"{selector}: Need {len(types)} arguments, got {len(arguments)}")
        if runtime.records_calls:
            runtime.calls.append((selector, arguments))
        converted = [self._converted(*pair) for pair in zip(types, arguments, strict=True)]
        self._check_lengths(types, arguments)
        result = self.function(*converted)
        wants_error = any(each.startswith("o") for each in types)
        error = None
        if isinstance(result, Failed):
            error = NSError(runtime, result).autorelease() if wants_error else None
            result = False if returns == "Z" else None
        wrapped = self._wrapped(result)
        return (wrapped, self._plain(error)) if wants_error else wrapped

    def _converted(self, kind: str, value: Any) -> Any:
        good = {
            "Q": lambda: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64,
            "q": lambda: isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63,
            "Z": lambda: isinstance(value, (bool, int)) and value in (0, 1),
            "@": lambda: value is None or isinstance(value, (str, Proxy, list, dict)),
            "o^@": lambda: value is None,
            "^@": lambda: value is None,
            "^v": lambda: value is None,
            "n^v": lambda: _is_buffer(value),
            "@?": lambda: value is None or (callable(value) and len(inspect.signature(value).parameters) == 2),
            "{MTLSize=QQQ}": lambda: isinstance(value, MTLSize),
        }[kind]()
        if not good:
            raise BridgeError(f"{self.selector}: {value!r} is no argument of type {kind}")
        if isinstance(value, str):
            NSString(self.runtime).autorelease()
        if isinstance(value, list):
            return [self._converted("@", each) for each in value]
        return value.native if isinstance(value, Proxy) else value

    def _check_lengths(self, types: list[str], arguments: tuple[Any, ...]) -> None:
        for index, kind in enumerate(types):
            is_last = index + 1 == len(types)
            if kind == "n^v" and not is_last and types[index + 1] == "Q" and "length" in self.selector:
                nbytes = memoryview(arguments[index]).nbytes
                if nbytes < arguments[index + 1]:
                    raise BridgeError(f"{self.selector}: {nbytes} bytes are fewer than {arguments[index + 1]}")

    def _wrapped(self, result: Any) -> Any:
        if not isinstance(result, Native):
            return result
        return Proxy(result, owned=self.runtime.takes_ownership(self.selector, of_class=self.of_class))

    def _plain(self, native: Native | None) -> Proxy | None:
        return None if native is None else Proxy(native, owned=False)


class Failed(NamedTuple):
    """What a method of a fake returns instead of a result: an NSError."""

    text: str
    code: int = 1
    domain: str = "FakeDomain"


class NSError(Native):
    def __init__(self, runtime: Runtime, failed: Failed) -> None:
        super().__init__(runtime)
        self.failed = failed

    def localizedDescription(self) -> str:
        return self.failed.text

    def code(self) -> int:
        return self.failed.code

    def domain(self) -> str:
        return self.failed.domain


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True
