"""The members of a zip archive whose bytes lie in it as they are, so that they can be mapped.

An archive ends with a record that says where its directory is. The directory names the members and where their local
headers are; the bytes of a member follow its local header. Large archives have a second, wider record (zip64).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.header import quoted
from lbrx.files.formats.source import read_at, size_of

MAX_DIRECTORY_BYTES = 64 << 20
_END = struct.Struct("<4s4H2IH")  # signature, disks, members here and in all, bytes and place of the directory, comment
_WIDE_LOCATOR = struct.Struct("<4sIQI")
_WIDE_END = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_COMMENT_BYTES = 0xFFFF
_NARROW_LIMIT = 0xFFFF_FFFF  # a field with all bits set has its value in the extra field of zip64
_WIDE_FIELD_ID = 1
_ENCRYPTED = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive: where its bytes lie."""

    name: str
    offset: int
    nbytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    method: int
    flags: int
    crc: int
    stored_bytes: int
    nbytes: int
    header_offset: int


def read_members(path: Path, file: BinaryIO) -> dict[str, Member]:
    """All members by name; a member that is compressed, encrypted, overlaps another or is cut off is an error."""
    file_bytes = size_of(file)
    count, start, directory_bytes = _directory_place(path, file, file_bytes)
    raw = read_at(file, path, start, directory_bytes)
    entries = _entries(path, raw, count)
    return _located(path, file, entries, directory_start=start)


def read_member(path: Path, file: BinaryIO, member: Member, max_bytes: int) -> bytes:
    """The bytes of a small member, checked against their checksum."""
    if member.nbytes > max_bytes:
        raise FormatError(f"{path}: {quoted(member.name)} has {member.nbytes} bytes, expected at most {max_bytes}")
    content = read_at(file, path, member.offset, member.nbytes)
    if zlib.crc32(content) != member.crc:
        raise FormatError(f"{path}: {quoted(member.name)} does not have the checksum that the archive says")
    return content


def _directory_place(path: Path, file: BinaryIO, file_bytes: int) -> tuple[int, int, int]:
    """How many members there are, and where the directory begins and how long it is."""
    tail_bytes = min(file_bytes, _END.size + _MAX_COMMENT_BYTES)
    tail = read_at(file, path, file_bytes - tail_bytes, tail_bytes)
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or len(tail) - found < _END.size:
        raise FormatError(f"{path}: is a zip archive without an end, probably of an unfinished download")
    end = file_bytes - tail_bytes + found
    _, disk, _, _, count, directory_bytes, start, _ = _END.unpack_from(tail, found)
    if end >= _WIDE_LOCATOR.size:
        signature, _, place, _ = _WIDE_LOCATOR.unpack(read_at(file, path, end - _WIDE_LOCATOR.size, _WIDE_LOCATOR.size))
        if signature == b"PK\x06\x07":
            if place + _WIDE_END.size > end:
                raise FormatError(f"{path}: the archive's wide end is said to be at byte {place}, which is not there")
            fields = _WIDE_END.unpack(read_at(file, path, place, _WIDE_END.size))
            if fields[0] != b"PK\x06\x06":
                raise FormatError(f"{path}: the archive has no wide end at byte {place}")
            disk, count, directory_bytes, start, end = fields[4], *fields[7:10], place
    if disk:
        raise FormatError(f"{path}: is part {disk} of an archive of several files, expected a whole one")
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise FormatError(f"{path}: has a directory of {directory_bytes} bytes, expected at most {MAX_DIRECTORY_BYTES}")
    if start + directory_bytes > end:
        raise FormatError(
            f"{path}: the archive's directory ends at byte {start + directory_bytes}, expected at most {end}"
        )
    return count, start, directory_bytes


