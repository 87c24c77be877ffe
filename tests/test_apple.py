"""A short part of ``make apple``: hot loops for the M1 keep their vectors and their number of instructions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from struct import pack

import llvmlite
import numpy as np
import pytest
from apple import report
from apple.core import Mix, mix_of
from apple.counting import Counted, count_in_process
from apple.report import QUICK, gigabytes, regressions

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the emulator reads /proc/self/maps")


@linux_only
@pytest.mark.skipif(
    json.loads(report.COUNTS.read_text())["llvmlite"] != llvmlite.__version__,
    reason="apple/counts.json is of another llvmlite; update it with: make apple APPLE=--update",
)
def test_kernels_for_the_m1_take_no_more_instructions() -> None:
    """If a change is worth the instructions: make apple APPLE="--quick --update"."""
    figures = count_in_process("apple-m1", QUICK)
    assert [each.name for each in figures if each.name in QUICK] == [each.name for each in figures]
    assert len(figures) == len(QUICK)
    assert regressions("apple-m1", figures) == []


def _counted(instructions: float, vectors: float, name: str = "x") -> Counted:
    return Counted(name, 4.0, instructions, 0.5, vectors)


def test_more_instructions_and_lost_vectors_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "COUNTS", tmp_path / "counts.json")
    report.store({"apple-m1": [_counted(1.0, 0.9)]})
    assert regressions("apple-m1", [_counted(1.09, 0.81)]) == []
    assert "1.11 instructions per element, stored 1.0" in regressions("apple-m1", [_counted(1.11, 0.9)])[0]
    assert "79% vector operations, stored 90%" in regressions("apple-m1", [_counted(1.0, 0.79)])[0]
    assert "not in counts.json" in regressions("apple-m1", [_counted(1.0, 0.9, "y")])[0]


@pytest.mark.parametrize(
    ("word", "mix"),
    [
        (0x4E20D420, Mix(1, simd=1, vectors=1)),  # fadd v0.4s, v1.4s, v0.4s
        (0x4E809420, Mix(1, simd=1, vectors=1)),  # sdot v0.4s, v1.16b, v0.16b
        (0x6F00E405, Mix(1)),  # movi v5.2d, #0
        (0x6F00E425, Mix(1, simd=1, vectors=1)),  # movi v5.2d, #0xff
        (0x4EA11C20, Mix(1)),  # mov v0.16b, v1.16b
        (0x4EA21C20, Mix(1, simd=1, vectors=1)),  # orr v0.16b, v1.16b, v2.16b
        (0x1E202820, Mix(1, simd=1)),  # fadd s0, s1, s0
        (0xAD400400, Mix(2, loads=2)),  # ldp q0, q1, [x0]
        (0x3DC00000, Mix(1, loads=1)),  # ldr q0, [x0]
        (0x3D800000, Mix(1, stores=1)),  # str q0, [x0]
        (0xF9400000, Mix(1, loads=1)),  # ldr x0, [x0]
        (0xF9000000, Mix(1, stores=1)),  # str x0, [x0]
        (0x39C00000, Mix(1, loads=1)),  # ldrsb w0, [x0]
        (0xA9BF7BFD, Mix(1, stores=1)),  # stp x29, x30, [sp, #-16]!
        (0x4C407000, Mix(1, loads=1)),  # ld1 {v0.16b}, [x0]
        (0x4D408400, Mix(2, simd=1, loads=1)),  # ld1 {v0.d}[1], [x0]
        (0x8B020020, Mix(1, integers=1)),  # add x0, x1, x2
        (0x91000400, Mix(1, integers=1)),  # add x0, x0, #1
        (0x54000001, Mix(1)),  # b.ne
    ],
)
def test_units_of_instructions(word: int, mix: Mix) -> None:
    assert mix_of(word) == mix


def test_cycles_are_those_of_the_busiest_unit() -> None:
    assert Mix(8, simd=8).cycles == 2
    assert Mix(8, loads=6).cycles == 2
    assert Mix(8, stores=6).cycles == 3
    assert Mix(16).cycles == 2
    assert gigabytes(_counted(1, 1), 3.0) == 24.0


@linux_only
def test_code_runs_on_memory_of_this_process() -> None:
    from apple.machine import Machine

    code = np.frombuffer(
        # 0: ldr x2, [x0]; add x2, x2, #5; str x2, [x0]; subs x1, x1, #1; b.ne 0; mov w0, w2; ret
        pack("<7I", 0xF9400002, 0x91001442, 0xF9000002, 0xF1000421, 0x54FFFF81, 0x2A0203E0, 0xD65F03C0),
        np.uint8,
    ).copy()
    value = np.array([100], np.int64)
    machine = Machine()
    with machine.counting() as count:
        assert machine.call(code.ctypes.data, value.ctypes.data, 3) == 115
    assert value[0] == 115
    assert count.mix() == Mix(17, loads=3, stores=3, integers=7)
    assert count.hottest(0.5) == [((code.ctypes.data, 20), 3)]
