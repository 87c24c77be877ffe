"""Settings of the process: number of threads, chunk size, default device and precision of activations.

Results never depend on the number of threads or the chunk size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

from lbrx.base import system
from lbrx.base.build import build
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.registry import DEVICES


class Device(str):
    """A device of `lbrx.registry.DEVICES`. It equals its name as text and can be used wherever text can.

    >>> Device("cpu"), Device("cpu") == "cpu", f"on {Device('cpu')}"
    (Device('cpu'), True, 'on cpu')
    """

    __slots__ = ()

    def __new__(cls, name: str) -> Device:
        if name not in DEVICES:
            hint = nearest(name, DEVICES) if isinstance(name, str) else ""
            raise UsageError(f"unknown device {name!r}; expected one of {', '.join(DEVICES)}{hint}")
        return super().__new__(cls, name)

    def __repr__(self) -> str:
        return f"Device({super().__repr__()})"


@dataclass(slots=True)
class Settings:
    """``threads``: number of worker threads. ``chunk_elements``: elements that a worker processes at a time.
    ``device``: the device for inputs that are in files or in CPU memory. ``raw``: open checkpoints whose quantization
    lbrx cannot decode, and return the stored codes as values. ``activation_bits``: 16 or 8 bits for activations that
    `linear` multiplies by quantized weights (`docs/computing.md`)."""

    threads: int
    chunk_elements: int = 1 << 20
    device: str = "cpu"
    raw: bool = False
    activation_bits: int = 16


ACTIVATION_BITS = (16, 8)


def _threads_from_environment() -> int:
    text = os.environ.get("LBRX_THREADS")
    if text is None:
        return system.cpu_count()
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"LBRX_THREADS is {text!r}; expected a whole number of at least 1")
    return int(text)


def _device_from_environment() -> str:
    name = os.environ.get("LBRX_DEVICE", "cpu")
    if name not in DEVICES:
        raise UsageError(f"LBRX_DEVICE is {name!r}; expected one of {', '.join(DEVICES)}")
    return name


def _activation_bits_from_environment() -> int:
    text = os.environ.get("LBRX_ACTIVATION_BITS", "16")
    if text not in map(str, ACTIVATION_BITS):
        raise UsageError(f"LBRX_ACTIVATION_BITS is {text!r}; expected 16 or 8")
    return int(text)


compile_listeners: list[Callable[[], None]] = []
"""Called before a kernel is compiled, because that can take seconds."""

settings = Settings(
    threads=_threads_from_environment(),
    device=_device_from_environment(),
    activation_bits=_activation_bits_from_environment(),
)


def arithmetic_version() -> str:
    """Identifies the arithmetic of forward passes: build and precision. Files with results of models contain it.

    >>> arithmetic_version() == build()
    True
    """
    bits = settings.activation_bits
    return build() if bits == 16 else f"{build()}, activations in {bits} bits"


@contextmanager
def using(
    *,
    threads: int | None = None,
    chunk_elements: int | None = None,
    device: str | None = None,
    raw: bool | None = None,
    activation_bits: int | None = None,
) -> Iterator[Settings]:
    """Change settings inside a ``with`` block.

    >>> with using(threads=1) as current:
    ...     current.threads
    1
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; expected at least 1")
    if chunk_elements is not None and chunk_elements < 1:
        raise UsageError(f"chunk_elements is {chunk_elements}; expected at least 1")
    if device is not None:
        Device(device)  # raises for an unknown name
    if activation_bits is not None and activation_bits not in ACTIVATION_BITS:
        raise UsageError(f"activation_bits is {activation_bits!r}; expected 16 or 8")
    before = replace(settings)
    settings.threads = threads or settings.threads
    settings.chunk_elements = chunk_elements or settings.chunk_elements
    settings.device = device or settings.device
    settings.raw = settings.raw if raw is None else raw
    settings.activation_bits = int(activation_bits or settings.activation_bits)  # files keep it as it is written
    try:
        yield settings
    finally:
        for field in fields(before):
            setattr(settings, field.name, getattr(before, field.name))
