"""`lbrx.doctor` on a fake Mac and in the emulator: versions, shaders, memory, speed, and the file for a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver.errors import MetalUnavailable
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.driver.requirements import REQUIREMENTS, checked
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.jobs.doctor.bandwidth import BANDWIDTHS, stated_bandwidth
from lbrx.jobs.doctor.doctor import DoctorReport, doctor
from lbrx.jobs.doctor.report import as_json
from lbrx.jobs.doctor.speed import CASES, SpeedRow, measured_speed
from support.fake_objc import FakeMac, install
from support.metal_shaders import driver, needs_clang

pytestmark = needs_clang


SHAPE_BYTES = 4 * 37 * 1100  # of the arrays of the tests


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeMac, DoctorReport, DoctorReport]]:
    """Two runs on one Mac, with one cache directory."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lbrx.base.system.cache_directory", lambda name="": cache / name)
        patch.setattr("lbrx.devices.metal.driver.native.gpu_cores", lambda: 10)
        mac = install(patch, FakeMac(executes=True))
        mac.records_calls = False
        first = doctor(only="passes: mapped")
        yield mac, first, doctor(only="passes: mapped")


@pytest.fixture
def report(reports: tuple[FakeMac, DoctorReport, DoctorReport]) -> DoctorReport:
    return reports[1]


def test_a_mac_is_described_with_its_versions(report: DoctorReport) -> None:
    assert report.is_good
    metal = report.metal
    assert (metal["name"], metal["emulated"], metal["cores"], metal["language"]) == ("Apple M2", False, 10, "3.2")
    assert metal["residency_set"] is True
    assert metal["refused_pages"] == "none"
    found = {(check.name, check.least): (check.found, check.is_met) for check in report.requirements}
    assert found["macOS", "13"] == ("15.0", True)
    assert found["pyobjc-core", "10.0"] == ("not installed", False)  # the fake has no package


def test_memory_is_counted_and_given_back(report: DoctorReport) -> None:
    memory = report.memory
    assert (memory["allocated_before_bytes"], memory["allocated_after_bytes"], memory["mapped_after_bytes"]) == (
        0,
        0,
        0,
    )
    assert (memory["wrapped_bytes"], memory["copied_bytes"]) == (SHAPE_BYTES, 0)
    assert memory["returned_bytes"] == SHAPE_BYTES
    assert (memory["dispatches"], memory["windows_wrapped"]) == (1, 1)
    assert report.tests[0].detail == f"{SHAPE_BYTES} bytes read in place, 0 copied"


def test_the_report_says_where_shaders_came_from(reports: tuple[FakeMac, DoctorReport, DoctorReport]) -> None:
    mac, report, again = reports
    assert report.shaders["compiled_ahead_of_time"] == "no"
    assert report.shaders["reason"] == "this installation has no compiled shaders"
    assert (report.shaders["libraries_compiled_now"], report.shaders["libraries_with_cached_code"]) == (1, 0)
    assert (again.shaders["libraries_compiled_now"], again.shaders["libraries_with_cached_code"]) == (0, 1)
    assert (report.metal["pipelines_compiled"], again.metal["pipelines_compiled"]) == (1, 0)
    assert (report.metal["pipelines_from_archives"], again.metal["pipelines_from_archives"]) == (0, 1)
    assert mac.device.compilations == 1


def test_the_report_is_a_file_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "doctor.json"
    assert run(["doctor", "--emulated", "--only", "passes: mapped", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "memory allocated after" in printed
    assert "shaders reason" in printed
    fields = json.loads(out.read_text())
    assert set(fields) == {"machine", "requirements", "metal", "shaders", "memory", "speed", "tests"}
    assert fields["tests"][0]["name"] == "passes: mapped file"
    assert fields["memory"]["wrapped_bytes"] == SHAPE_BYTES


def test_versions_and_speed_are_printed(
    report: DoctorReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = SpeedRow("copy", 0.001, 0.002, 80.0, 0.8)
    monkeypatch.setattr("lbrx.jobs.doctor.doctor.doctor", lambda **_: replace(report, speed=(row,)))
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "copy    1.000           2.000  80.0               80%" in printed
    assert "pyobjc-core             10.0     not installed  missing" in printed
    assert json.loads(as_json(replace(report, speed=(row,))))["speed"][0]["share"] == 0.8


def test_speed_is_compared_with_the_bandwidth_of_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.jobs.doctor.speed.CASES", ("copy", "sum, bf16"))
    info = driver().info
    m1 = EmulatedDriver(info=replace(info, name="Apple M1"))
    rows = measured_speed(MetalContext(m1), "tiny")
    assert [row.name for row in rows] == ["copy", "sum, bf16"]
    assert all(row.share == pytest.approx(row.gigabytes_per_second / 68) for row in rows)
    assert all(row.gpu_seconds > 0 and row.wall_seconds > 0 for row in rows)
    assert all(row.share is None for row in measured_speed(MetalContext(driver()), "tiny"))


def test_chips_are_in_the_table_by_cores() -> None:
    assert stated_bandwidth("Apple M3 Max", 30) == 300
    assert stated_bandwidth("Apple M3 Max", 40) == 400
    assert stated_bandwidth("Apple M3 Max", 0) is None
    assert all(60 < speed < 1000 for by_cores in BANDWIDTHS.values() for speed in by_cores.values())
    assert len(set(CASES)) == len(CASES)


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        (("12.6", "12.2.2", "12.2.2"), ["macOS 13"]),
        (("13.0", "9.2", "9.2"), ["pyobjc-core 10.0", "pyobjc-framework-Metal 10.0"]),
        (("26.1", "13.0", "12.2.2"), []),
    ],
)
def test_old_versions_are_noticed(found: tuple[str, ...], missing: list[str]) -> None:
    checks = checked(dict(zip(("macOS", "pyobjc-core", "pyobjc-framework-Metal"), found, strict=True)))
    assert [f"{check.name} {check.least}" for check in checks if check.is_needed and not check.is_met] == missing
    assert len(checks) == len(REQUIREMENTS)


def test_an_old_macos_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeMac(macos=12))
    with pytest.raises(MetalUnavailable, match=r"this is macOS 12\.0; the Metal backend needs macOS 13"):
        NativeDriver()


def test_other_machines_have_no_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.mac_ver", lambda: ("", ("", "", ""), ""))
    assert lbrx.doctor(emulated=True, only="passes: mapped").requirements == ()
