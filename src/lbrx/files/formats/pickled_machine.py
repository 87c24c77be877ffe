"""A virtual machine for PyTorch pickles. It creates tensors, dictionaries and plain values, and nothing else.

A pickle is a program for a stack machine. Python's unpickler hashes any key that a pickle contains, which can
take exponential time or overflow the C stack. This machine has only the instructions that PyTorch needs, and its time
and memory are bounded by the size of the pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any

from lbrx.errors import FormatError
from lbrx.files.formats.header import quoted
from lbrx.files.formats.pickled_values import NewDict, PickledStorage, PickledTensor, known_value, storage_of

MAX_PICKLE_BYTES = 32 << 20
MAX_CONTAINERS = 2_000_000  # lists, tuples, dictionaries and copied items: about 60 bytes of memory each
MAX_KEY = 1 << 53  # larger integers can be chosen to have equal hashes

_IGNORED = frozenset({"PROTO", "FRAME"})
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"})
_TEXTS = frozenset({"BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

# The exceptions that malformed instructions cause in the machine.
_BROKEN = (pickle.UnpicklingError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


def unpickle(content: bytes, where: str) -> Any:
    """Return the content of a pickle: dictionaries, plain values and `PickledTensor`. Never imports or calls its names.

    >>> unpickle(pickle.dumps({"step": 3}), "a.pt")
    {'step': 3}
    >>> unpickle(b"cos\\nsystem\\n.", "a.pt")
    Traceback (most recent call last):
    lbrx.errors.FormatError: a.pt: names 'os.system', which is not called; expected ... tensors, ...
    """
    return unpickle_next(BytesIO(content), where, {})


def unpickle_next(stream: BytesIO, where: str, storages: dict[str, PickledStorage]) -> Any:
    """Return the content of the pickle at the position of a stream, which is behind it afterwards.

    ``storages`` gets the storages that it refers to, by their keys.
    """
    from pickletools import genops  # imported late: large tables that only pickles need

    machine = _Machine(where, storages)
    instructions = genops(stream)
    while True:
        try:
            instruction, argument, offset = next(instructions)
        except (ValueError, AttributeError) as error:  # truncated, or not an instruction
            raise FormatError(f"{where}: is not a pickle: {_short(error)}") from error
        try:
            if instruction.name == "STOP":
                return machine.stack.pop()
            machine.run(instruction.name, argument, offset or 0)
        except _BROKEN as error:
            raise FormatError(f"{where}: is not a pickle of tensors: {_short(error)}") from error


class _Machine:
    """The stack, the stacks below its marks, and the memo."""

    def __init__(self, where: str, storages: dict[str, PickledStorage]) -> None:
        self.where = where
        self._storages = storages
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memory: dict[int, Any] = {}
        self._remembered = 0
        self._containers = 0

    def run(self, name: str, argument: Any, offset: int) -> None:
        """Run one instruction."""
        if name in _NUMBERS or name in _TEXTS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            items = [self.stack.pop() for _ in range(_TUPLES[name])]
            self._add_container(tuple(reversed(items)))
        elif name == "GLOBAL":
            module, _, attribute = str(argument).partition(" ")
            self.stack.append(known_value(self.where, module, attribute))
        elif name in _ON_MEMORY:
            _ON_MEMORY[name](self, argument)
        elif name in _ON_STACK:
            _ON_STACK[name](self)
        elif name not in _IGNORED:
            raise FormatError(
                f"{self.where}: has the instruction {name} at byte {offset}, which files of tensors do not need;"
                " nothing was run"
            )

    def _count(self, containers: int) -> None:
        self._containers += containers
        if self._containers > MAX_CONTAINERS:
            raise FormatError(f"{self.where}: has more than {MAX_CONTAINERS:,} lists, tuples and dictionaries")

    def _add_container(self, container: Any) -> None:
        self._count(1)
        self.stack.append(container)

    def _refer(self) -> None:
        """Replace a reference by the storage that it names."""
        storage = storage_of(self.where, self.stack.pop())
        known = self._storages.setdefault(storage.key, storage)
        if known != storage:
            raise FormatError(f"{self.where}: describes the storage {quoted(storage.key)} in two ways")
        self.stack.append(storage)

    def _mark(self) -> None:
        self._count(1)
        self._below.append(self.stack)
        self.stack = []

    def _items(self) -> list[Any]:
        """Pop the items pushed since the last mark."""
        items = self.stack
        self.stack = self._below.pop()
        return items

    def _pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._items()

    def _remember(self, number: Any) -> None:
        # Python allocates a list as long as the largest index; PyTorch numbers from 0 without gaps.
        self._remembered += 1
        if number >= 2 * self._remembered + 256:
            raise FormatError(f"{self.where}: uses memo index {number} for value {self._remembered}")
        self._memory[number] = self.stack[-1]

    def _recall(self, number: Any) -> None:
        self.stack.append(self._memory[number])

    def _stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise pickle.UnpicklingError(f"a name is {quoted((module, name))}, expected texts")
        self.stack.append(known_value(self.where, module, name))

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(arguments) is not tuple or (not callable(function) and not isinstance(function, NewDict)):
            raise pickle.UnpicklingError(f"calls {quoted(function)} with {quoted(arguments)}")
        self._add_container(self._new_dict(*arguments) if isinstance(function, NewDict) else function(*arguments))

    def _new_dict(self, pairs: Any = ()) -> dict[Any, Any]:
        if type(pairs) is dict:
            pairs = list(pairs.items())
        made: dict[Any, Any] = {}
        self._count(len(pairs))
        for key, value in pairs:
            self._set_item(made, key, value)
        return made

    def _build(self) -> None:
        """Drop the attributes that a pickle sets on a dictionary."""
        self.stack.pop()
        if type(self.stack[-1]) is not dict:
            raise pickle.UnpicklingError(f"sets attributes of {quoted(self.stack[-1])}")

    def _append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise pickle.UnpicklingError(f"appends to {quoted(self.stack[-1])}, expected a list")
        self.stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict or len(items) % 2:
            raise pickle.UnpicklingError(f"sets items of {quoted(self.stack[-1])}, expected a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set_item(self.stack[-1], key, value)

    def _set_item(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an item. An item whose key is not a plain value is skipped; it is an error if it may contain tensors."""
        if key is None or type(key) in (str, bool, float, bytes) or (type(key) is int and abs(key) < MAX_KEY):
            target[key] = value
        elif isinstance(value, PickledTensor | dict):
            raise FormatError(f"{self.where}: a tensor has the key {quoted(key)}, expected a name")


_ON_MEMORY: dict[str, Callable[[_Machine, Any], None]] = {
    "BINPUT": _Machine._remember,
    "LONG_BINPUT": _Machine._remember,
    "MEMOIZE": lambda machine, _: machine._remember(len(machine._memory)),
    "BINGET": _Machine._recall,
    "LONG_BINGET": _Machine._recall,
}
_ON_STACK: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine._mark,
    "POP": _Machine._pop,
    "EMPTY_LIST": lambda machine: machine._add_container([]),
    "EMPTY_DICT": lambda machine: machine._add_container({}),
    "TUPLE": lambda machine: machine._add_container(tuple(machine._items())),
    "APPEND": lambda machine: machine._append([machine.stack.pop()]),
    "APPENDS": lambda machine: machine._append(machine._items()),
    "SETITEM": lambda machine: machine._set_items([machine.stack.pop(), machine.stack.pop()][::-1]),
    "SETITEMS": lambda machine: machine._set_items(machine._items()),
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._refer,
}


def _short(error: BaseException) -> str:
    return quoted(str(error) or type(error).__name__)
