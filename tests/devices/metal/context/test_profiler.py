"""What a profile says of dispatches, and which variants are remembered."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context import tuning as tuning_module
from lbrx.devices.metal.context.capture import captured
from lbrx.devices.metal.context.profiler import KernelCall, Profile, ProfiledContext, Work
from lbrx.devices.metal.context.tuning import Tuning, chosen, shape_class, tune
from lbrx.devices.metal.driver import BufferBinding
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.native import NativeDriver
from lbrx.devices.metal.ops.linear import linear
from lbrx.devices.metal.ops.matmul import matmul
from lbrx.devices.metal.ops.rows import softmax
from lbrx.errors import UsageError
from support.fake_objc import FakeMac, install
from support.kernel_contexts import context, down, numbers, up
from support.metal_shaders import PREFIX, needs_clang

CALLS = (
    KernelCall("matmul", 5.0, 5.25, Work(1000, 2000, "a")),
    KernelCall("softmax", 5.5, 6.0, Work(3000, 500, "b")),
    KernelCall("matmul", 6.0, 6.125, Work(1000, 1000, "c")),
)


def test_summaries_add_up_calls_and_come_in_order_of_time() -> None:
    softmax_row, matmul_row = Profile(CALLS, "a GPU").summaries()
    assert (softmax_row.kernel, softmax_row.calls, softmax_row.gpu_seconds) == ("softmax", 1, 0.5)
    assert (matmul_row.kernel, matmul_row.calls, matmul_row.gpu_seconds) == ("matmul", 2, 0.375)
    assert (matmul_row.nbytes, matmul_row.flops) == (2000, 3000)
    assert matmul_row.gigabytes_per_second == pytest.approx(2000 / 0.375 / 1e9)
    assert matmul_row.gigaflops == pytest.approx(3000 / 0.375 / 1e9)


def test_a_profile_as_json_and_as_trace() -> None:
    profile = Profile(CALLS, "a GPU")
    report = json.loads(profile.to_json())
    assert report["device"] == "a GPU"
    assert [row["kernel"] for row in report["kernels"]] == ["softmax", "matmul"]
    events = [event for event in json.loads(profile.chrome_trace())["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events] == [
        ("matmul", 0.0, 250e3),
        ("softmax", 500e3, 500e3),
        ("matmul", 1000e3, 125e3),
    ]
    assert events[1]["args"] == {"bytes": 3000, "flops": 500, "shapes": "b"}


def test_an_empty_profile() -> None:
    profile = Profile((), "a GPU")
    assert profile.table().splitlines() == ["kernel    calls    GPU ms        MB      GB/s   GFLOP/s"]
    assert json.loads(profile.to_json())["kernels"] == []
    assert len(json.loads(profile.chrome_trace())["traceEvents"]) == 1


@needs_clang
def test_a_profiled_context_counts_bytes_and_operations() -> None:
    plain = context()
    metal = ProfiledContext(plain)
    a, b = up(metal, numbers(6, 8)), up(metal, numbers(8, 5))
    product = matmul(metal, a, b)
    weights = softmax(metal, product)
    assert np.allclose(down(metal, weights).sum(-1), 1)
    linear(metal, a, up(metal, numbers(3, 8)))
    calls = metal.profile().calls
    assert [call.kernel for call in calls] == ["matmul_32x32", "softmax", "matmul_32x32"]
    assert calls[0].work == Work(4 * (48 + 40 + 30), 2 * 6 * 8 * 5, "1x6x8 f32 5")
    assert calls[1].work.nbytes == 4 * 60
    assert all(call.seconds > 0 for call in calls)
    assert [call.start_seconds for call in calls] == sorted(call.start_seconds for call in calls)
    assert metal.pool is plain.pool
    assert metal.shaders is plain.shaders


@needs_clang
def test_dispatches_of_others_are_counted_by_their_buffers() -> None:
    metal = ProfiledContext(context())
    source = PREFIX + "kernel void twice(device float* x, device float* y, uint i [[thread_position_in_grid]]) {}"
    x = up(metal, numbers(10))
    bindings = {0: BufferBinding(x.buffer, 0, 40), 1: BufferBinding(x.buffer, 0, 40)}
    metal.dispatch(metal.pipeline(source, "twice"), bindings, (1,), (32,))
    (call,) = metal.profile().calls
    assert (call.kernel, call.work) == ("twice", Work(40))


def test_choices_are_remembered_by_device(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tuning.json"
    first, second = Tuning(path), Tuning(path)
    assert first.choice("M1", "matmul") is None
    first.remember("M1", "matmul", "64x64")
    second.remember("M2", "matmul", "32x32")
    again = Tuning(path)
    assert (again.choice("M1", "matmul"), again.choice("M2", "matmul")) == ("64x64", "32x32")
    assert [each.name for each in path.parent.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"M1": 3}', b'{"M1": {"matmul": 7}}', b"\xff\xfe"])
def test_damaged_choices_are_ignored(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "tuning.json"
    path.write_bytes(damage)
    tuning = Tuning(path)
    assert tuning.choice("M1", "matmul") is None
    tuning.remember("M1", "matmul", "64x64")
    assert Tuning(path).choice("M1", "matmul") == "64x64"


def test_choices_last_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tuning = Tuning(tmp_path / "file" / "tuning.json")
    tuning.remember("M1", "matmul", "64x64")
    assert tuning.choice("M1", "matmul") == "64x64"


@needs_clang
def test_the_fastest_variant_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metal = context()
    tuning = Tuning(tmp_path / "tuning.json")
    monkeypatch.setattr(tuning_module, "default_tuning", lambda: tuning)
    question = f"matmul f32 {shape_class(40, 50, 60)}"
    assert chosen(metal, question, ("a", "b"), "a", None) == "a"
    runs: list[str] = []
    times = {"a": 2.0, "b": 1.0}

    def clock(_: object, work: object) -> float:
        assert callable(work)
        work()
        return times[runs[-1]]

    assert tune(metal, question, ("a", "b"), runs.append, tuning=tuning, clock=clock) == times
    assert runs == ["a"] * 6 + ["b"] * 6
    assert chosen(metal, question, ("a", "b"), "a", None) == "b"
    assert chosen(metal, question, ("a", "b"), "a", "a") == "a"
    assert chosen(metal, question, ("a", "c"), "a", None) == "a"  # a variant that is no more
    with pytest.raises(UsageError, match="there is no variant 'c'; expected one of a, b"):
        chosen(metal, question, ("a", "b"), "a", "c")


@needs_clang
def test_tuning_on_the_device_measures_every_variant(tmp_path: Path) -> None:
    metal = context()
    x, weight = up(metal, numbers(1, 64)), up(metal, numbers(8, 64))
    tuning = Tuning(tmp_path / "tuning.json")
    seconds = tune(
        metal, "matvec", ("2", "split4"), lambda variant: linear(metal, x, weight, variant=variant), tuning=tuning
    )
    assert set(seconds) == {"2", "split4"}
    assert all(value > 0 for value in seconds.values())
    assert tuning.choice(metal.info.tuning_key, "matvec") == min(seconds, key=lambda variant: seconds[variant])


@needs_clang
def test_dispatches_are_batched_while_nothing_is_profiled() -> None:
    profiled = ProfiledContext(context())
    x = up(profiled, numbers(2, 8))
    softmax(profiled, x)
    with profiled.unprofiled():
        softmax(profiled, x)
        assert len(profiled._open) == 1  # waits for company
    softmax(profiled, x)
    assert [call.kernel for call in profiled.profile().calls] == ["softmax"] * 2


def test_a_trace_is_recorded_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac = install(monkeypatch, FakeMac())
    metal = MetalContext(NativeDriver(), store=ArtifactStore(tmp_path))
    copy = metal.pipeline("kernel void copy(device float* x [[buffer(0)]]) {}", "copy")
    with captured(metal, tmp_path / "a.gputrace"):
        metal.dispatch(copy, {0: b"1234"}, (1,), (1,))
    names = [name for name, _ in mac.calls if name in ("startCaptureWithDescriptor:error:", "commit", "stopCapture")]
    assert names == ["startCaptureWithDescriptor:error:", "commit", "stopCapture"]


@needs_clang
def test_the_emulator_records_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a trace needs an Apple GPU"), captured(context(), tmp_path / "a.gputrace"):
        pass
