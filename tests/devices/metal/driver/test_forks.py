"""A forked process gets an error where it would wait for a GPU that is not there, and can open one of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

import lbrx
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import DRIVER_VARIABLE, using_metal
from lbrx.devices.metal.driver.errors import MetalUnavailable
from lbrx.devices.metal.driver.native import NativeDriver
from support.fake_objc import FakeMac, install
from support.metal_shaders import driver, needs_clang

_TIMEOUT_SECONDS = 60


def in_a_fork(work: Callable[[], str]) -> str:
    """What a forked process returns, or the text of its error."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_TIMEOUT_SECONDS)
        try:
            text = work()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


@needs_clang
def test_tensors_of_the_parent_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_VARIABLE, "emulated")
    context = MetalContext(driver())
    with using_metal(context):
        pending = (lbrx.tensor(np.ones(4, np.float32)).to_device("metal") + 1).realize()
        for work in (
            lambda: str(pending.numpy()),
            lambda: str((pending * 2).realize().numpy()),
            lambda: str(context.buffer_from(np.ones(4))),
            lambda: str(context.synchronize()),
        ):
            assert in_a_fork(work).startswith(
                "MetalError: this process was forked from one that uses the GPU and cannot use the tensors there; "
                "move them to the CPU before forking"
            )
        assert pending.numpy().tolist() == [2] * 4


@needs_clang
def test_the_end_of_a_tensor_in_a_fork_waits_for_nobody() -> None:
    context = MetalContext(driver())
    buffer = context.get_buffer(16)
    with context._lock:  # of a thread that the child does not have
        assert in_a_fork(lambda: str(context.return_buffer(buffer))) == "None"


def test_a_fork_cannot_open_the_gpu_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeMac())
    NativeDriver()
    text = in_a_fork(lambda: NativeDriver().info.name)
    assert text.startswith(f"{MetalUnavailable.__name__}: this process was forked from one that uses the GPU")
    assert "multiprocessing.get_context('spawn')" in text
