"""What a merge tells while it runs: a bar in a terminal, events for programs, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lbrx.base.system import anonymous_bytes, format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from lbrx.files.output.options import Progress
    from lbrx.files.output.run import RunResult
    from lbrx.jobs.merge.plan import Plan
    from lbrx.jobs.merge.plan.estimate import Estimate

_PATIENCE_SECONDS = 0.5  # a merge that is over by then shows no bar
_LISTED_TENSORS = 5
_EVENTS_PER_SECOND = 10
_INTERRUPTED = "interrupted: run the same command to resume"


class Reporter:
    """Says nothing but the last line and what went wrong: for pipes and files. A context around the run."""

    def __init__(self, is_quiet: bool = False) -> None:
        self.is_quiet = is_quiet

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
        """Print the recipe that options stand for."""
        if not self.is_quiet:
            print("recipe:\n" + "".join(f"  {line}\n" for line in text.splitlines()))

    def planned(self, plan: Plan, cost: Estimate) -> None:
        """Print a plan that is not run."""
        for name, value in _plan_lines(plan, cost):
            print(f"{name:<16}{_printable(value)}")

    def progress(self, state: Progress) -> None:
        """A tensor is finished."""

    def failed(self, error: Exception) -> None:
        """The merge ends with an error, which is printed elsewhere."""

    def interrupted(self) -> None:
        """Somebody stopped the run, which can be gone on with."""
        print(_INTERRUPTED, file=sys.stderr)

    def done(self, result: RunResult) -> None:
        self.warnings(_nonfinite_lines(result))
        if not self.is_quiet:
            print(_printable(_result_line(result)))


class JsonReporter(Reporter):
    """Events as lines of JSON on standard output."""

    def __init__(self) -> None:
        super().__init__(is_quiet=True)
        self._next_event = 0.0
        self._started = time.monotonic()

    def warnings(self, warnings: Sequence[str]) -> None:
        for warning in warnings:
            _print_event("warning", message=warning)

    def recipe(self, text: str) -> None:
        _print_event("recipe", text=text)

    def planned(self, plan: Plan, cost: Estimate) -> None:
        _print_event(
            "plan",
            out=str(plan.out),
            method=plan.stage.method.name,
            models=[model.label for model in plan.models],
            tensors=cost.tensors,
            read_bytes=cost.read_bytes,
            write_bytes=cost.write_bytes,
            files=[layout.name for layout in plan.layouts] + [file.name for file in plan.side_files],
            passes=cost.passes,
            seconds=round(cost.seconds, 3),
            peak_memory_bytes=cost.peak_memory_bytes,
        )

    def progress(self, state: Progress) -> None:
        now = time.monotonic()
        if now < self._next_event and state.done_tensors < state.total_tensors:
            return
        self._next_event = now + 1 / _EVENTS_PER_SECOND
        done_here = state.done_bytes - state.resumed_bytes
        rate = done_here / max(now - self._started, 1e-9)
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
            memory_bytes=anonymous_bytes(),
        )

    def failed(self, error: Exception) -> None:
        _print_event("error", message=str(error))

    def interrupted(self) -> None:
        _print_event("interrupted", message=_INTERRUPTED)

    def done(self, result: RunResult) -> None:
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
        )


class TerminalReporter(Reporter):
    """A bar with bytes per second, time left, memory, and the tensor at hand."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def progress(self, state: Progress) -> None:
        if self._bar is None:
            if time.monotonic() - self._started < _PATIENCE_SECONDS:
                return
            self._bar = _bar()
            self._task = self._bar.add_task("merge", total=state.total_bytes, tensor="", memory="")
            self._bar.start()
        assert self._task is not None
        memory = format_bytes(anonymous_bytes())
        tensor = _printable(state.at_hand or state.tensor)
        self._bar.update(self._task, completed=state.done_bytes, tensor=tensor, memory=memory)


def reporter(*, as_json: bool, is_quiet: bool) -> Reporter:
    """The reporter for the options and for where standard output goes."""
    if as_json:
        return JsonReporter()
    if is_quiet or not sys.stderr.isatty():
        return Reporter(is_quiet)
    return TerminalReporter()


def _bar() -> Bar:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    from lbrx.cli.console import error_console

    return Progress(
        BarColumn(bar_width=12),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[memory]} memory", style="dim"),
        TextColumn("{task.fields[tensor]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=error_console(),
        transient=True,
        expand=True,
    )


def _printable(text: str) -> str:
    """Names and paths come from strangers: escape what could control the terminal."""
    if text.isprintable():
        return text
    from lbrx.cli.console import printable

    return printable(text)


def _print_event(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def _plan_lines(plan: Plan, cost: Estimate) -> list[tuple[str, str]]:
    models = plan.models
    sizes = [format_bytes(sum(header.file_bytes for header in model.files)) for model in models]
    lines = [("method", plan.stage.method.name)]
    lines += [
        ("model" if number == 0 else "", f"{model.label} ({size})")
        for number, (model, size) in enumerate(zip(models, sizes, strict=True))
    ]
    lines += [
        ("output", str(plan.out)),
        ("tensors", f"{cost.tensors:,}"),
        ("to read", format_bytes(cost.read_bytes)),
        ("to write", f"{format_bytes(cost.write_bytes)} in {len(plan.layouts)} file{'s' * (len(plan.layouts) != 1)}"),
        ("passes", str(cost.passes)),
        ("time", f"about {_duration(cost.seconds)}"),
        ("memory", f"about {format_bytes(cost.peak_memory_bytes)} at most"),
        ("other files", ", ".join(file.name for file in plan.side_files)),
    ]
    return lines


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 0.1):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _result_line(result: RunResult) -> str:
    resumed = f", {result.resumed_tensors:,} of them from an earlier run" if result.resumed_tensors else ""
    rate = format_bytes(int(result.written_bytes / max(result.seconds, 1e-9)))
    return (
        f"{result.out}: {result.tensors:,} tensors{resumed}, {format_bytes(result.written_bytes)} "
        f"in {_duration(result.seconds)} ({rate}/s)"
    )


def _nonfinite_lines(result: RunResult) -> list[str]:
    from lbrx.files.output.nonfinite import describe

    lines = [f"tensor {name!r}: {describe(counts)}" for name, counts in result.nonfinite.items()]
    if len(lines) > _LISTED_TENSORS:
        more = len(lines) - _LISTED_TENSORS
        return [*lines[:_LISTED_TENSORS], f"{more} more tensors have values that are not finite; --json lists them all"]
    return lines
