"""Independent calls on a cluster: sent out, sent again when they are lost, and given back in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from lbrx.base.build import build
from lbrx.base.fast_dataclass import dataclass
from lbrx.cluster.connection import Connection
from lbrx.cluster.options import MAX_FAILURES, ClusterError
from lbrx.cluster.same_build import check_build
from lbrx.cluster.worker_memory import explaining_memory_errors
from lbrx.errors import LbrxError


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of a function that runs on a worker, and their description in an error, such as "rows 0 to 99"."""

    what: str
    arguments: tuple[Any, ...]


def results_in_order(
    connection: Connection,
    function: Callable[..., Any],
    calls: Sequence[Call],
    *,
    threads: int,
    ahead: int,
    arrived: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """What a function returns for each call; a call that fails is made again, and after the third time is an error.

    At most ``ahead`` calls are on their way or wait for one before them, so that memory does not grow with their
    number. ``arrived`` is called with the number of a call when it is done.
    """
    task = connection.ray.remote(max_retries=0, num_cpus=threads, scheduling_strategy="SPREAD")(_performed)
    sending = _Sending(connection.ray, task, function, calls)
    try:
        for number in range(len(calls)):
            while number not in sending.held:
                sending.send_up_to(number + max(ahead, 1))
                for done in sending.take():
                    if arrived is not None:
                        arrived(done)
            yield sending.held.pop(number)
    finally:
        sending.cancel()


@dataclass(slots=True)
class _Sending:
    ray: Any
    task: Any
    function: Callable[..., Any]
    calls: Sequence[Call]
    held: dict[int, Any] = field(default_factory=dict)
    _sent: dict[Any, int] = field(default_factory=dict)
    _failures: Counter[int] = field(default_factory=Counter)
    _next: int = 0

    def send_up_to(self, stop: int) -> None:
        while self._next < min(stop, len(self.calls)):
            self._send(self._next)
            self._next += 1

    def _send(self, number: int) -> None:
        self._sent[self.task.remote(build(), self.function, *self.calls[number].arguments)] = number

    def take(self) -> list[int]:
        """Wait for the next results and keep them. Returns the numbers of the finished calls."""
        ready, _ = self.ray.wait(list(self._sent), num_returns=1)
        return [number for reference in ready if (number := self._taken(reference)) is not None]

    def _taken(self, reference: Any) -> int | None:
        number = self._sent.pop(reference)
        try:
            self.held[number] = self.ray.get(reference)
        except (self.ray.exceptions.RayError, LbrxError) as error:
            self._failures[number] += 1
            if self._failures[number] >= MAX_FAILURES:
                raise failed_too_often(self.calls[number].what, error) from error
            self._send(number)
            return None
        return number

    def cancel(self) -> None:
        for reference in self._sent:
            self.ray.cancel(reference)


def _performed(expected_build: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The task itself."""
    check_build(expected_build)
    with explaining_memory_errors():
        return function(*arguments)


def failed_too_often(what: str, error: Exception) -> ClusterError:
    """The error that ends a run, with the reason of the last failure."""
    return ClusterError(f"{what}: failed {MAX_FAILURES} times on the cluster, at last: {reason(error)}")


def reason(error: Exception) -> str:
    """Why a task failed, in one line: the error of its worker, or what Ray says if that died."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, LbrxError):
        return str(cause)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
