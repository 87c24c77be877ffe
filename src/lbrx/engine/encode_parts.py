"""Codings of several parts, such as codes, scales and biases, that are made together from one look at the values."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.destination import ArrayDestination, Destination, TakesAtOnce
from lbrx.engine.encode import F32, U8, BlockBuffer, EncodedStorage, EncodeTiles, coded_values
from lbrx.tensors.codecs.codec import kernel, kernel_address
from lbrx.tensors.dtype import DType
from lbrx.tensors.expr import Expr
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Bytes, CpuStorage


@dataclass(frozen=True, slots=True)
class JointCoding:
    """How groups of values become parts: so many bytes of each for a group.

    ``function`` of a module of kernels takes the address of f32 values, that of int64 numbers (the addresses of the
    parts, 0 for one that is not wanted, then ``parameters``) and the number of groups.
    """

    group_size: int
    part_bytes: tuple[int, ...]
    kernels: str
    function: str
    parameters: tuple[int, ...]

    def encode(self, values: int, parts: int, groups: int) -> None:
        kernel(self.kernels, self.function, 3)(values, parts, groups)

    def encoder_address(self) -> int:
        return kernel_address(self.kernels, self.function, 3)


class JointValues:
    """Values to be coded. Nothing is computed until parts are written (``encode_into``) or read."""

    def __init__(self, values: Expr, coding: JointCoding) -> None:
        self.coding = coding
        self._values: Expr | None = coded_values(values)
        self._groups = int(np.prod(values.shape, dtype=np.int64)) // coding.group_size
        self._made: list[CpuStorage] | None = None
        self._lock = threading.Lock()

    @property
    def values(self) -> Expr | None:
        """What the parts are made of, None once they are made."""
        return self._values

    def part_bytes(self, part: int) -> int:
        return self._groups * self.coding.part_bytes[part]

    def encode_into(self, targets: Sequence[Destination | None]) -> None:
        """Stream the parts into destinations of bytes; None for a part that is not wanted."""
        from lbrx.engine.schedule import evaluate_stores

        with self._lock:
            values, made = self._values, self._made
        if made is not None:
            for target, part in zip(targets, made, strict=True):
                if target is not None:
                    target.write(0, part.read_at(0, part.nbytes))
        elif values is not None and self._groups:
            evaluate_stores([(values, JointDestination(targets, self.coding))])

    def in_memory(self) -> list[CpuStorage]:
        """All parts, made once and kept; what they were made of is let go."""
        with self._lock:
            if self._made is not None:
                return self._made
        targets = [ArrayDestination(U8, self.part_bytes(part)) for part in range(len(self.coding.part_bytes))]
        self.encode_into(targets)
        with self._lock:
            if self._made is None:
                self._made = [CpuStorage(target.whole) for target in targets]
                self._values = None
            return self._made


class PartStorage(EncodedStorage):
    """One part of joint values."""

    __slots__ = ("joint", "part")

    def __init__(self, joint: JointValues, part: int) -> None:
        self.joint = joint
        self.part = part
        self.nbytes = joint.part_bytes(part)

    @property
    def values(self) -> Expr | None:
        return self.joint.values

    def encode_into(self, target: Destination) -> None:
        count = len(self.joint.coding.part_bytes)
        self.joint.encode_into([target if number == self.part else None for number in range(count)])

    def in_memory(self) -> CpuStorage:
        return self.joint.in_memory()[self.part]


class JointDestination(TakesAtOnce):
    """Takes f32 values in any order and from many threads, and passes on their parts as bytes."""

    __slots__ = ("_coding", "_targets", "dtype", "whole")
    can_encode_tiles = True

    def __init__(self, targets: Sequence[Destination | None], coding: JointCoding) -> None:
        self.dtype: DType = F32
        self.whole: Bytes | None = None
        self._targets = targets
        self._coding = coding

    def check_finite(self, values: Bytes, dtype: DType) -> None:
        for target in self._targets:
            if target is not None:
                target.check_finite(values, dtype)

    def note_nonfinite(self) -> None:
        for target in self._targets:
            if target is not None:
                target.note_nonfinite()

    def write(self, lo: int, data: Bytes) -> None:
        self.check_finite(data, F32)
        groups = data.size // (F32.itemsize * self._coding.group_size)
        with ExitStack() as buffers:
            parts = self._parts(buffers, lo, groups)
            self._coding.encode(data.ctypes.data, parts.ctypes.data, groups)

    def encode_tiles(self, run: EncodeTiles, lo: int, hi: int) -> None:
        """Compute the elements ``lo`` to ``hi`` and encode them while the cache holds them."""
        coding = self._coding
        with ExitStack() as buffers:
            parts = self._parts(buffers, lo, (hi - lo) // coding.group_size)
            if not run(lo, hi, coding.encoder_address(), coding.group_size, 0, parts.ctypes.data):
                self.note_nonfinite()

    def _parts(self, buffers: ExitStack, lo: int, groups: int) -> np.ndarray[Shape, np.dtype[np.int64]]:
        """What the compiled function is told: memory for every part that is wanted, and its parameters."""
        first = lo // self._coding.group_size
        addresses = []
        for target, part_bytes in zip(self._targets, self._coding.part_bytes, strict=True):
            buffer = None if target is None else BlockBuffer(target, first * part_bytes, groups * part_bytes)
            addresses.append(0 if buffer is None else buffers.enter_context(buffer).ctypes.data)
        return np.array([*addresses, *self._coding.parameters], np.int64)
