"""MetalContext and CommandBatch: order, batching, errors, and buffers over mapped files."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from lbrx.base import system
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import BufferBinding, Pipeline
from lbrx.devices.metal.driver.commands import CommandBatch
from lbrx.devices.metal.driver.errors import KernelFault, MetalError
from lbrx.errors import UsageError
from support.metal_shaders import PREFIX, driver, needs_clang

pytestmark = needs_clang
SOURCE = (
    PREFIX
    + """
kernel void add(device float* x, constant float& step, uint i [[thread_position_in_grid]]) { x[i] += step; }
kernel void scale(device float* x, constant float& step, uint i [[thread_position_in_grid]]) { x[i] *= step; }
kernel void copy(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void fault(device float* x, uint i [[thread_position_in_grid]]) { x[i + 1000000] = 1; }
"""
)


def pipeline(context: MetalContext, name: str) -> Pipeline:
    return context.pipeline(SOURCE, name)


def number(value: float) -> bytes:
    return np.float32(value).tobytes()


def test_kernels_run_in_the_order_of_their_dispatch() -> None:
    context = MetalContext(driver())
    x = context.buffer_from(np.zeros(100, np.float32))
    expected = 0.0
    for step in range(200):  # more than one batch
        name = "add" if step % 3 else "scale"
        expected = expected + 1 if step % 3 else expected * 0.5
        value = number(1 if step % 3 else 0.5)
        context.dispatch(pipeline(context, name), {0: BufferBinding(x), 1: value}, (100,), (32,), grid_unit="threads")
    assert set(context.array(x, np.float32)) == {np.float32(expected)}


def test_a_fault_is_raised_where_values_are_needed() -> None:
    context = MetalContext(driver())
    x = context.buffer_from(np.zeros(4, np.float32))
    context.dispatch(pipeline(context, "fault"), {0: BufferBinding(x)}, (4,), (4,), grid_unit="threads")
    with pytest.raises(KernelFault, match="kernel 'fault'"):
        context.array(x, np.float32)
    context.synchronize()  # it was told, and is not told again
    y = context.buffer_from(np.ones(4, np.float32))
    context.dispatch(pipeline(context, "add"), {0: BufferBinding(y), 1: number(2)}, (4,), (4,), grid_unit="threads")
    assert context.array(y, np.float32).tolist() == [3] * 4


def test_waiting_for_a_buffer_elsewhere_does_not_disturb_the_context() -> None:
    context = MetalContext(driver())
    x = context.buffer_from(np.zeros(4, np.float32))
    arguments = {0: BufferBinding(x), 1: number(1)}
    context.dispatch(pipeline(context, "add"), arguments, (4,), (4,), grid_unit="threads")
    assert x.last_use is not None
    assert not x.last_use.done
    x.last_use.wait()
    context.dispatch(pipeline(context, "add"), arguments, (4,), (4,), grid_unit="threads")
    assert context.array(x, np.float32).tolist() == [2] * 4


def test_a_batch_tells_when_the_device_worked() -> None:
    context = MetalContext(driver())
    x = context.buffer_from(np.zeros(4, np.float32))
    context.dispatch(pipeline(context, "add"), {0: BufferBinding(x), 1: number(1)}, (1,), (4,))
    batch = context.commit()
    batch.wait()
    start, end = batch.gpu_seconds
    assert start <= end
    assert len(batch) == 1
    with pytest.raises(UsageError, match="committed already"):
        batch.dispatch(pipeline(context, "add"), {}, (1,), (1,))


def test_an_empty_batch_is_done_at_once() -> None:
    MetalContext(driver()).synchronize()
    batch = CommandBatch(driver())
    with pytest.raises(UsageError, match="has no times"):
        _ = batch.gpu_seconds
    batch.wait()
    assert batch.done


def test_a_mapped_file_is_read_without_a_copy(tmp_path: Path) -> None:
    page = system.page_bytes()
    path = tmp_path / "weights"
    values = np.arange(page // 2, dtype=np.float32)  # two pages
    path.write_bytes(values.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapping, np.uint8)
    buffer = driver().wrap(array.ctypes.data, array.nbytes, mapping)
    assert buffer.view().ctypes.data == array.ctypes.data
    context = MetalContext(driver())
    out = context.get_buffer(400)
    arguments = {0: BufferBinding(buffer, page, 400), 1: BufferBinding(out)}
    context.dispatch(pipeline(context, "copy"), arguments, (100,), (50,), grid_unit="threads")
    assert context.array(out, np.float32).tolist() == values[page // 4 : page // 4 + 100].tolist()
    context.dispatch(pipeline(context, "add"), {0: BufferBinding(buffer), 1: number(1)}, (1,), (1,))
    with pytest.raises(MetalError, match="is written by the kernel, but mapped pages are read-only"):
        context.synchronize()


def test_only_whole_pages_are_wrapped() -> None:
    page = system.page_bytes()
    array = np.zeros(4 * page, np.uint8)
    start = -(-array.ctypes.data // page) * page
    for address, nbytes in ((start + 4, page), (start, page + 1), (start, 0)):
        with pytest.raises(UsageError, match="a buffer without a copy needs whole pages"):
            driver().wrap(address, nbytes, array)
    with pytest.raises(UsageError, match="do not fit into read-only pages"):
        driver().wrap(start, page, array).fit(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (0,)}, r"grid of \(0,\); expected one to three positive numbers"),
        ({"grid": (1, 1, 1, 1)}, "expected one to three positive numbers"),
        ({"threads_per_threadgroup": (33, 32)}, "1056 threads per threadgroup, but at most 1024 are possible"),
        ({"threadgroup_bytes": {0: 40000}}, "40000 bytes of threadgroup memory, but emulated M1 has 32768"),
        ({"threadgroup_bytes": {0: 20}}, "20 bytes of threadgroup memory 0; expected a multiple of 16"),
        ({"arguments": {31: b"1234"}}, r"buffer index 31 is not in 0\.\.30"),
        ({"arguments": {0: b""}}, "0 bytes by value; expected 1 to 4096"),
        ({"arguments": {0: bytes(4097)}}, "4097 bytes by value; expected 1 to 4096"),
        ({"arguments": "outside"}, "bytes 8 to 24 were bound, but the buffer has 16"),
    ],
)
def test_a_wrong_dispatch_is_rejected_when_it_is_recorded(change: dict[str, object], message: str) -> None:
    context = MetalContext(driver())
    given: dict[str, object] = {"arguments": {}, "grid": (1,), "threads_per_threadgroup": (1,)} | change
    if given["arguments"] == "outside":
        given["arguments"] = {0: BufferBinding(driver().allocate(16), 8, 16)}
    with pytest.raises((UsageError, MetalError), match=f"kernel 'add': .*{message}|kernel 'add': {message}"):
        CommandBatch(driver()).dispatch(pipeline(context, "add"), **given)  # type: ignore[arg-type]
