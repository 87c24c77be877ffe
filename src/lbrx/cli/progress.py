"""Progress and results of a run: a progress bar, JSON events, or only a summary."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lbrx.base.system import anonymous_bytes, format_bytes
from lbrx.files.remote.paths import without_secrets

if TYPE_CHECKING:
    from lbrx.files.output.options import Progress
    from lbrx.files.output.plan import OutputPlan
    from lbrx.files.output.run import RunResult

_PATIENCE_SECONDS = 0.5  # shorter runs show no bar
_LISTED_TENSORS = 5
_EVENTS_PER_SECOND = 10
_INTERRUPTED = "interrupted: run the same command to resume"


class Reporter:
    """Print only warnings and a closing summary. Used for pipes and files, as a context manager around the run."""

    def __init__(self, is_quiet: bool = False) -> None:
        self.is_quiet = is_quiet
        self.started = time.monotonic()
        self.memory_bytes = self.peak_memory_bytes = 0
        self._next_sample = 0.0

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def warnings(self, warnings: Sequence[str]) -> None:
        for warning in warnings if not self.is_quiet else ():
            print(f"warning: {_printable(warning)}", file=sys.stderr)

    def recipe(self, text: str) -> None:
        """Print the recipe built from command-line options."""
        if not self.is_quiet:
            print("recipe:\n" + "".join(f"  {line}\n" for line in text.splitlines()))

    def progress(self, state: Progress) -> None:
        """Called when a tensor is done."""
        now = time.monotonic()
        if now >= self._next_sample or state.done_tensors == state.total_tensors:
            self._next_sample = now + 1 / _EVENTS_PER_SECOND
            self.memory_bytes = anonymous_bytes()  # macOS walks over all regions of memory for it
            self.peak_memory_bytes = max(self.peak_memory_bytes, self.memory_bytes)

    def failed(self, error: Exception) -> None:
        """Called before an error is raised. The caller prints the error."""

    def interrupted(self) -> None:
        """Print how to resume an interrupted run."""
        print(_INTERRUPTED, file=sys.stderr)

    def done(self, result: RunResult, plan: OutputPlan, next_command: str | None) -> None:
        """Print the closing summary: one line, and on a terminal also the dtypes and the next command."""
        self.warnings(_nonfinite_lines(result))
        if self.is_quiet:
            return
        summary = OutputSummary(plan)
        memory_bytes = self.peak_memory_bytes or anonymous_bytes()  # a run with nothing left to do has no progress
        line = _printable(_result_line(result, summary, time.monotonic() - self.started, memory_bytes))
        print(_wrapped(line))
        if sys.stdout.isatty():
            print(f"{_printable(summary.types_text())} tensors")
            if next_command is not None:
                print(f"next: {_printable(next_command)}")


class JsonReporter(Reporter):
    """Print events as JSON lines on standard output."""

    def __init__(self) -> None:
        super().__init__(is_quiet=True)
        self._next_event = 0.0

    def warnings(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            _print_event("warning", message=warning)

    def recipe(self, text: str) -> None:
        _print_event("recipe", text=text)

    def progress(self, state: Progress) -> None:
        super().progress(state)
        now = time.monotonic()
        if now < self._next_event and state.done_tensors < state.total_tensors:
            return
        self._next_event = now + 1 / _EVENTS_PER_SECOND
        done_here = state.done_bytes - state.resumed_bytes
        rate = done_here / max(now - self.started, 1e-9)
        _print_event(
            "progress",
            tensor=state.tensor,
            at_hand=state.at_hand,
            done_tensors=state.done_tensors,
            total_tensors=state.total_tensors,
            done_bytes=state.done_bytes,
            total_bytes=state.total_bytes,
            resumed_bytes=state.resumed_bytes,
            bytes_per_second=round(rate),
            seconds_left=round((state.total_bytes - state.done_bytes) / max(rate, 1.0), 3),
            memory_bytes=self.memory_bytes,
        )

    def failed(self, error: Exception) -> None:
        _print_event("error", message=str(error))

    def interrupted(self) -> None:
        _print_event("interrupted", message=_INTERRUPTED)

    def done(self, result: RunResult, plan: OutputPlan, next_command: str | None) -> None:
        summary = OutputSummary(plan)
        _print_event(
            "done",
            out=str(result.out),
            tensors=result.tensors,
            written_bytes=result.written_bytes,
            resumed_tensors=result.resumed_tensors,
            nonfinite={
                tensor: {origin: {"nan": nans, "infinite": infinities} for origin, (nans, infinities) in counts.items()}
                for tensor, counts in result.nonfinite.items()
            },
            seconds=round(result.seconds, 3),
            total_seconds=round(time.monotonic() - self.started, 3),
            file_bytes=summary.file_bytes,
            bits_per_weight=summary.bits_per_weight,
            types=summary.types,
            peak_memory_bytes=self.peak_memory_bytes,
            next=next_command,
        )


class TerminalReporter(Reporter):
    """Show a progress bar with speed, time left and the current tensor."""

    def __init__(self, verb: str) -> None:
        from lbrx.cli.status import ProgressBar

        super().__init__()
        self._bar = ProgressBar(verb, in_bytes=True)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, state: Progress) -> None:
        super().progress(state)
        if time.monotonic() - self.started >= _PATIENCE_SECONDS:
            self._bar.update(state.done_bytes, state.total_bytes, state.at_hand or state.tensor)


class OutputSummary:
    """Size, dtypes and bits per weight of an output."""

    def __init__(self, plan: OutputPlan) -> None:
        self.types: dict[str, int] = {}
        weights = nbytes = 0
        for layout in plan.layouts:
            for slot in layout.slots:
                self.types[slot.type_name] = self.types.get(slot.type_name, 0) + 1
                weights += math.prod(slot.shape)
                nbytes += slot.nbytes
        if any(name in ("u32", "i32") for name in self.types):  # several weights in an element
            weights = _packed_weights(plan)
        self.bits_per_weight = round(8 * nbytes / weights, 3) if weights else None
        self.file_bytes = sum(layout.file_bytes for layout in plan.layouts)
        self.source_bytes = sum(header.file_bytes for header in plan.sources)

    def types_text(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in self.types.items())


def _packed_weights(plan: OutputPlan) -> int:
    """Return the number of weights of an MLX model: a scale belongs to a group. 0 if there is no such config.json."""
    config: dict[str, Any] = next(
        (json.loads(file.read()) for file in plan.side_files if file.name == "config.json"), {}
    )
    settings = config.get("quantization", {})
    if "group_size" not in settings:
        return 0
    elements = {slot.name: math.prod(slot.shape) for layout in plan.layouts for slot in layout.slots}
    for name in [name for name in elements if name.endswith(".scales")]:
        module = name.removesuffix(".scales")
        own = settings.get(module)
        group_size = (own if isinstance(own, dict) else settings)["group_size"]
        elements[f"{module}.weight"] = group_size * elements.pop(name)
        elements.pop(f"{module}.biases", None)
    return sum(elements.values())


def reporter(verb: str, *, as_json: bool, is_quiet: bool) -> Reporter:
    """Return the reporter for these options and for the type of standard error."""
    if as_json:
        return JsonReporter()
    if is_quiet or not sys.stderr.isatty():
        return Reporter(is_quiet)
    return TerminalReporter(verb)


def _printable(text: str) -> str:
    """Escape control characters and hide passwords, since names and paths come from untrusted files."""
    text = without_secrets(text)
    if text.isprintable():
        return text
    from lbrx.cli.console import printable

    return printable(text)


def _wrapped(line: str) -> str:
    """Wrap a line between words on a terminal."""
    if not sys.stdout.isatty():
        return line
    from shutil import get_terminal_size
    from textwrap import fill

    return fill(line, get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)


def _print_event(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def duration_text(seconds: float) -> str:
    """Format a duration.

    >>> duration_text(0.02), duration_text(75), duration_text(7500)
    ('0.1 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{max(seconds, 0.1):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _result_line(result: RunResult, summary: OutputSummary, seconds: float, memory_bytes: int) -> str:
    resumed = f", {result.resumed_tensors:,} of them from an earlier run" if result.resumed_tensors else ""
    rate = f" ({format_bytes(int(summary.file_bytes / max(seconds, 1e-9)))}/s)"
    read = f" (read {format_bytes(summary.source_bytes)})"
    if result.resumed_tensors:
        read = rate = ""  # of the rest only, whose size is not known here
    bits = "" if summary.bits_per_weight is None else f", {summary.bits_per_weight:.2f} bits per weight"
    return (
        f"{result.out}: {result.tensors:,} tensors{resumed}, {format_bytes(summary.file_bytes)}{bits}{read} "
        f"in {duration_text(seconds)}{rate}, {format_bytes(memory_bytes)} memory"
    )


def _nonfinite_lines(result: RunResult) -> list[str]:
    from lbrx.files.output.nonfinite import describe

    lines = [f"tensor {name!r}: {describe(counts)}" for name, counts in result.nonfinite.items()]
    if len(lines) > _LISTED_TENSORS:
        more = len(lines) - _LISTED_TENSORS
        return [*lines[:_LISTED_TENSORS], f"{more} more tensors contain NaN or infinite values; --json lists them all"]
    return lines
