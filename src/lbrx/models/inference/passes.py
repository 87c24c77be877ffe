"""Recorded passes: the operations of a model on so many tokens, recorded once and then run without Python."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lbrx.engine.device import device
from lbrx.engine.key_values import KeyValueCache
from lbrx.engine.recording import CannotRecord, CompiledStep, Recorder
from lbrx.models.inference.positions import Rotation, Turns
from lbrx.models.inference.weights import Floats
from lbrx.settings import settings
from lbrx.tensors.rope import RopeConfig

Compute = Callable[[Any, Any, Any], Any]
"""Computes a result from embeddings, positions and the cache."""

_MOST_PASSES = 4


class RecordedPositions:
    """Positions whose cosines and sines are filled in before every run; see `positions.Positions`."""

    def __init__(self, recorder: Recorder, rotation: Rotation) -> None:
        self._recorder, self._rotation = recorder, rotation
        self.inputs: dict[RopeConfig, tuple[Any, Any]] = {}

    def turns(self, rope: RopeConfig) -> Any:
        """Return cosines and sines for layers of a type."""
        if rope not in self.inputs:
            shape = self._recorder.tokens, self._rotation.frequencies(rope).radians.size
            self.inputs[rope] = self._recorder.input(shape), self._recorder.input(shape)
        return self.inputs[rope]


class RecordedPass:
    """A compiled recording, and how to fill its inputs."""

    def __init__(self, step: CompiledStep, rotation: Rotation, ropes: tuple[RopeConfig, ...]) -> None:
        self._step, self._rotation, self._ropes = step, rotation, ropes
        self.lock = threading.Lock()

    def run(self, embedded: Floats, cache: KeyValueCache) -> Floats:
        """Return the result for tokens that follow those in the cache. It is valid until the next run."""
        rows, *tables = self._step.inputs
        rows[...] = embedded
        for number, rope in enumerate(self._ropes):
            turns: Turns = self._rotation.turns(rope, cache.length, len(embedded))
            tables[2 * number][...], tables[2 * number + 1][...] = turns
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
        key = name, settings.device, cache.dtype_name, embedded.shape
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
        return None if step is None else RecordedPass(step, self._rotation, tuple(positions.inputs))
