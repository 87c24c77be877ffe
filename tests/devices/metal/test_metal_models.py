"""Models that run on the device: the same predictions as on the CPU, within the bounds of the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.demo.models import demo_models
from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.emulator.driver import EmulatedDriver
from lbrx.engine.device import CpuFallback
from lbrx.jobs.quantize import quantize
from support.metal_shaders import needs_clang

pytestmark = needs_clang
IDS = [3, 77, 500, 12, 900, 4, 61]


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with using_metal(MetalContext(EmulatedDriver())):
        yield


@pytest.mark.parametrize("to", [None, "q8_0", "q4_0", "q4_k_m"])
def test_logits_are_those_of_the_cpu(to: str | None, tmp_path: Path) -> None:
    path = demo_models().base
    if to is not None:
        path = tmp_path / "model.gguf"
        quantize(demo_models().base, path, to)
    model = lbrx.open_model(path)
    expected = model.logits(IDS)
    with lbrx.using(device="metal"):
        found = model.logits(IDS)
    assert not np.array_equal(found, expected)  # they were computed by other kernels
    np.testing.assert_allclose(found, expected, atol=2e-3 * float(np.abs(expected).max()))


def test_a_coding_without_a_kernel_stays_on_the_cpu_and_is_told(tmp_path: Path) -> None:
    quantize(demo_models().base, tmp_path / "model.gguf", "q5_0", pure=True)
    model = lbrx.open_model(tmp_path / "model.gguf")
    with lbrx.using(device="metal"), pytest.warns(CpuFallback, match="no product with q5_0 weights"):
        found = model.logits(IDS)
    np.testing.assert_allclose(found, model.logits(IDS), atol=1e-3)


def test_the_score_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(demo_models().prose_text.read_text(encoding="utf-8")[:600], encoding="utf-8")
    losses = []
    for device in ("cpu", "metal"):
        assert run(["score", str(demo_models().base), "--text", str(text), "--json", "--device", device]) == 0
        losses.append(float(capsys.readouterr().out.split('"loss": ')[1].split(",")[0]))
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)
