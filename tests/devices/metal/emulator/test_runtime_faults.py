"""Faults that a GPU hides: each planted one is found, and the message names kernel, memory and thread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lbrx.devices.metal.driver import BufferBinding
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import KernelFault, MetalError
from lbrx.devices.metal.emulator.launch import EmulatorSettings
from support.metal_shaders import ORDERS, PREFIX, Order, driver, needs_clang, run, shaders

pytestmark = needs_clang
LOOK = EmulatorSettings(find_races=True)


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


def fault(body: str, *, settings: EmulatorSettings | None = None, threads: int = 64, arguments: str = "") -> str:
    """The message of a kernel over one threadgroup that must go wrong; ``x`` has 64 floats."""
    source = (
        f"{PREFIX}kernel void planted(device float* x [[buffer(0)]], device const float* y [[buffer(1)]], {arguments}"
        f"uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {{ {body} }}"
    )
    with pytest.raises(KernelFault) as caught:
        run(source, "planted", {0: floats(64), 1: floats(64)}, (1,), (threads,), settings=settings)
    return str(caught.value)


def test_a_read_behind_a_buffer_is_found() -> None:
    message = fault("x[i] = y[i + 1];")
    assert message == (
        "kernel 'planted': out-of-bounds access to buffer 1 ('device const float * y') at byte 256 of 256, "
        "in thread (63, 0, 0) of threadgroup (0, 0, 0)"
    )


def test_a_write_behind_a_buffer_is_found() -> None:
    assert "out-of-bounds access to buffer 0 ('device float * x') at byte 256 of 256" in fault("x[i * 2] = 1;")


def test_a_write_before_a_buffer_is_found() -> None:
    assert "out-of-bounds write just outside the 256 bytes of buffer 0" in fault("x[(int)i - 1] = 1;")


def test_a_read_before_a_buffer_is_found_when_buffers_begin_at_the_guard() -> None:
    message = fault("x[i] = y[(int)i - 1];", settings=EmulatorSettings(placement="start"))
    assert "out-of-bounds access to buffer 1" in message
    assert "at byte -4 of 256" in message


def test_a_write_into_the_rest_of_the_last_16_bytes_is_found() -> None:
    source = PREFIX + "kernel void planted(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }"
    with pytest.raises(KernelFault, match="just outside the 12 bytes of buffer 0"):
        run(source, "planted", {0: floats(3)}, (1,), (4,))


def test_a_write_to_a_const_buffer_is_found() -> None:
    assert "write to the read-only buffer 1" in fault("((device float*)y)[i] = 1;")


def test_an_access_outside_the_window_of_a_binding_is_found() -> None:
    source = PREFIX + "kernel void planted(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }"
    buffer = driver().allocate(1024)
    batch = CommandBatch(driver())
    batch.dispatch(shaders().pipeline(source, "planted"), {0: BufferBinding(buffer, 256, 128)}, (1,), (33,))
    with pytest.raises(KernelFault, match="at byte 128 of 128, in thread \\(32, 0, 0\\)"):
        batch.wait()


def test_a_window_is_written_back() -> None:
    source = PREFIX + "kernel void planted(device float* x, uint i [[thread_position_in_grid]]) { x[i] = i; }"
    buffer = driver().allocate(1024)
    buffer.view()[:] = 0
    batch = CommandBatch(driver())
    batch.dispatch(shaders().pipeline(source, "planted"), {0: BufferBinding(buffer, 256, 128)}, (1,), (32,))
    batch.wait()
    values = buffer.view().view(np.float32)
    assert values[64:96].tolist() == list(range(32))
    assert not values[:64].any()
    assert not values[96:].any()


@pytest.mark.parametrize("index", ["i + 1", "i * 2"])
def test_an_access_behind_a_threadgroup_variable_is_found(index: str) -> None:
    message = fault(f"threadgroup float tile[64]; threadgroup float* p = tile; p[{index}] = 1; x[i] = tile[i];")
    assert "out-of-bounds access to threadgroup variable 'tile' at byte 256" in message


def test_an_index_outside_a_threadgroup_array_is_found() -> None:
    assert "array index out of bounds" in fault("threadgroup float tile[64]; tile[i + 1] = 1; x[i] = tile[i];")


def test_an_index_outside_a_thread_array_is_found() -> None:
    assert "array index out of bounds" in fault("float a[4] = {0}; a[i & 7] = 1; x[i] = a[i & 3];")


def test_an_access_behind_threadgroup_memory_of_an_argument_is_found() -> None:
    source = PREFIX + (
        "kernel void planted(device float* x, threadgroup float* s [[threadgroup(0)]], "
        "uint i [[thread_index_in_threadgroup]]) { s[i] = 1; x[i] = s[i]; }"
    )
    with pytest.raises(KernelFault, match="out-of-bounds access to threadgroup memory 0 at byte 64"):
        run(source, "planted", {0: floats(64)}, (1,), (64,), threadgroup_bytes={0: 64})


def test_a_misaligned_access_is_found() -> None:
    assert "misaligned" in fault("*(device float4*)(x + 1) = float4(i);", threads=1)


def test_too_much_threadgroup_memory_is_found() -> None:
    message = fault("threadgroup float tile[9000]; tile[i] = 1; x[i] = tile[i];")
    assert "uses 36000 bytes of threadgroup memory, but the device has 32768" in message


def test_a_barrier_that_some_threads_do_not_reach_is_found() -> None:
    message = fault("if (i < 16) threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = 1;")
    assert "divergent threadgroup_barrier: 48 of 64 threads returned without reaching it" in message


def test_two_barriers_in_two_branches_are_found() -> None:
    message = fault(
        "if (i < 32) { threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = 1; } "
        "else { threadgroup_barrier(mem_flags::mem_none); x[i] = 2; }"
    )
    assert "divergent threadgroup_barrier: thread 32 waits at another barrier than thread 0" in message


def test_divergent_simdgroup_operations_are_found_on_demand() -> None:
    body = "if (lane < 16) x[i] = simd_sum(x[i]); else x[i] = simd_max(x[i]);"
    message = fault(body, settings=EmulatorSettings(strict_simdgroups=True))
    assert "divergent simdgroup operation in simdgroup 0: lanes 0xffff" in message


@pytest.mark.parametrize("order", ORDERS)
def test_a_race_in_threadgroup_memory_is_found(order: Order) -> None:
    message = fault(
        "threadgroup float tile[64]; tile[i] = x[i]; x[i] = tile[63 - i];", settings=replace(LOOK, order=order)
    )
    assert "data race on threadgroup variable 'tile'" in message or "uninitialised" in message


def test_two_writes_without_a_barrier_are_found() -> None:
    message = fault("threadgroup float total; total = i; x[i] = 1;", settings=LOOK)
    assert "data race on threadgroup variable 'total' at byte 0 (two writes that nothing orders)" in message
    assert "thread 1 of threadgroup (0, 0, 0) and thread 0 of the same" in message


def test_a_write_after_a_read_without_a_barrier_is_found() -> None:
    message = fault(
        "threadgroup float tile[64]; tile[i] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup); "
        "if (i < 32) x[i] = tile[i + 32]; else tile[i] = 0;",
        settings=LOOK,
    )
    assert "(a write that nothing orders with an earlier read)" in message


def test_a_race_in_a_buffer_within_a_threadgroup_is_found() -> None:
    message = fault("x[i / 2] = i;", settings=LOOK)
    assert "data race on buffer 0 ('device float * x') at byte 0 (two writes that nothing orders)" in message


def test_a_race_between_threadgroups_is_found() -> None:
    source = PREFIX + (
        "kernel void planted(device float* x, uint i [[thread_position_in_threadgroup]], "
        "uint g [[threadgroup_position_in_grid]]) { threadgroup_barrier(mem_flags::mem_device); x[i] = g; }"
    )
    with pytest.raises(KernelFault, match=r"data race on buffer 0 .* of threadgroup \(1, 0, 0\)"):
        run(source, "planted", {0: floats(32)}, (2,), (32,), settings=LOOK)


def test_a_read_of_uninitialised_threadgroup_memory_is_found() -> None:
    message = fault("threadgroup float tile[64]; if (i) tile[i] = 1; x[i] = tile[i];", settings=LOOK)
    assert message == (
        "kernel 'planted': read of uninitialised threadgroup variable 'tile' at byte 0, in thread 0 of "
        "threadgroup (0, 0, 0)"
    )


def test_an_accumulation_onto_uninitialised_threadgroup_memory_is_found() -> None:
    assert "read of uninitialised" in fault("threadgroup float tile[64]; tile[i] += 1; x[i] = tile[i];", settings=LOOK)


@pytest.mark.parametrize("order", ORDERS)
def test_correct_synchronisation_gives_no_alarm(order: Order) -> None:
    source = PREFIX + (
        "kernel void fine(device float* x, device atomic_uint* count, uint i [[thread_index_in_threadgroup]]) {"
        " threadgroup float tile[64]; threadgroup atomic_uint here;"
        " if (i == 0) atomic_store_explicit(&here, 0, memory_order_relaxed);"
        " tile[i] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        " atomic_fetch_add_explicit(&here, 1, memory_order_relaxed);"
        " atomic_fetch_add_explicit(count, 1, memory_order_relaxed);"
        " float v = tile[63 - i]; v += simd_sum(0.0f); threadgroup_barrier(mem_flags::mem_threadgroup);"
        " tile[i] = v; simdgroup_barrier(mem_flags::mem_threadgroup); x[i] = tile[i ^ 1]; }"
    )
    x, count = floats(64), np.zeros(1, np.uint32)
    run(source, "fine", {0: x, 1: count}, (1,), (64,), settings=replace(LOOK, order=order))
    assert x.tolist() == [63 - (i ^ 1) for i in range(64)]
    assert count[0] == 64


def test_an_endless_loop_is_stopped() -> None:
    body = "volatile device float* p = x; while (p[0] < 1) {} x[i] = 1;"
    assert "did not finish in 200 ms" in fault(body, settings=EmulatorSettings(timeout_seconds=0.2), threads=1)


def test_the_emulator_works_on_after_a_fault() -> None:
    fault("x[i * 1000] = 1;")
    source = PREFIX + "kernel void fine(device float* x, uint i [[thread_position_in_grid]]) { x[i] += 1; }"
    x = floats(64)
    run(source, "fine", {0: x}, (1,), (64,))
    assert x.tolist() == list(range(1, 65))


@pytest.mark.parametrize("body", ["x[0] = y[0];", "x[0] = y[1000000];", "y[0] = x[0];"])
def test_the_use_of_a_buffer_that_is_not_bound_is_found(body: str) -> None:
    source = PREFIX + f"kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(3)]]) {{ {body} }}"
    with pytest.raises(KernelFault, match=r"access to buffer 3 \('device float \* y'\), which is not bound"):
        run(source, "k", {0: floats(1)}, (1,), (1,))


def test_a_buffer_that_is_not_used_need_not_be_bound() -> None:
    source = PREFIX + "kernel void k(device float* x [[buffer(0)]], constant float4& y [[buffer(3)]]) { x[0] = 7; }"
    x = floats(1)
    run(source, "k", {0: x}, (1,), (1,))
    assert x[0] == 7


@pytest.mark.parametrize("expression", ["a / b", "a % b", "uint(a) / uint(b)", "a / int4(b).x", "long(a) / long(b)"])
def test_a_division_of_integers_by_zero_is_found(expression: str) -> None:
    message = fault(f"int a = int(x[i]), b = int(y[i]); x[i] = float({expression});")
    assert "integer division by zero" in message
    assert "thread (0, 0, 0)" in message
    looking = fault(f"int a = int(x[i]), b = int(y[i]); x[i] = float({expression});", settings=LOOK)
    assert "integer division by zero" in looking


def test_a_reference_needs_all_its_bytes() -> None:
    source = PREFIX + "kernel void k(device float* x [[buffer(0)]], constant float4& v [[buffer(1)]]) { x[0] = v.w; }"
    with pytest.raises(MetalError, match="has 4 bytes, but 16 are needed"):
        run(source, "k", {0: floats(1), 1: np.float32(1).tobytes()}, (1,), (1,))


def test_an_offset_must_be_aligned() -> None:
    source = PREFIX + "kernel void k(device float4* x [[buffer(0)]]) { x[0] = 1; }"
    batch = CommandBatch(driver())
    batch.dispatch(shaders().pipeline(source, "k"), {0: BufferBinding(driver().allocate(64), 4)}, (1,), (1,))
    with pytest.raises(MetalError, match="offset 4 is not a multiple of 16"):
        batch.wait()


def test_a_write_through_a_disabled_buffer_is_found() -> None:
    source = PREFIX + (
        "constant bool on [[function_constant(0)]];\n"
        "kernel void k(device float* x [[buffer(0)]], device float* y [[buffer(1), function_constant(on)]]) "
        "{ y[0] = x[0]; }"
    )
    with pytest.raises(KernelFault, match="function constant turns off"):
        run(source, "k", {0: floats(1)}, (1,), (1,), constants={"on": False})
