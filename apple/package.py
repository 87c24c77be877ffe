"""lbrx in this process with its kernels compiled for an Apple processor and run in the emulator."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from apple.machine import Machine
from apple.target import compile_for


class EmulatedFunction:
    """Stands in for a compiled function of ctypes."""

    def __init__(self, machine: Machine, address: int) -> None:
        self._machine = machine
        self.address = address

    def __call__(self, *arguments: Any) -> int:
        return self._machine.call(self.address, *(_number(argument) for argument in arguments))


def _number(argument: Any) -> int:
    return int(getattr(argument, "value", argument) or 0)


def emulate(cpu: str, cache: str) -> Machine:
    """Prepare lbrx, which must not be imported yet, and return the machine that runs its kernels."""
    os.environ["LBRX_CACHE_DIR"] = cache
    os.environ["LBRX_THREADS"] = "1"
    compile_for(cpu)
    from lbrx.base import system

    system.has_dot_products = lambda: True
    from lbrx.devices.cpu.build import kernel_cache

    machine = Machine()

    def link(symbol: str, code: bytes) -> int:
        return machine.load(code).symbols[f"_{symbol}"]

    environment = kernel_cache._environment
    kernel_cache._environment = lambda: f"{environment()}{cpu} Mach-O\n"  # type: ignore[assignment]
    kernel_cache._link = link
    kernel_cache._FUNCTION = lambda address: EmulatedFunction(machine, address)  # type: ignore[assignment,misc]
    kernel_cache.address_of = lambda function: function.address
    kernel_cache.ctypes = _Functions(machine)  # type: ignore[assignment]
    return machine


class _Functions:
    """ctypes, except that the functions it makes are emulated."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)

    def CFUNCTYPE(self, *_: Any) -> Any:
        return lambda address: EmulatedFunction(self._machine, address)
