"""Which variant of a kernel is fastest on a device: measured once, remembered in the user's cache directory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median

from lbrx.base import system
from lbrx.base.atomic_write import write_cache
from lbrx.devices.metal.context import MetalContext
from lbrx.errors import UsageError

_FILE = "metal_tuning.json"
_REPEATS = 5


class Tuning:
    """Choices by device and question, in a small file of JSON.

    A file that is damaged, or has another form, counts as empty. It is replaced atomically; where it cannot be
    written, choices last as long as the process.

    >>> import tempfile
    >>> tuning = Tuning(Path(tempfile.mkdtemp()) / "tuning.json")
    >>> tuning.remember("a GPU", "matmul f16 1024 1024 1024", "64x64")
    >>> Tuning(tuning.path).choice("a GPU", "matmul f16 1024 1024 1024")
    '64x64'
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._choices: dict[str, dict[str, str]] | None = None

    @property
    def path(self) -> Path:
        return self._path or system.cache_directory() / _FILE

    def choice(self, device: str, question: str) -> str | None:
        """What was remembered, or None."""
        with self._lock:
            if self._choices is None:
                self._choices = _read(self.path)
            return self._choices.get(device, {}).get(question)

    def remember(self, device: str, question: str, variant: str) -> None:
        """Keep a choice for this process and for later ones."""
        with self._lock:
            merged = _read(self.path)  # another process may have added to it
            for name, known in (self._choices or {}).items():
                merged.setdefault(name, {}).update(known)
            merged.setdefault(device, {})[question] = variant
            self._choices = merged
            write_cache(self.path, json.dumps(merged, indent=1, sort_keys=True).encode())


@cache
def default_tuning() -> Tuning:
    """The choices of this user."""
    return Tuning()


def shape_class(*sizes: int) -> str:
    """Sizes rounded up to powers of two: shapes that are tuned together.

    >>> shape_class(1, 100, 4096)
    '1 128 4096'
    """
    return " ".join(str(1 << max(0, size - 1).bit_length()) for size in sizes)


def chosen(context: MetalContext, question: str, variants: Sequence[str], default: str, wanted: str | None) -> str:
    """The variant that was asked for, else the one that was measured to be best, else the default."""
    if wanted is not None:
        if wanted not in variants:
            raise UsageError(f"{question}: there is no variant {wanted!r}; expected one of {', '.join(variants)}")
        return wanted
    remembered = default_tuning().choice(context.info.tuning_key, question)
    return remembered if remembered is not None and remembered in variants else default


def tune(
    context: MetalContext,
    question: str,
    variants: Sequence[str],
    run: Callable[[str], object],
    *,
    tuning: Tuning | None = None,
    clock: Callable[[MetalContext, Callable[[], object]], float] | None = None,
) -> dict[str, float]:
    """Measure every variant on the device and remember the fastest; the median seconds of each."""
    measure = clock or device_seconds
    seconds: dict[str, float] = {}
    for variant in variants:
        run(variant)  # compile, and touch the memory
        seconds[variant] = median(measure(context, partial(run, variant)) for _ in range(_REPEATS))
    fastest = min(variants, key=lambda variant: seconds[variant])
    (tuning or default_tuning()).remember(context.info.tuning_key, question, fastest)
    return seconds


def device_seconds(context: MetalContext, work: Callable[[], object]) -> float:
    """How long the device works on what ``work`` dispatches."""
    context.synchronize()
    work()
    batch = context.commit()
    batch.wait()
    start, end = batch.gpu_seconds
    return end - start


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {
        device: {question: variant for question, variant in choices.items() if isinstance(variant, str)}
        for device, choices in table.items()
        if isinstance(choices, dict)
    }
