"""How a job runs, and how far it is: its options and what its callbacks are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from lbrx.base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from lbrx.cluster.options import ClusterOptions
    from lbrx.files.output.plan import OutputPlan

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is that writes tensors.

    ``tensor`` was finished last, ``at_hand`` is computed now if that is one large tensor. ``resumed_bytes`` were done
    by an earlier run.
    """

    done_bytes: int
    total_bytes: int
    done_tensors: int
    total_tensors: int
    tensor: str
    at_hand: str | None = None
    resumed_bytes: int = 0


ProgressCallback = Callable[[Progress], None]
CountCallback = Callable[[int, int, str], None]
"""For jobs that write nothing: called with the number of steps done, of all steps, and the name of the last one."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an output is written. Nothing here changes its bytes.

    ``threads`` are all processors by default. ``memory`` is for buffers: bytes, or a text such as ``"512MiB"``.
    ``device`` is where to compute. ``cluster`` is the address of a Ray cluster that computes instead, or
    `lbrx.cluster.ClusterOptions`. ``strict`` makes NaN and infinities an error. ``overwrite`` lets an output be
    replaced, at the very end. ``restart`` discards what an earlier run left. Without ``sync`` the result is not forced
    onto the disk. ``progress`` is called for each finished tensor, ``planned`` with the plan before it is run.
    """

    threads: int | None = None
    memory: int | str | None = None
    device: str | None = None
    cluster: str | ClusterOptions | None = None
    strict: bool = False
    overwrite: bool = False
    restart: bool = False
    sync: bool = True
    progress: ProgressCallback | None = None
    planned: Callable[[OutputPlan], None] | None = None

    @classmethod
    def of(cls, keywords: RunKeywords) -> RunOptions:
        """The options from the keyword arguments of a function; one that does not exist is a TypeError."""
        known = [field.name for field in fields(cls)]
        unknown = [key for key in keywords if key not in known]
        if unknown:
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}; the options of a run are {', '.join(known)}")
        return cls(**keywords)


class RunKeywords(TypedDict, total=False):
    """The fields of `RunOptions` as keyword arguments, for type checkers."""

    threads: int | None
    memory: int | str | None
    device: str | None
    cluster: str | ClusterOptions | None
    strict: bool
    overwrite: bool
    restart: bool
    sync: bool
    progress: ProgressCallback | None
    planned: Callable[[OutputPlan], None] | None


def takes_run_options(function: _Function) -> _Function:
    """Show the fields of `RunOptions` in the signature of a function instead of its ``**options``.

    >>> @takes_run_options
    ... def write(out: str, **options: object) -> None: ...
    >>> list(signature(write).parameters)[:3]
    ['out', 'threads', 'memory']
    """
    declared = signature(function)
    own = [each for each in declared.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    shown = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in fields(RunOptions)
    ]
    function.__signature__ = declared.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    return function
