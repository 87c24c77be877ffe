"""The compiled side of `lbrx.devices.cpu.build.team`: a job on a board, whose pieces a leader and its helpers claim.

The ticket on the board is the number of the job (high half) and of its next block (low half). A piece is a run of
blocks. It is claimed by moving the ticket on, which fails if it has changed since it was looked at: so a helper that
comes late never takes a piece of another job than the one whose fields it has read. While the leader writes the fields
of a new job the ticket says that all blocks are taken.

A piece is a fixed share of the blocks that are left, so pieces shrink towards the end. A slow core that claims one of
the last pieces then delays the end of the job only a little.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types

from lbrx.devices.cpu.kernels.team_board import (
    BLOCK,
    BLOCKS,
    DONE,
    FLOATS,
    FUNCTION,
    INTS,
    LEAST,
    MOST,
    SCRATCH,
    SHARES,
    START,
    STATUS,
    STOP,
    TICKET,
    WATCHING,
)
from lbrx.devices.cpu.simd.calls import make_call
from lbrx.devices.cpu.simd.elements import load_i64, store_i64
from lbrx.devices.cpu.simd.emit import call_llvm, pointer
from lbrx.devices.cpu.simd.instruction import I32, I64, Builder, Value, instruction, jit

_call = make_call(6)

ALL_TAKEN = 0xFFFFFFFF
POLLS_BEFORE_YIELDING = 4096
_X86_PAUSE, _ARM_BARRIER, _WHOLE_SYSTEM = "llvm.x86.sse2.pause", "llvm.aarch64.isb", 15


@instruction(types.int64(types.int64, types.int64))
def _peek(builder: Builder, board: Value, word: Value) -> Value:
    """A word, with all that was written before it."""
    return builder.load_atomic(pointer(builder, board, I64, word), "acquire", 8)


@instruction(types.void(types.int64, types.int64, types.int64))
def _publish(builder: Builder, board: Value, word: Value, value: Value) -> None:
    """Write a word after all that was written before, and before all that is written later."""
    builder.store_atomic(value, pointer(builder, board, I64, word), "seq_cst", 8)
    builder.fence("seq_cst")


@instruction(types.int64(types.int64, types.int64, types.int64))
def _add(builder: Builder, board: Value, word: Value, value: Value) -> Value:
    return builder.atomic_rmw("add", pointer(builder, board, I64, word), value, "seq_cst")


@instruction(types.boolean(types.int64, types.int64, types.int64, types.int64))
def _replace(builder: Builder, board: Value, word: Value, old: Value, new: Value) -> Value:
    """Replace an old value by a new one; False if something else is there."""
    address = pointer(builder, board, I64, word)
    return builder.extract_value(builder.cmpxchg(address, old, new, "seq_cst", "seq_cst"), 1)


@instruction(types.void())
def _pause(builder: Builder) -> None:
    """Tell the processor that a loop only waits. ``yield`` does nothing on Apple's cores, ``isb`` takes a moment."""
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        call_llvm(builder, _X86_PAUSE, ir.VoidType(), [])
    elif machine in ("arm64", "aarch64"):
        call_llvm(builder, _ARM_BARRIER, ir.VoidType(), [ir.Constant(I32, _WHOLE_SYSTEM)])


@instruction(types.void())
def _yield_processor(builder: Builder) -> None:
    """Let another thread run that waits for a processor."""
    call_llvm(builder, "sched_yield", I32, [])


@jit
def _wait_a_moment(polls: Any) -> None:
    _pause()
    if polls > POLLS_BEFORE_YIELDING and (polls & 63) == 0:
        _yield_processor()


@jit
def _do_a_piece(board: Any) -> Any:
    """Claim a piece of the job on the board and do it; False if there is none to claim."""
    ticket = _peek(board, TICKET)
    begun, blocks, block = ticket & ALL_TAKEN, load_i64(board, BLOCKS), load_i64(board, BLOCK)
    if begun >= blocks:
        return False
    function, ints, floats = load_i64(board, FUNCTION), load_i64(board, INTS), load_i64(board, FLOATS)
    scratch, start, stop = load_i64(board, SCRATCH), load_i64(board, START), load_i64(board, STOP)
    left = blocks - begun
    claimed = min(max(left // load_i64(board, SHARES), load_i64(board, LEAST)), load_i64(board, MOST), left)
    if not _replace(board, TICKET, ticket, ticket + claimed):
        return False
    low = start + begun * block
    high = min(low + claimed * block, stop)
    status = _call(function, (scratch, scratch + 8, ints, floats, low, high))
    if status != 0:
        store_i64(board, STATUS, status)
    _add(board, DONE, claimed)
    return True


def lead(
    board: int,
    function: int,
    ints: int,
    floats: int,
    start: int,
    stop: int,
    block: int,
    least: int,
    most: int,
    shares: int,
    scratch: int,
) -> None:
    """Put a job on the board, and do pieces of it until all are done.

    A piece is one of ``shares`` parts of what is left, but at least ``least`` and at most ``most`` blocks.
    """
    blocks = (stop - start + block - 1) // block
    job = (_peek(board, TICKET) >> 32) + 1
    _publish(board, TICKET, (job << 32) | ALL_TAKEN)
    store_i64(board, FUNCTION, function)
    store_i64(board, INTS, ints)
    store_i64(board, FLOATS, floats)
    store_i64(board, START, start)
    store_i64(board, STOP, stop)
    store_i64(board, BLOCK, block)
    store_i64(board, BLOCKS, blocks)
    store_i64(board, LEAST, least)
    store_i64(board, MOST, most)
    store_i64(board, SHARES, shares)
    store_i64(board, SCRATCH, scratch)
    store_i64(board, STATUS, 0)
    _publish(board, DONE, 0)
    _publish(board, TICKET, job << 32)
    while (_peek(board, TICKET) & ALL_TAKEN) < blocks:
        _do_a_piece(board)
    polls = 0
    while _peek(board, DONE) < blocks:
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
