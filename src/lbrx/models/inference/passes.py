"""Recorded passes: the operations of a model on so many tokens, recorded once and then run without Python."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from lbrx.engine.device import device
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import CannotRecord, CompiledStep, Recorder
from lbrx.models.inference.positions import MakeTables, Positions, Rotation
from lbrx.models.inference.weights import Floats
from lbrx.settings import settings

Compute = Callable[[Any, Any, Any], Any]
"""Computes a result from embeddings, positions and the cache."""

_MOST_PASSES = 4


class RecordedPositions(Positions):
    """Positions whose tables are filled in before every run."""

    def __init__(self, recorder: Recorder, rotation: Rotation) -> None:
        super().__init__(rotation, 0, recorder.tokens)
        self._recorder = recorder
        self.inputs: dict[Hashable, tuple[MakeTables, Any]] = {}

    def tables(self, key: Hashable, make: MakeTables) -> Any:
        """Return inputs with the shapes of the tables."""
        if key not in self.inputs:
            tables = make(0, self._recorder.tokens)
            self.inputs[key] = make, tuple(self._recorder.input(table.shape) for table in tables)
        return self.inputs[key][1]


class RecordedPass:
    """A compiled recording, and how to fill its inputs."""

    def __init__(self, step: CompiledStep, makers: tuple[MakeTables, ...]) -> None:
        self._step, self._makers = step, makers
        self.lock = threading.Lock()

    def run(self, embedded: Floats, cache: KeyValueCache) -> Floats:
        """Return the result for tokens that follow those in the cache. It is valid until the next run."""
        rows, *inputs = self._step.inputs
        rows[...] = embedded
        tables = (table for make in self._makers for table in make(cache.length, len(embedded)))
        for given, table in zip(inputs, tables, strict=True):
            given[...] = table
        return self._step.run(cache)


class Passes:
    """The recorded passes of a model by number of tokens and kind of result. The second use of a pass is recorded."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation
        self._lock = threading.Lock()
        self._used: OrderedDict[tuple[Any, ...], bool] = OrderedDict()  # whether the pass was recorded, or could not be
        self._recorded: dict[tuple[Any, ...], RecordedPass] = {}

    @contextmanager
    def found(
        self, embedded: Floats, cache: KeyValueCache, name: str, compute: Compute
    ) -> Iterator[RecordedPass | None]:
        """Give the pass for as long as a ``with`` block; None if the operations have to be run one by one."""
        with self._lock:
            recorded = self._find(embedded, cache, name, compute)
            if recorded is not None and not recorded.lock.acquire(blocking=False):
                recorded = None  # another thread runs it
        try:
            yield recorded
        finally:
            if recorded is not None:
                recorded.lock.release()

    def _find(self, embedded: Floats, cache: KeyValueCache, name: str, compute: Compute) -> RecordedPass | None:
        key = name, settings.device, settings.activation_bits, cache.dtype_name, embedded.shape
        if key not in self._used:
            self._used[key] = False
            if len(self._used) > _MOST_PASSES:
                oldest, _ = self._used.popitem(last=False)
                self._recorded.pop(oldest, None)
            return None
        self._used.move_to_end(key)
        if not self._used[key]:
            self._used[key] = True
            recorded = self._record(embedded, cache, compute)
            if recorded is not None:
                self._recorded[key] = recorded
        return self._recorded.get(key)

    def _record(self, embedded: Floats, cache: KeyValueCache, compute: Compute) -> RecordedPass | None:
        recorder = Recorder(len(embedded))
        positions = RecordedPositions(recorder, self._rotation)
        try:
            result = compute(recorder.input(embedded.shape), positions, cache)
        except CannotRecord:
            return None
        step = device(settings.device).compile_step(recorder.finish(result))
        return None if step is None else RecordedPass(step, tuple(make for make, _ in positions.inputs.values()))
