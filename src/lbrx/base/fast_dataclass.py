"""Dataclasses that are made quickly.

The standard decorator compiles up to six methods for every class, which takes 0.6 ms, and a command imports a hundred
classes. Here classes with equally many fields share the code of ``__init__``, and the other methods are closures over
the names of the fields. Fields, slots and inheritance are the standard library's; ``replace``, ``fields`` and
``asdict`` work as with any dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _standard_dataclass
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, init=True, repr=True, eq=True):
        """``dataclasses.dataclass`` with the options that lbrx uses.

        >>> @dataclass(frozen=True, slots=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(3), Point(3) == Point(3, 0), len({Point(3), Point(3, 0)})
        (Point(x=3, y=0), True, 1)
        """
        make_fields = _standard_dataclass(init=False, repr=False, eq=False, slots=slots)

        def decorate(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or f"{cls.__name__}(...)"  # else it is made from a signature, which is slow
            cls = make_fields(cls)
            for name, method in _methods(cls, frozen, slots, init, repr, eq).items():
                if name not in cls.__dict__:
                    setattr(cls, name, method)
            return cls

        return decorate if cls is None else decorate(cls)


def _methods(cls: type, frozen: bool, slots: bool, init: bool, repr: bool, eq: bool) -> dict[str, Any]:
    """The methods of a class by name, as far as its options ask for them."""
    own: tuple[Field[Any], ...] = fields(cls)
    methods: dict[str, Any] = {}
    if init:
        methods["__init__"] = _initializer(cls, own, slots)
    if repr:
        methods["__repr__"] = _representation([field.name for field in own if field.repr])
    if eq:
        methods["__eq__"] = _equality(_values([field.name for field in own if field.compare]))
        hashed = [field.name for field in own if (field.compare if field.hash is None else field.hash)]
        methods["__hash__"] = _hashing(_values(hashed)) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_setting, "__delattr__": _refuse_deleting}
    if frozen and slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    return methods


def _initializer(cls: type, own: tuple[Field[Any], ...], slots: bool) -> FunctionType:
    """The template for such fields, with their names, defaults and setters."""
    names: dict[str, Any] = {"MISSING": MISSING, "set_attribute": object.__setattr__}
    defaults: list[object] = []
    for number, field in enumerate(own):
        names[f"name_{number}"] = field.name
        names[f"make_{number}"] = field.default_factory
        if slots:
            names[f"set_{number}"] = getattr(cls, field.name).__set__
        if field.default is not MISSING or field.default_factory is not MISSING:
            defaults.append(field.default)
        elif defaults:
            raise TypeError(f"{cls.__qualname__}: field {field.name!r} has no default, but one before it has")
    has_factory = tuple(field.default_factory is not MISSING for field in own)
    code = _template(has_factory, slots, hasattr(cls, "__post_init__")).replace(
        co_varnames=("self", *(field.name for field in own)), co_qualname=f"{cls.__qualname__}.__init__"
    )
    return FunctionType(code, names, "__init__", tuple(defaults))


@cache
def _template(has_factory: tuple[bool, ...], slots: bool, has_post_init: bool) -> CodeType:
    """The code of an ``__init__`` that classes with so many fields share: compiling takes longer than all the rest."""
    lines = []
    for number, is_made in enumerate(has_factory):
        value = f"make_{number}() if a_{number} is MISSING else a_{number}" if is_made else f"a_{number}"
        # A slot's own setter takes a third of the time.
        lines.append(f"set_{number}(self, {value})" if slots else f"set_attribute(self, name_{number}, {value})")
    if has_post_init:
        lines.append("self.__post_init__()")
    parameters = ["self", *(f"a_{number}" for number in range(len(has_factory)))]
    names: dict[str, Any] = {}
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", names)
    code: CodeType = names["__init__"].__code__
    return code


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an object to the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _representation(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return __repr__


def _equality(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hashing(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refuse_setting(_self: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """What pickle keeps of a frozen object with slots."""
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
