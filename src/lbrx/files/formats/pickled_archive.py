"""The uncompressed members of a zip archive, whose bytes can be mapped.

An archive ends with a record that gives the offset of its directory. The directory lists the members and the offsets
of their local headers; the bytes of a member follow its local header. Large archives have a second, wider record
(zip64). `zipfile` decodes the directory. It accepts much that would be unsafe to map, so the rest is checked here.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.header import quoted
from lbrx.files.formats.source import read_at, size_of

MAX_DIRECTORY_BYTES = 64 << 20
# Signature, disks, members on this disk and in total, bytes and offset of the directory, comment.
_END = struct.Struct("<4s4H2IH")
_WIDE_LOCATOR = struct.Struct("<4sIQI")
_WIDE_END = struct.Struct("<4sQ2H2I4Q")
_ENTRY_BYTES = 46
_ENTRY_LENGTHS = struct.Struct("<3H")  # lengths of name, extra fields and comment, at byte 28 of an entry
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_COMMENT_BYTES = 0xFFFF
_MAX_EXTRA_BYTES = 4096  # per member; zipfile takes quadratic time for them
_NARROW_LIMIT = 0xFFFF_FFFF  # if all bits of a field are set, the zip64 extra field has its value
_ENCRYPTED = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive and the offset of its bytes."""

    name: str
    offset: int
    nbytes: int
    crc: int


def read_members(path: Path, file: BinaryIO) -> dict[str, Member]:
    """Read all members by name; a compressed, encrypted, overlapping or truncated member is an error."""
    file_bytes = size_of(file)
    count, start, directory_bytes = _find_directory(path, file, file_bytes)
    raw = read_at(file, path, start, directory_bytes)
    _check_directory(path, raw, count)
    return _located(path, file, _decoded(path, raw), directory_start=start)


def read_member(path: Path, file: BinaryIO, member: Member, max_bytes: int) -> bytes:
    """Read the bytes of a small member and verify their checksum."""
    if member.nbytes > max_bytes:
        raise FormatError(f"{path}: {quoted(member.name)} has {member.nbytes} bytes, expected at most {max_bytes}")
    content = read_at(file, path, member.offset, member.nbytes)
    if zlib.crc32(content) != member.crc:
        raise FormatError(f"{path}: {quoted(member.name)} does not match its checksum in the archive")
    return content


def _find_directory(path: Path, file: BinaryIO, file_bytes: int) -> tuple[int, int, int]:
    """Return the number of members, and the offset and the length of the directory."""
    tail_bytes = min(file_bytes, _END.size + _MAX_COMMENT_BYTES)
    tail = read_at(file, path, file_bytes - tail_bytes, tail_bytes)
    index = tail.rfind(b"PK\x05\x06")
    if index < 0 or len(tail) - index < _END.size:
        raise FormatError(f"{path}: is a zip archive without an end, probably from an unfinished download")
    end = file_bytes - tail_bytes + index
    _, disk, _, _, count, directory_bytes, start, _ = _END.unpack_from(tail, index)
    if end >= _WIDE_LOCATOR.size:
        signature, _, wide_end, _ = _WIDE_LOCATOR.unpack(
            read_at(file, path, end - _WIDE_LOCATOR.size, _WIDE_LOCATOR.size)
        )
        if signature == b"PK\x06\x07":
            if wide_end + _WIDE_END.size > end:
                raise FormatError(
                    f"{path}: the archive gives byte {wide_end} for its zip64 end record, which is beyond its end"
                )
            fields = _WIDE_END.unpack(read_at(file, path, wide_end, _WIDE_END.size))
            if fields[0] != b"PK\x06\x06":
                raise FormatError(f"{path}: the archive has no zip64 end record at byte {wide_end}")
            disk, count, directory_bytes, start, end = fields[4], *fields[7:10], wide_end
    if disk:
        raise FormatError(f"{path}: is part {disk} of an archive of several files, expected a whole one")
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise FormatError(f"{path}: has a directory of {directory_bytes} bytes, expected at most {MAX_DIRECTORY_BYTES}")
    if start + directory_bytes > end:
        raise FormatError(
            f"{path}: the archive's directory ends at byte {start + directory_bytes}, expected at most {end}"
        )
    return count, start, directory_bytes


