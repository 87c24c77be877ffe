"""The compiled side of `lbrx.devices.cpu.team`: a job on a board, whose pieces a leader and its helpers claim.

The ticket on the board is the number of the job (high half) and of its next piece (low half). A piece is claimed by
moving the ticket on, which fails if it has changed since it was looked at: so a helper that comes late never takes a
piece of another job than the one whose fields it has read. While the leader writes the fields of a new job the ticket
says that all pieces are taken.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.team_board import (
    DONE,
    FLOATS,
    FUNCTION,
    INTS,
    PIECES,
    PLACES,
    START,
    STATUS,
    STEP,
    STOP,
    TICKET,
    WATCHING,
)
from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import ELEMENT_FUNCTIONS
from lbrx.devices.cpu.simd.vectors import I32, I64, instruction, jit

load_i64: Any = ELEMENT_FUNCTIONS["load_i64"]
store_i64: Any = ELEMENT_FUNCTIONS["store_i64"]
_call = make_call(6)

ALL_TAKEN = 0xFFFFFFFF
POLLS_BEFORE_YIELDING = 4096
_X86_PAUSE, _ARM_HINT, _ARM_YIELD = "llvm.x86.sse2.pause", "llvm.aarch64.hint", 1


def _declared(module: Any, name: str, kind: Any) -> Any:
    return module.globals.get(name) or ir.Function(module, kind, name)


def _place(builder: Any, board: Any, word: Any) -> Any:
    return builder.gep(builder.inttoptr(board, I64.as_pointer()), [word])


@instruction
def _peek(_context: Any, _board: Any, _word: Any) -> Any:
    """A word, with all that was written before it."""

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load_atomic(_place(builder, *args), "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@instruction
def _publish(_context: Any, _board: Any, _word: Any, _value: Any) -> Any:
    """Write a word after all that was written before, and before all that is written later."""

    def generate(target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _place(builder, *args[:2]), "seq_cst", 8)
        builder.fence("seq_cst")
        return target.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@instruction
def _add(_context: Any, _board: Any, _word: Any, _value: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(builder, *args[:2]), args[2], "seq_cst")

    return types.int64(types.int64, types.int64, types.int64), generate


@instruction
def _replace(_context: Any, _board: Any, _word: Any, _old: Any, _new: Any) -> Any:
    """Put a new value in the place of an old one; False if something else is there."""

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = _place(builder, *args[:2])
        return builder.extract_value(builder.cmpxchg(place, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@instruction
def _pause(_context: Any) -> Any:
    """Tell the processor that a loop only waits."""

    def generate(target: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        machine = platform.machine()
        if machine in ("x86_64", "AMD64"):
            builder.call(_declared(builder.module, _X86_PAUSE, ir.FunctionType(ir.VoidType(), [])), [])
        elif machine in ("arm64", "aarch64"):
            hint = _declared(builder.module, _ARM_HINT, ir.FunctionType(ir.VoidType(), [I32]))
            builder.call(hint, [ir.Constant(I32, _ARM_YIELD)])
        return target.get_dummy_value()

    return types.void(), generate


@instruction
def _yield_processor(_context: Any) -> Any:
    """Let another thread run that waits for a processor."""

    def generate(target: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.call(_declared(builder.module, "sched_yield", ir.FunctionType(I32, [])), [])
        return target.get_dummy_value()

    return types.void(), generate


@jit
def _wait_a_moment(polls: Any) -> None:
    _pause()
    if polls > POLLS_BEFORE_YIELDING and (polls & 63) == 0:
        _yield_processor()


@jit
def _do_a_piece(board: Any) -> Any:
    """Claim a piece of the job on the board and do it; False if there is none to claim."""
    ticket = _peek(board, TICKET)
    piece = ticket & ALL_TAKEN
    if piece >= load_i64(board, PIECES):
        return False
    function, ints, floats = load_i64(board, FUNCTION), load_i64(board, INTS), load_i64(board, FLOATS)
    places, step = load_i64(board, PLACES), load_i64(board, STEP)
    low = load_i64(board, START) + piece * step
    high = min(low + step, load_i64(board, STOP))
    if not _replace(board, TICKET, ticket, ticket + 1):
        return False
    status = _call(function, (places, places + 8, ints, floats, low, high))
    if status != 0:
        store_i64(board, STATUS, status)
    _add(board, DONE, 1)
    return True


def lead(
    board: int, function: int, ints: int, floats: int, start: int, stop: int, step: int, pieces: int, places: int
) -> None:
    """Put a job on the board, and do pieces of it until all are done."""
    job = (_peek(board, TICKET) >> 32) + 1
    _publish(board, TICKET, (job << 32) | ALL_TAKEN)
    store_i64(board, FUNCTION, function)
    store_i64(board, INTS, ints)
    store_i64(board, FLOATS, floats)
    store_i64(board, START, start)
    store_i64(board, STOP, stop)
    store_i64(board, STEP, step)
    store_i64(board, PIECES, pieces)
    store_i64(board, PLACES, places)
    store_i64(board, STATUS, 0)
    _publish(board, DONE, 0)
    _publish(board, TICKET, job << 32)
    while (_peek(board, TICKET) & ALL_TAKEN) < pieces:
        _do_a_piece(board)
    polls = 0
    while _peek(board, DONE) < pieces:
        polls += 1
        _wait_a_moment(polls)


def help_out(board: int, polls_at_most: int) -> None:
    """Watch the board and do pieces of jobs, until nothing has come for so many looks at it."""
    _add(board, WATCHING, 1)
    polls = 0
    while polls < polls_at_most:
        if _do_a_piece(board):
            polls = 0
        else:
            polls += 1
            _wait_a_moment(polls)
    _add(board, WATCHING, -1)
