"""`--dry-run` prints the same rows for all commands, and the sizes of the run that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lbrx
from lbrx.demo.models import demo_models
from support.cli_running import lbrx_command

ROWS = ["output", "tensors", "types", "bits per weight", "to write"]
BASE = str(demo_models().base)
MERGE = ["merge", BASE, str(demo_models().code), "--method=linear", "--weight=0.5"]
COMMANDS = [
    ["convert", BASE, "out"],
    ["convert", BASE, "out.gguf"],
    ["quantize", BASE, "out.gguf", "--to=q4_0"],
    ["quantize", BASE, "out", "--to=mlx_4"],
    ["quantize", BASE, "out", "--to=mixed_3_6"],
    [*MERGE, "--out=out"],
    ["shuffle", BASE, str(demo_models().code), "--out=out"],
    ["transplant", BASE, str(demo_models().code), "out"],
    [*MERGE, "--out=out.gguf", "--quantize=q8_0"],
    [*MERGE, "--out=out", "--quantize=mlx_4"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments).replace(BASE, "base"))
@pytest.mark.usefixtures("folder")
def test_rows_and_bits_per_weight_of_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = lbrx_command(capsys, *arguments, "--dry-run").out
    names = [line[:17].strip() for line in text.splitlines()]
    first = names.index("output")
    assert names[first : first + len(ROWS)] == ROWS
    assert names.index("target") + 1 == names.index("free on disk")

    plan = json.loads(lbrx_command(capsys, *arguments, "--dry-run", "--json").out.splitlines()[-1])
    assert lbrx_command(capsys, *arguments).code == 0
    out = Path(plan["out"])
    tensors = [lbrx.open(out)[name] for name in lbrx.open(out)]
    weights = sum(tensor.size for name, tensor in lbrx.open(BASE).items())
    assert plan["bits_per_weight"] == pytest.approx(8 * sum(tensor.nbytes for tensor in tensors) / weights, abs=0.01)
