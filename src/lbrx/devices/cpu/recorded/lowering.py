"""Operations of a recording as tasks: the kernels that the device calls for them, and their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lbrx.devices.cpu.build.native import address, bits, code_address
from lbrx.devices.cpu.ops.array_operations import CHUNK_ELEMENTS, ROW_OPERATIONS
from lbrx.devices.cpu.ops.attention import attention, row_job, row_task, takes_rows
from lbrx.devices.cpu.ops.codec_products import job_of_few_vectors
from lbrx.devices.cpu.ops.linear import values_2d
from lbrx.devices.cpu.ops.row_jobs import CodedJob, least_rows
from lbrx.devices.cpu.ops.weight_rows import HalfRows, MappedRows, rows_of
from lbrx.devices.cpu.recorded.slots import Slots
from lbrx.devices.cpu.recorded.tasks import At, Job, Task, Word, start_of
from lbrx.engine.attention_options import DTYPE_NAMES, AttentionOptions
from lbrx.engine.block_sizes import MOST_VECTORS
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import PYTHON, Operand, Operation, Recording, View
from lbrx.settings import settings
from lbrx.tensors.open_file import OpenFile
from lbrx.tensors.storage import MmapStorage, Storage
from lbrx.tensors.tensor import Tensor

PLACE_WORDS = 6  # of `attention_rows`
Array = npt.NDArray[Any]


class Lowering:
    """Turns operations into tasks, and collects what a step needs besides them."""

    def __init__(self, recording: Recording) -> None:
        self.tasks: list[Task] = []
        self._bits = settings.activation_bits
        self.slots = Slots(recording.slot_bytes)
        self.files: dict[int, OpenFile] = {}  # that have to be as long as they were
        self.cache: KeyValueCache | None = None  # of the run
        self.state = np.zeros(2, np.int64)  # of `attention_rows`
        self.kept: list[Array] = []  # whose addresses tasks have
        layers = [each.details[0] for each in recording.operations if each.name == "cached_attention"]
        self.places = np.zeros((max(layers, default=-1) + 1, PLACE_WORDS), np.int64)
        self._coded: dict[tuple[Any, ...], tuple[int, int]] = {}  # the task that codes vectors, and its slot
        for operation in recording.operations:
            self._lower(operation)

    def _lower(self, operation: Operation) -> None:
        name, output = operation.name, operation.output
        if name == PYTHON:
            (function,) = operation.details
            self._python(function, operation.inputs, output)
        elif name == "linear":
            self._linear(operation)
        elif name == "cached_attention":
            self._attention(operation)
        elif name == "state":
            self._state(operation)
        elif name == "copy":
            self._copy(operation)
        elif name == "rope":
            self._rope(operation)
        elif name in ROW_OPERATIONS:
            self._rows(f"rows_{len(operation.inputs) - 1 + len(operation.details)}", "norms", operation)
        elif name in ("add", "mul") and _shape(operation.inputs[1]) != output.shape:
            self._rows("rows_1", "elementwise", operation._replace(name=f"{name}_rows"))
        else:
            self._elements(operation)
        for key in [key for key in self._coded if key[0].slot == output.slot]:
            del self._coded[key]  # the vectors are others now

    def _add(self, task: Task) -> None:
        self.tasks.append(task)

    def _python(
        self, function: Callable[..., Array], inputs: tuple[Operand, ...], output: View, reads: tuple[Any, ...] = ()
    ) -> None:
        slots = self.slots

        def run() -> None:
            result = function(*(slots.array(each) if isinstance(each, View) else each for each in inputs))
            slots.array(output)[...] = result

        slots_read = (*_slots_of(inputs), *reads)
        self._add(Task(python=run, reads=slots_read, writes=(output.slot,)))

    def _state(self, operation: Operation) -> None:
        number, function = operation.details

        def run(*arrays: Array) -> Array:
            assert self.cache is not None
            result: Array = function(self.cache.states[number].arrays, *arrays)
            return result

        self._python(run, operation.inputs, operation.output)

    # -- products ------------------------------------------------------------------------------------------------------

    def _linear(self, operation: Operation) -> None:
        (x,), (weight,) = operation.inputs, operation.details
        assert isinstance(x, View)
        vectors, columns = x.shape
        if vectors <= MOST_VECTORS and columns:
            job = job_of_few_vectors(weight.expr, vectors, weight.shape[0], self._bits)
            if job is not None:
                self._coded_rows(job, x, weight, operation.output)
                return
            rows = rows_of(weight)
            if isinstance(rows, MappedRows):
                self._float_rows("f32", address(rows.array), rows.array.strides[0], x, weight, operation.output, rows)
                return
            if isinstance(rows, HalfRows) and rows.address is not None:
                name = weight.dtype.name
                self._float_rows(name, rows.address, 2 * columns, x, weight, operation.output, rows)
                return
        self._add(self._whole_product(x, weight, operation.output))

    def _whole_product(self, x: View, weight: Tensor, output: View) -> Task:
        slots, activation_bits = self.slots, self._bits

        def run() -> None:
            values_2d(slots.array(x), weight, slots.array(output), activation_bits)

        return Task(python=run, reads=(x.slot,), writes=(output.slot,))

    def _coded_rows(self, job: CodedJob, x: View, weight: Tensor, output: View) -> None:
        key = x, job.coding
        start, out = start_of(x), start_of(output)
        if key not in self._coded:
            scratch = self.slots.new(job.scratch_bytes)
            self._coded[key] = len(self.tasks), scratch
            function, words = code_address("step_tasks", "code", 4), job.words(At(scratch), start, out)
            status = job.has_status
            self._add(Task(function, words, job.coder, reads=(x.slot,), writes=(scratch,), has_status=status))
        number, scratch = self._coded[key]
        for storage in job.storages:
            self._keep_file(storage)
        self._add(
            Task(
                *(job.task, job.words(At(scratch), start, out), job.second, job.rows, job.least_rows),
                *((x.slot, scratch), (output.slot,), Job(number, job.watched_bytes)),
                has_status=job.has_status,
                python=self._whole_product(x, weight, output).python,
                kept=(weight,),
            )
        )

    def _float_rows(
        self, name: str, start: int, row_bytes: int, x: View, weight: Tensor, output: View, owner: Any
    ) -> None:
        (vectors, columns), rows = x.shape, weight.shape[0]
        function = code_address("gemv_float", name, 8)
        out, numbers = start_of(output), (row_bytes, columns, start_of(x), vectors, rows)
        task, least = code_address("gemv_tasks", "float_rows", 4), least_rows(row_bytes)
        if weight.storage is not None:
            self._keep_file(weight.storage)
        self._add(
            Task(
                *(task, (function, 0, start, out, *numbers), row_bytes, rows, least),
                *((x.slot,), (output.slot,)),
                kept=(owner,),
            )
        )

    def _keep_file(self, storage: Storage) -> None:
        if isinstance(storage, MmapStorage):
            self.files[id(storage.file)] = storage.file

    # -- operations on arrays ------------------------------------------------------------------------------------------

    def _rows(self, task: str, module: str, operation: Operation) -> None:
        columns = operation.output.shape[-1]
        others = [self._word(other) for other in operation.inputs[1:]]
        numbers = [bits(number) for number in operation.details]
        function = code_address(module, operation.name, 4 + len(others) + len(numbers))
        self._array_task(task, function, operation, (*others, *numbers), columns, operation.output.size // columns)

    def _elements(self, operation: Operation) -> None:
        others = [self._word(other) for other in operation.inputs[1:]]
        numbers = [bits(number) for number in operation.details]
        task = "elements_with" if others or numbers else "elements"
        function = code_address("elementwise", operation.name, 3 + len(others) + len(numbers))
        count = operation.output.size
        self._array_task(task, function, operation, (*others, *numbers), 4 if others else 0, count, 2 * CHUNK_ELEMENTS)

    def _rope(self, operation: Operation) -> None:
        rows, columns = operation.output.shape[-2:]
        cosines, sines = operation.inputs[1:]
        tables = self._word(cosines), self._word(sines)
        function = code_address("elementwise", "rope", 8)
        words = rows, columns, _shape(cosines)[1], *tables, int(operation.details[0] != 0)
        matrices = operation.output.size // (rows * columns)
        self._array_task("rope", function, operation, words, 0, matrices, max(1, CHUNK_ELEMENTS // (rows * columns)))

    def _copy(self, operation: Operation) -> None:
        (source,), output = operation.inputs, operation.output
        assert isinstance(source, View)
        if source.dtype != np.float32 or len(source.shape) > 3:
            self._python(np.asarray, operation.inputs, output)
            return
        shape, strides = ((1, 1, *source.shape)[-3:], (0, 0, *source.strides)[-3:])
        self._array_task("copy", 0, operation, (shape[1], *strides), shape[2], shape[0] * shape[1])

    def _array_task(
        self,
        name: str,
        function: int,
        operation: Operation,
        words: tuple[Word, ...],
        second: int,
        elements: int,
        block: int | None = None,
    ) -> None:
        """Add a task of `step_tasks`. A block of rows has about ``CHUNK_ELEMENTS`` elements if none is given."""
        source = self._word(operation.inputs[0])
        if block is None:
            block = max(1, CHUNK_ELEMENTS * elements // max(operation.output.size, 1))
        job = function, 0, source, start_of(operation.output), *words
        kept = tuple(each for each in operation.inputs if not isinstance(each, View))
        reads, writes = _slots_of(operation.inputs), (operation.output.slot,)
        task = code_address("step_tasks", name, 4)
        self._add(Task(task, job, second, elements, block, reads, writes, kept=kept))

    def _word(self, operand: Operand) -> Word:
        return start_of(operand) if isinstance(operand, View) else address(operand)

    # -- attention -----------------------------------------------------------------------------------------------------

    def _attention(self, operation: Operation) -> None:
        (q, k, v), output = operation.inputs, operation.output
        number, dtype, options = operation.details
        assert isinstance(q, View)
        assert isinstance(k, View)
        assert isinstance(v, View)
        q, keys, values = (self._contiguous(each) for each in (q, k, v))
        memory = f"layer {number}"
        place, state = address(self.places[number]), address(self.state)
        words = start_of(keys), start_of(values), k.shape[1], k.shape[2], v.shape[2], place, state
        dtype_name = DTYPE_NAMES[dtype]
        store = code_address("step_tasks", f"store_in_{dtype_name}", 4)
        heads, reads = k.shape[0], (keys.slot, values.slot)
        block = max(1, CHUNK_ELEMENTS // (k.shape[1] * (k.shape[2] + v.shape[2])))
        self._add(Task(store, (0, 0, *words), 0, heads, block, reads, (memory,)))
        group = q.shape[0] // heads
        if not takes_rows(q.shape[1], group):
            self._many(q, output, number, memory, options)
            return
        shape = q.shape[1], group, q.shape[2], v.shape[2]
        if options.sinks is not None:
            self.kept.append(options.sinks)
        job: tuple[Word, ...] = row_job(shape, (place, state), options)
        job = start_of(q), *q.strides[:2], start_of(output), *output.strides[:2], *job
        _, task = row_task(dtype_name, dtype_name)
        units = q.shape[0] * q.shape[1]
        self._add(Task(task, job, 0, units, 1, (q.slot, memory), (output.slot,), has_status=False))

    def _many(self, q: View, output: View, number: int, memory: str, options: AttentionOptions) -> None:
        def run(queries: Array) -> Array:
            assert self.cache is not None
            layer, offset = self.cache.layers[number], self.cache.length
            end = offset + queries.shape[1]
            return attention(queries, layer.keys[:, :end], layer.values[:, :end], replace(options, offset=offset))

        self._python(run, (q,), output, reads=(memory,))

    def _contiguous(self, view: View) -> View:
        if view.is_contiguous:
            return view
        copied = View(self.slots.new(4 * view.size), view.dtype, view.shape, _strides(view.shape), 0)
        self._copy(Operation("copy", (view,), copied))
        return copied


def _shape(operand: Operand) -> tuple[int, ...]:
    return tuple(operand.shape)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return np.empty(shape, np.float32).strides


def _slots_of(operands: tuple[Operand, ...]) -> tuple[int, ...]:
    return tuple(each.slot for each in operands if isinstance(each, View))
