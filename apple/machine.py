"""Runs arm64 code in this process with Unicorn, and counts what it executes.

Guest addresses are those of this process: pages are given to the emulator when the code first touches them. So a kernel
gets the same arguments as on a Mac, pointers included.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import unicorn
from unicorn import arm64_const as arm

from apple.core import Mix, mix_of
from apple.macho import Image, load

_STACK_BYTES, _RETURN = 4 << 20, 0x1000
_ARGUMENTS = tuple(getattr(arm, f"UC_ARM64_REG_X{number}") for number in range(8))
_ENABLE_VECTORS = 3 << 20


@dataclass
class Count:
    """The blocks of code that were executed, and how often: (address, bytes) -> times."""

    blocks: Counter[tuple[int, int]] = field(default_factory=Counter)

    def mix(self) -> Mix:
        """All that was executed."""
        return sum((block_mix(*block) * times for block, times in self.blocks.items()), Mix())

    def hottest(self, share: float = 0.9) -> list[tuple[tuple[int, int], int]]:
        """The blocks that make up most of the instructions, the largest part first."""
        ranked = sorted(self.blocks.items(), key=lambda item: -item[0][1] * item[1])
        whole = sum(size * times for (_, size), times in ranked)
        found, covered = [], 0
        for (address, size), times in ranked:
            if covered >= share * whole:
                break
            covered += size * times
            found.append(((address, size), times))
        return found


def words_of(address: int, size: int) -> tuple[int, ...]:
    """The instructions of a block."""
    return struct.unpack(f"<{size // 4}I", ctypes.string_at(address, size))


def block_mix(address: int, size: int) -> Mix:
    """What the instructions of a block need."""
    return sum((mix_of(word) for word in words_of(address, size)), Mix())


class Machine:
    """One emulated core with objects loaded into this process."""

    def __init__(self) -> None:
        self._uc = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self._uc.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        self._uc.reg_write(arm.UC_ARM64_REG_CPACR_EL1, _ENABLE_VECTORS)
        self._stack = np.zeros(_STACK_BYTES, np.uint8)
        self._images: list[Image] = []
        self._builtins: dict[str, int] = {}
        self._builtin_code = np.zeros(1024, np.uint32)
        self._builtin_code.fill(0xD65F03C0)  # ret
        self._counts: list[Count] = []
        self._failure: BaseException | None = None
        self._uc.mem_map(_RETURN, 0x1000)
        unmapped = unicorn.UC_HOOK_MEM_UNMAPPED
        self._uc.hook_add(unmapped, self._map_pages)
        self._uc.hook_add(unicorn.UC_HOOK_BLOCK, self._count_block)

    def load(self, data: bytes) -> Image:
        """Load an object; its symbols can then be called."""
        image = load(data, self._builtin)
        self._images.append(image)
        return image

    def call(self, address: int, *arguments: int) -> int:
        """Call code with integers; the result as an int32."""
        registers, stacked = arguments[:8], arguments[8:]
        top = (self._stack.ctypes.data + _STACK_BYTES - 256 - 8 * len(stacked)) & ~15
        for number, value in enumerate(stacked):
            ctypes.c_int64.from_address(top + 8 * number).value = value
        for register, value in zip(_ARGUMENTS, registers, strict=False):
            self._uc.reg_write(register, value & (1 << 64) - 1)
        self._uc.reg_write(arm.UC_ARM64_REG_SP, top)
        self._uc.reg_write(arm.UC_ARM64_REG_LR, _RETURN)
        self._failure = None
        try:
            self._uc.emu_start(address, _RETURN)
        except unicorn.UcError as error:
            at = self._uc.reg_read(arm.UC_ARM64_REG_PC)
            word = words_of(at, 4)[0] if self._is_code(at) else 0
            raise RuntimeError(f"arm64 code stopped at {at:#x} (instruction {word:#010x}): {error}") from error
        if self._failure is not None:
            raise self._failure
        return ctypes.c_int32(self._uc.reg_read(arm.UC_ARM64_REG_X0) & 0xFFFFFFFF).value

    @contextmanager
    def counting(self) -> Iterator[Count]:
        """Count the blocks that are executed inside a ``with`` block."""
        count = Count()
        self._counts.append(count)
        try:
            yield count
        finally:
            self._counts.remove(count)

    def _is_code(self, address: int) -> bool:
        return any(first <= address < end for first, end in (image.code for image in self._images))

    def _count_block(self, _uc: Any, address: int, size: int, _: Any) -> None:
        if self._start_of_builtins <= address < self._start_of_builtins + self._builtin_code.nbytes:
            self._run_builtin(address)
            return
        for count in self._counts:
            count.blocks[address, size] += 1

    # -- functions of the C library ---------------------------------------------------------------------------------

    @property
    def _start_of_builtins(self) -> int:
        return int(self._builtin_code.ctypes.data)

    def _builtin(self, name: str) -> int:
        if name not in self._builtins:
            self._builtins[name] = self._start_of_builtins + 4 * len(self._builtins)
        return self._builtins[name]

    def _run_builtin(self, address: int) -> None:
        name = list(self._builtins)[(address - self._start_of_builtins) // 4]
        first, second, third = (self._uc.reg_read(register) for register in _ARGUMENTS[:3])
        if name == "_bzero":
            ctypes.memset(first, 0, second)
        elif name == "_memset":
            ctypes.memset(first, second & 255, third)
        elif name in ("_memcpy", "_memmove"):
            ctypes.memmove(first, second, third)
        elif name == "_log":
            number = struct.unpack("<d", self._uc.reg_read(arm.UC_ARM64_REG_D0).to_bytes(8, "little"))[0]
            self._uc.reg_write(arm.UC_ARM64_REG_D0, int.from_bytes(struct.pack("<d", math.log(number)), "little"))
        else:
            self._failure = RuntimeError(f"arm64 code calls {name}, which is not here")
            self._uc.emu_stop()

    # -- memory -----------------------------------------------------------------------------------------------------

    def _map_pages(self, _uc: Any, _access: int, address: int, _size: int, _value: int, _: Any) -> bool:
        for first, end in _mapped_ranges():
            if first <= address < end:
                for low, high in self._gaps(first, end):
                    self._uc.mem_map_ptr(low, high - low, unicorn.UC_PROT_ALL, low)
                return True
        return False

    def _gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that the emulator does not have yet."""
        known = sorted((low, high + 1) for low, high, _ in self._uc.mem_regions())
        inside = ((max(low, first), min(high, end)) for low, high in known if low < end and high > first)
        edges = [first, *chain.from_iterable(inside), end]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(low, high) for low, high in pairs if low < high]


def _mapped_ranges() -> Iterator[tuple[int, int]]:
    """The readable ranges of this process's memory."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as lines:
        for line in lines:
            ends, rights, *_ = line.split()
            if rights[0] == "r":
                first, _, end = ends.partition("-")
                yield int(first, 16), int(end, 16)