def _check_directory(path: Path, raw: bytes, count: int) -> None:
    """Raise unless a directory consists of exactly `count` whole entries."""
    offset = entries = 0
    while offset < len(raw):
        if len(raw) - offset < _ENTRY_BYTES or raw[offset : offset + 4] != b"PK\x01\x02":
            raise FormatError(f"{path}: the archive's directory is broken after {entries} members")
        name_bytes, extra_bytes, comment_bytes = _ENTRY_LENGTHS.unpack_from(raw, offset + 28)
        offset += _ENTRY_BYTES + name_bytes + extra_bytes + comment_bytes
        if offset > len(raw):
            raise FormatError(f"{path}: the archive's directory is cut off after {entries} members")
        if extra_bytes > _MAX_EXTRA_BYTES:
            raise FormatError(f"{path}: a member has {extra_bytes} extra bytes, expected at most {_MAX_EXTRA_BYTES}")
        entries += 1
    if entries != count:
        raise FormatError(f"{path}: the archive's directory has {entries} members, expected {count}")


def _decoded(path: Path, raw: bytes) -> list[zipfile.ZipInfo]:
    """Decode the entries of a directory by presenting it as an archive without data."""
    end = _END.pack(b"PK\x05\x06", 0, 0, 0, 0, len(raw), 0, 0)
    try:
        with zipfile.ZipFile(io.BytesIO(raw + end)) as directory:
            return directory.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise FormatError(f"{path}: the archive's directory is broken: {error}") from error


def _located(path: Path, file: BinaryIO, entries: Sequence[zipfile.ZipInfo], directory_start: int) -> dict[str, Member]:
    members: dict[str, Member] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise FormatError(
                f"{path}: {quoted(entry.orig_filename)} begins at byte {entry.header_offset}"
                f" and overlaps another member, expected at least byte {end}"
            )
        member = _located_member(path, file, entry, directory_start)
        if member.name in members:
            raise FormatError(f"{path}: {quoted(member.name)} is in the archive twice")
        members[member.name] = member
        end = member.offset + member.nbytes
    return members


def _located_member(path: Path, file: BinaryIO, entry: zipfile.ZipInfo, directory_start: int) -> Member:
    where = f"{path}: {quoted(entry.orig_filename)}"
    if _NARROW_LIMIT in (entry.file_size, entry.compress_size, entry.header_offset) and not entry.extra:
        raise FormatError(f"{where} lacks the sizes in the zip64 extra field")
    if entry.flag_bits & _ENCRYPTED:
        raise FormatError(f"{where} is encrypted, expected plain bytes")
    if entry.compress_type or entry.compress_size != entry.file_size:
        raise FormatError(
            f"{where} is compressed (method {entry.compress_type}), expected stored bytes, which can be mapped"
        )
    if entry.header_offset + _LOCAL.size > directory_start:
        raise FormatError(f"{where} begins at byte {entry.header_offset}, but members end at byte {directory_start}")
    fields = _LOCAL.unpack(read_at(file, path, entry.header_offset, _LOCAL.size))
    if fields[0] != b"PK\x03\x04" or fields[3] != entry.compress_type:
        raise FormatError(f"{where} has no local header at byte {entry.header_offset}")
    offset = entry.header_offset + _LOCAL.size + fields[9] + fields[10]
    if offset + entry.file_size > directory_start:
        raise FormatError(f"{where} ends at byte {offset + entry.file_size}, but members end at byte {directory_start}")
    return Member(entry.orig_filename, offset, entry.file_size, entry.CRC)


def find_one(members: Mapping[str, Member], ending: str) -> Member | None:
    """Return the only member with this name in the top folder of the archive, or None.

    >>> find_one({"model/data.pkl": Member("model/data.pkl", 64, 10, 0)}, "data.pkl").offset
    64
    """
    matches = [member for name, member in members.items() if name.partition("/")[2] == ending]
    return matches[0] if len(matches) == 1 else None
