"""`lbrx doctor`: what the machine has, self-tests as a table or JSON, and an exit code."""

from __future__ import annotations

import json

import pytest

from lbrx.devices.metal.errors import KernelFault
from lbrx.jobs.doctor.self_test import SelfTest, SelfTestResult, registered_self_tests
from lbrx.registry import SELF_TESTS
from support.cli_running import lbrx_command
from support.metal_shaders import needs_clang


def use_tests(monkeypatch: pytest.MonkeyPatch, tests: dict[str, SelfTest]) -> None:
    monkeypatch.setattr("lbrx.jobs.doctor.self_test.registered_self_tests", lambda: tests)


def test_the_machine_is_described_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    outcome = lbrx_command(capsys, "doctor")
    assert outcome.code == 0
    for text in ("cores", "page", "free disk", "cpu compiler", "shader compiler", "cache directory"):
        assert text in outcome.out
    assert "there is no Metal on this machine: it needs macOS on Apple Silicon" in outcome.out
    fields = json.loads(lbrx_command(capsys, "doctor", "--json").out)
    assert fields["machine"]["cores"] >= 1
    assert fields["machine"]["page_bytes"] % 4096 == 0
    assert "no Metal" in fields["metal"]["unavailable"]
    assert fields["tests"] == []


@needs_clang
def test_kernels_are_tested_on_the_emulated_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "doctor", "--emulated", "--only", "passes: element-wise")
    assert outcome.code == 0
    assert "metal name" in outcome.out
    assert "passes: element-wise  good" in outcome.out
    assert "1 test, none failed" in outcome.out


@needs_clang
def test_failures_and_faults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fault(_context: object) -> SelfTestResult:
        raise KernelFault("kernel 'k': out-of-bounds read")

    tests: dict[str, SelfTest] = {
        "a: good": lambda _context: SelfTestResult(1e-7, 1e-6),
        "a: far off": lambda _context: SelfTestResult(0.25, 1e-6, "row 3"),
        "b: fault": fault,
    }
    use_tests(monkeypatch, tests)
    outcome = lbrx_command(capsys, "doctor", "--emulated", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["tests"] == [
        {"name": "a: good", "passed": True, "error": 1e-7, "bound": 1e-6, "detail": ""},
        {"name": "a: far off", "passed": False, "error": 0.25, "bound": 1e-6, "detail": "row 3"},
        {
            "name": "b: fault",
            "passed": False,
            "error": None,
            "bound": None,
            "detail": "kernel 'k': out-of-bounds read",
        },
    ]
    printed = lbrx_command(capsys, "doctor", "--emulated")
    assert printed.code == 1
    assert "3 tests, 2 failed" in printed.out
    assert lbrx_command(capsys, "doctor", "--emulated", "--only", "good").code == 0


def test_every_line_of_the_registry_gives_self_tests() -> None:
    names = registered_self_tests()
    assert all(callable(test) for test in names.values())
    assert {name.partition(": ")[0] for name in names} == set(SELF_TESTS)
