"""The name of a device as a value."""

from __future__ import annotations

from lbrx.errors import UsageError, nearest
from lbrx.registry import DEVICES


class Device(str):
    """A device: ``"cpu"``, ``"metal"`` or ``"numpy"``. It equals its name as text and can be used wherever text can.

    >>> Device("metal"), Device("metal") == "metal", f"on {Device('cpu')}"
    (Device('metal'), True, 'on cpu')
    """

    __slots__ = ()

    def __new__(cls, name: str) -> Device:
        if name not in DEVICES:
            raise UsageError(f"unknown device {name!r}; expected one of {', '.join(DEVICES)}{nearest(name, DEVICES)}")
        return super().__new__(cls, name)

    def __repr__(self) -> str:
        return f"Device({super().__repr__()})"
