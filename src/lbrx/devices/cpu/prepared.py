"""A compiled pass over contiguous memory, called again and again with other addresses and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.cpu.build.kernel_cache import compiled
from lbrx.devices.cpu.codegen import streamed_stores
from lbrx.devices.cpu.run import run_in_memory
from lbrx.engine.block_sizes import REDUCTION_BLOCK
from lbrx.engine.device import Combine
from lbrx.engine.program import Program
from lbrx.tensors.dtype import DTYPES


@dataclass(slots=True)
class _Arguments:
    """The arrays of one call of a kernel, and where they lie."""

    ints: npt.NDArray[np.int64]
    floats: npt.NDArray[np.float64]
    ints_address: int
    floats_address: int
    partials: npt.NDArray[Any] | None = None  # and indices, of the blocks of a reduction
    indices: npt.NDArray[np.int64] | None = None


class CompiledCall:
    """A compiled pass with one sink, and the slots of its arguments."""

    __slots__ = ("_block_slot", "_flag_slot", "_free", "_leaf_slots", "_number_slots", "_sink_slot", "compiled")

    def __init__(self, program: Program) -> None:
        compiled_program = compiled(program)
        slots = compiled_program.slots
        self.compiled = compiled_program
        self._leaf_slots = [slots[f"leaf{number}.address"] for number in range(len(program.leaves))]
        self._number_slots = [
            (True, slots.floats[number]) if number in slots.floats else (False, slots[f"scalar{number}"])
            for number in range(len(program.scalars))
        ]
        self._sink_slot = slots["sink0.address" if program.sinks[0].op == "store" else "sink0.partials"]
        self._block_slot = slots["block"]
        self._flag_slot = slots["is_streamed"] if slots.can_stream else None
        self._free: list[_Arguments] = []  # of calls that are over

    def _arguments(self, leaves: list[int], numbers: list[Any]) -> _Arguments:
        arguments = self._free.pop() if self._free else self._new_arguments()
        ints = arguments.ints
        for slot, address in zip(self._leaf_slots, leaves, strict=True):
            ints[slot] = address
        for (is_float, slot), number in zip(self._number_slots, numbers, strict=True):
            if is_float:
                arguments.floats[slot] = number
            else:
                ints[slot] = number
        return arguments

    def _new_arguments(self) -> _Arguments:
        ints = np.zeros(len(self._leaf_slots) + len(self._number_slots) + 8, np.int64)
        floats = np.zeros(max(len(self._number_slots), 1), np.float64)
        ints[self._block_slot] = REDUCTION_BLOCK
        return _Arguments(ints, floats, ints.ctypes.data, floats.ctypes.data)

    def _run(self, arguments: _Arguments, elements: int) -> None:
        run_in_memory(self.compiled, arguments.ints_address, arguments.floats_address, elements, REDUCTION_BLOCK)

    def store(self, leaves: list[int], numbers: list[Any], target: int, nbytes: int, elements: int) -> None:
        """Store all elements at an address."""
        arguments = self._arguments(leaves, numbers)
        arguments.ints[self._sink_slot] = target
        if self._flag_slot is not None:
            arguments.ints[self._flag_slot] = streamed_stores.pays(nbytes)
        self._run(arguments, elements)
        self._free.append(arguments)

    def reduce(self, leaves: list[int], numbers: list[Any], elements: int, combine: Combine) -> Any:
        """The value of the reduction."""
        arguments = self._arguments(leaves, numbers)
        blocks = -(-elements // REDUCTION_BLOCK)
        if arguments.partials is None or arguments.partials.size != blocks:
            self._allocate_partials(arguments, blocks)
        self._run(arguments, elements)
        assert arguments.partials is not None
        value = combine(arguments.partials, arguments.indices)
        self._free.append(arguments)
        return value

    def _allocate_partials(self, arguments: _Arguments, blocks: int) -> None:
        """Memory for what the blocks find, and for where if it is an argmax: partials, then indices."""
        sink = self.compiled.program.sinks[0]
        is_float = DTYPES[self.compiled.program.value_types()[sink.args[0]]].is_float
        arguments.partials = np.zeros(blocks, np.float64 if is_float else np.int64)
        arguments.ints[self._sink_slot] = arguments.partials.ctypes.data
        if sink.op == "argmax":
            arguments.indices = np.zeros(blocks, np.int64)
            arguments.ints[self._sink_slot + 1] = arguments.indices.ctypes.data