def _entries(path: Path, raw: bytes, count: int) -> list[_Entry]:
    entries: list[_Entry] = []
    place = 0
    while place < len(raw):
        if len(raw) - place < _ENTRY.size or raw[place : place + 4] != b"PK\x01\x02":
            raise FormatError(f"{path}: the archive's directory is broken after {len(entries)} members")
        fields = _ENTRY.unpack_from(raw, place)
        flags, method, crc = fields[3], fields[4], fields[7]
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        name_start = place + _ENTRY.size
        place = name_start + name_bytes + extra_bytes + comment_bytes
        if place > len(raw):
            raise FormatError(f"{path}: the archive's directory is cut off after {len(entries)} members")
        name = raw[name_start : name_start + name_bytes].decode("utf-8", "backslashreplace")
        extra = raw[name_start + name_bytes : name_start + name_bytes + extra_bytes]
        nbytes, stored_bytes, offset = _wide_values(path, name, extra, (fields[9], fields[8], fields[16]))
        entries.append(_Entry(name, method, flags, crc, stored_bytes, nbytes, offset))
    if len(entries) != count:
        raise FormatError(f"{path}: the archive's directory has {len(entries)} members, expected {count}")
    return entries


def _wide_values(path: Path, name: str, extra: bytes, narrow: Sequence[int]) -> list[int]:
    """Sizes and offset of a member: those that do not fit into 32 bits come, in their order, from the extra field."""
    missing = sum(value == _NARROW_LIMIT for value in narrow)
    if not missing:
        return list(narrow)
    wide: tuple[int, ...] = ()
    place = 0
    while place + 4 <= len(extra):
        field_id, field_bytes = struct.unpack_from("<2H", extra, place)
        if field_id == _WIDE_FIELD_ID and place + 4 + field_bytes <= len(extra):
            wide = struct.unpack_from(f"<{field_bytes // 8}Q", extra, place + 4)
        place += 4 + field_bytes
    if len(wide) < missing:
        raise FormatError(f"{path}: {quoted(name)} lacks the sizes that the archive's directory promises")
    values = iter(wide)
    return [next(values) if value == _NARROW_LIMIT else value for value in narrow]


def _located(path: Path, file: BinaryIO, entries: Sequence[_Entry], directory_start: int) -> dict[str, Member]:
    members: dict[str, Member] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise FormatError(
                f"{path}: {quoted(entry.name)} begins at byte {entry.header_offset} and overlaps another member,"
                f" expected at least byte {end}"
            )
        member = _located_member(path, file, entry, directory_start)
        if member.name in members:
            raise FormatError(f"{path}: {quoted(member.name)} is in the archive twice")
        members[member.name] = member
        end = member.offset + member.nbytes
    return members


def _located_member(path: Path, file: BinaryIO, entry: _Entry, directory_start: int) -> Member:
    where = f"{path}: {quoted(entry.name)}"
    if entry.flags & _ENCRYPTED:
        raise FormatError(f"{where} is encrypted, expected plain bytes")
    if entry.method or entry.stored_bytes != entry.nbytes:
        raise FormatError(f"{where} is compressed (method {entry.method}), expected stored bytes, which can be mapped")
    if entry.header_offset + _LOCAL.size > directory_start:
        raise FormatError(f"{where} begins at byte {entry.header_offset}, but members end at byte {directory_start}")
    fields = _LOCAL.unpack(read_at(file, path, entry.header_offset, _LOCAL.size))
    if fields[0] != b"PK\x03\x04" or fields[3] != entry.method:
        raise FormatError(f"{where} has no header of its own at byte {entry.header_offset}")
    offset = entry.header_offset + _LOCAL.size + fields[9] + fields[10]
    if offset + entry.nbytes > directory_start:
        raise FormatError(f"{where} ends at byte {offset + entry.nbytes}, but members end at byte {directory_start}")
    return Member(entry.name, offset, entry.nbytes, entry.crc)


def find_one(members: Mapping[str, Member], ending: str) -> Member | None:
    """The only member in the archive's top folder with this name, or None.

    >>> find_one({"model/data.pkl": Member("model/data.pkl", 64, 10, 0)}, "data.pkl").offset
    64
    """
    found = [member for name, member in members.items() if name.partition("/")[2] == ending]
    return found[0] if len(found) == 1 else None
