"""Parts of ``make arm64`` that need no emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from arm64.__main__ import table, unexpected
from arm64.compiler import request, running
from arm64.differences import EXPECTED
from arm64.sampling import chosen

FINITE = "lbrx.devices.cpu.kernels.finite"
ELF_MACHINE_AARCH64 = 183


@pytest.mark.skipif(sys.platform != "linux", reason="the emulated machine runs on Linux")
def test_kernels_are_compiled_for_the_emulated_processor(tmp_path: Path) -> None:
    with running(tmp_path, "apple-m1", "+neon", 1) as sockets:
        answer = request(sockets, "compile_function", (FINITE, "find", 5, "some_name"))
        assert request(sockets, "compile_function", (FINITE, "none", 5, "other_name")) is None
    assert answer is not None
    symbol, code = answer
    assert "some_name" in symbol
    assert code.startswith(b"\x7fELF")
    assert int.from_bytes(code[18:20], "little") == ELF_MACHINE_AARCH64


def test_only_listed_differences_are_accepted() -> None:
    listed = next(iter(EXPECTED))
    here, there = {"a": "1", "b": "2", listed: "3"}, {"a": "1", "b": "4", listed: "5", "c": "6"}
    assert unexpected(here, there) == ["b", "c"]
    assert unexpected({listed: "3"}, {listed: "5"}) == []
    assert table(here, there).startswith("1 of 4 results have equal bytes.")


def test_each_test_keeps_some_parameter_sets_whatever_their_order() -> None:
    names = [f"{test}[{number}]" for test in ("a.py::test_x", "b.py::test_x") for number in range(9)]
    kept = chosen([*names, "a.py::test_y"], 3)
    assert [name.partition("[")[0] for name in kept] == ["a.py::test_x"] * 3 + ["b.py::test_x"] * 3 + ["a.py::test_y"]
    assert sorted(chosen(names[::-1], 3)) == sorted(kept[:-1])
