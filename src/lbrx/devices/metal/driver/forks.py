"""Forked processes: the queues, threads and buffers of a GPU stay with the process that opened it."""

from __future__ import annotations

import os

from lbrx.devices.metal.driver.errors import MetalError

_forks = 0  # between the first process and this one


class ForkGuard:
    """Remembers the process in which it was made.

    >>> ForkGuard().is_foreign
    False
    """

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked from the one that made the guard."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise a MetalError in a forked process: what it waits for would never come."""
        if self._forks != _forks:
            raise MetalError(
                "this process was forked from one that uses the GPU and cannot use the tensors there; move them to the "
                "CPU before forking, or start workers with multiprocessing.get_context('spawn')"
            )


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)
