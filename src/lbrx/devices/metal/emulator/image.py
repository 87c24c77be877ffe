"""A compiled shader as bytes: the shared library, and its kernels, constants and variables as data."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.emulator.declarations import FunctionConstant
from lbrx.devices.metal.emulator.kernels import KernelEntry, Parameter
from lbrx.devices.metal.emulator.translate import Translation


@dataclass(frozen=True, slots=True)
class Image:
    """What ``build`` makes and a driver loads."""

    names: tuple[str, ...]
    kernels: dict[str, KernelEntry]
    constants: dict[str, FunctionConstant]
    variables: tuple[str, ...]
    instrumented: bool
    code: bytes

    @classmethod
    def of(cls, translation: Translation, instrumented: bool, code: bytes) -> Image:
        return cls(
            translation.names,
            translation.kernels,
            translation.constants,
            translation.variables,
            instrumented,
            code,
        )

    def to_bytes(self) -> bytes:
        """One string of bytes, for a cache."""
        table = {
            "names": self.names,
            "kernels": {name: dataclasses.asdict(entry) for name, entry in self.kernels.items()},
            "constants": {name: dataclasses.asdict(constant) for name, constant in self.constants.items()},
            "variables": self.variables,
            "instrumented": self.instrumented,
        }
        head = json.dumps(table).encode()
        return struct.pack("<I", len(head)) + head + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """The inverse of ``to_bytes``; a ShaderError for other bytes."""
        try:
            (length,) = struct.unpack_from("<I", data)
            table = json.loads(data[4 : 4 + length])
            return cls(
                tuple(table["names"]),
                {name: _entry(**entry) for name, entry in table["kernels"].items()},
                {name: FunctionConstant(**constant) for name, constant in table["constants"].items()},
                tuple(table["variables"]),
                bool(table["instrumented"]),
                data[4 + length :],
            )
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ShaderError(f"{len(data)} bytes are not a compiled shader of the emulator: {error}") from error


def _entry(number: int, parameters: list[dict[str, Any]]) -> KernelEntry:
    return KernelEntry(number, tuple(Parameter(**each) for each in parameters))
