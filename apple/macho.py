"""Loads relocatable Mach-O objects for arm64 into memory of this process."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

MAGIC = 0xFEEDFACF
_SEGMENT, _SYMBOLS = 0x19, 0x2
_UNSIGNED, _BRANCH, _PAGE, _PAGE_OFFSET, _GOT_PAGE, _GOT_OFFSET, _ADDEND = 0, 2, 3, 4, 5, 6, 10
_FOR_UNWINDING = ("__compact_unwind", "__eh_frame")
_PAGE_BYTES = mmap.PAGESIZE


@dataclass
class Image:
    """An object in memory: where it is, its symbols, and where its code is."""

    memory: mmap.mmap
    address: int
    symbols: dict[str, int]
    code: tuple[int, int]
    slots: list[int] = field(default_factory=list)


class _Section:
    def __init__(self, data: bytes, position: int) -> None:
        self.name = data[position : position + 16].rstrip(b"\0").decode()
        self.address, self.size, offset, _, self.relocations, self.count, self.flags = struct.unpack_from(
            "<QQIIIII", data, position + 32
        )
        is_zero = self.flags & 0xFF == 1
        self.content = bytes(self.size) if is_zero else data[offset : offset + self.size]


def load(data: bytes, external: Callable[[str], int]) -> Image:
    """Place an object in memory; ``external`` gives the address of a symbol that it does not define."""
    magic, _, _, kind, commands = struct.unpack_from("<IIIII", data)
    if (magic, kind) != (MAGIC, 1):
        raise ValueError(f"not a Mach-O object: magic {magic:#x}, type {kind}")
    sections: list[_Section] = []
    names: list[tuple[str, int, bool]] = []
    position = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, position)
        if command == _SEGMENT:
            (count,) = struct.unpack_from("<I", data, position + 64)
            sections = [_Section(data, position + 72 + 80 * number) for number in range(count)]
        elif command == _SYMBOLS:
            names = list(_symbols(data, position))
        position += size
    return _place(data, sections, names, external)


def _symbols(data: bytes, position: int) -> list[tuple[str, int, bool]]:
    """Name, address and whether it is defined here, of each symbol."""
    table, count, strings = struct.unpack_from("<III", data, position + 8)
    found = []
    for number in range(count):
        name_offset, kind, _, _, value = struct.unpack_from("<IBBHQ", data, table + 16 * number)
        start = strings + name_offset
        found.append((data[start : data.index(b"\0", start)].decode(), value, kind & 0x0E != 0))
    return found


def _place(
    data: bytes, sections: list[_Section], names: list[tuple[str, int, bool]], external: Callable[[str], int]
) -> Image:
    end = max(section.address + section.size for section in sections)
    got = -(-end // 8) * 8
    memory = mmap.mmap(-1, -(-(got + 8 * len(names)) // _PAGE_BYTES) * _PAGE_BYTES)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    addresses = [base + value if is_defined else external(name) for name, value, is_defined in names]
    for section in sections:
        memory[section.address : section.address + section.size] = section.content
    for number, address in enumerate(addresses):
        struct.pack_into("<Q", memory, got + 8 * number, address)
    for section in sections:
        if section.name in _FOR_UNWINDING:
            continue
        _relocate(data, section, memory, base, addresses, base + got)
    text = next(section for section in sections if section.name == "__text")
    symbols = {name: base + value for name, value, is_defined in names if is_defined}
    return Image(memory, base, symbols, (base + text.address, base + text.address + text.size))


def _relocate(data: bytes, section: _Section, memory: mmap.mmap, base: int, addresses: list[int], got: int) -> None:
    addend = 0
    for number in range(section.count):
        place, packed = struct.unpack_from("<iI", data, section.relocations + 8 * number)
        symbol, is_external, kind = packed & 0xFFFFFF, packed >> 27 & 1, packed >> 28
        if kind == _ADDEND:
            addend = (symbol ^ 0x800000) - 0x800000
            continue
        at = section.address + place
        (word,) = struct.unpack_from("<I", memory, at)
        if kind in (_GOT_PAGE, _GOT_OFFSET):
            target = got + 8 * symbol
        elif is_external:
            target = addresses[symbol] + addend
        else:
            target = base  # the place holds the address in the object
        addend = 0
        if kind == _UNSIGNED:
            struct.pack_into("<Q", memory, at, target + struct.unpack_from("<Q", memory, at)[0])
        elif kind == _BRANCH:
            struct.pack_into("<I", memory, at, word | (target - (base + at)) >> 2 & 0x3FFFFFF)
        elif kind in (_PAGE, _GOT_PAGE):
            pages = (target >> 12) - (base + at >> 12)
            struct.pack_into("<I", memory, at, word | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)
        elif kind in (_PAGE_OFFSET, _GOT_OFFSET):
            shift = _access_shift(word)
            struct.pack_into("<I", memory, at, word | ((target & 0xFFF) >> shift) << 10)
        else:
            raise ValueError(f"relocation {kind} is not known")


def _access_shift(word: int) -> int:
    """The unit of the offset in an instruction, as a power of two: loads and stores count in their own size."""
    if word & 0x3B000000 != 0x39000000:
        return 0
    shift = word >> 30
    return 4 if not shift and word & 0x04800000 == 0x04800000 else shift
