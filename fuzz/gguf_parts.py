"""GGUF files as lists that can be changed and written again, whether or not the result makes sense."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class Info(NamedTuple):
    """The description of a tensor."""

    name: bytes
    sizes: tuple[int, ...]
    type_id: int
    offset: int


@dataclass
class GgufParts:
    """The parts of a GGUF file of version 3. Texts are bytes; an array has the type 256 + that of its elements."""

    pairs: list[tuple[bytes, int, Any]]
    infos: list[Info]
    data: bytes

    @classmethod
    def parse(cls, data: bytes) -> GgufParts:
        """The parts of a file; errors of ``struct`` for files that are too damaged."""
        reader = _Reader(data)
        magic, _version, tensor_count, pair_count = reader.numbers("4sIQQ")
        if magic != b"GGUF" or pair_count > 10_000 or tensor_count > 10_000:
            raise ValueError("not a GGUF file to change")
        pairs = []
        for _ in range(pair_count):
            key = reader.text()
            (type_id,) = reader.numbers("I")
            pairs.append((key, *reader.value(type_id)))
        infos = []
        for _ in range(tensor_count):
            name = reader.text()
            (rank,) = reader.numbers("I")
            sizes = reader.numbers(f"{min(rank, 64)}Q")
            infos.append(Info(name, sizes, *reader.numbers("IQ")))
        return cls(pairs, infos, data[reader.position :])

    @staticmethod
    def typed(value: Any) -> tuple[int, Any]:
        """The type and form of a plain value."""
        if isinstance(value, str):
            return _TEXT, value.encode("utf-8", "surrogatepass")
        if isinstance(value, bool):
            return 7, value
        return (12, value) if isinstance(value, float) else (11 if -(2**63) <= value < 2**63 else 10, value)

    def to_bytes(self) -> bytes:
        """The file; numbers that do not fit their type wrap around."""
        made = [b"GGUF", struct.pack("<IQQ", 3, len(self.infos), len(self.pairs))]
        for key, type_id, value in self.pairs:
            made.append(_text(key) + _value(type_id, value))
        for info in self.infos:
            made.append(_text(info.name) + struct.pack(f"<I{len(info.sizes)}Q", len(info.sizes), *info.sizes))
            made.append(struct.pack("<IQ", info.type_id, info.offset))
        return b"".join(made) + self.data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def numbers(self, codes: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(f"<{codes}", self.data, self.position)
        except struct.error as error:
            raise ValueError(str(error)) from error
        self.position += struct.calcsize(f"<{codes}")
        return values

    def text(self) -> bytes:
        (length,) = self.numbers("Q")
        value = self.data[self.position : self.position + length]
        self.position += len(value)
        return value

    def value(self, type_id: int) -> tuple[int, Any]:
        if type_id == _TEXT:
            return type_id, self.text()
        if type_id != _ARRAY:
            return type_id, self.numbers(_CODES[type_id])[0]
        element, count = self.numbers("IQ")
        if count > len(self.data):
            raise ValueError("an array longer than the file")
        return 256 + element, [self.value(element)[1] for _ in range(count)]


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _value(type_id: int, value: Any) -> bytes:
    if type_id < 256:
        return struct.pack("<I", type_id) + _plain(type_id, value)
    elements = b"".join(_plain(type_id - 256, each) for each in value)
    return struct.pack("<IIQ", _ARRAY, type_id - 256, len(value)) + elements


def _plain(type_id: int, value: Any) -> bytes:
    if type_id == _TEXT:
        return _text(value if isinstance(value, bytes) else str(value).encode())
    code = _CODES.get(type_id, "I")
    if code in "fd":
        number = float(value) if isinstance(value, int | float) and abs(value) < 1e300 else float("inf")
        return struct.pack(f"<{code}", number if code == "d" or abs(number) < 3e38 else float("inf"))
    if code == "?":
        return bytes([bool(value)])
    nbytes = struct.calcsize(code)
    return (int(value) % 256**nbytes).to_bytes(nbytes, "little")
