"""A save over a file that its tensors are read from: the result is right, and tensors of the old file stay readable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx


@pytest.mark.parametrize("ending", ["safetensors", "gguf"])
@pytest.mark.parametrize("target", ["the file", "a link", "a hard link"])
def test_expressions_of_a_file_are_saved_over_it(tmp_path: Path, ending: str, target: str) -> None:
    source = tmp_path / f"a.{ending}"
    values = {f"w{number}": np.arange(4000, dtype=np.float32) + number for number in range(3)}
    lbrx.save(source, {name: lbrx.tensor(each) for name, each in values.items()})
    out = source if target == "the file" else tmp_path / f"b.{ending}"
    if target == "a link":
        out.symlink_to(source)
    elif target == "a hard link":
        out.hardlink_to(source)
    model = lbrx.open(source)
    lbrx.save(out, {name: model[name] * 2 + model["w2"] for name in model})  # each tensor needs the last one
    for name, each in values.items():
        np.testing.assert_array_equal(lbrx.open(out)[name].numpy(), each * 2 + values["w2"])
        np.testing.assert_array_equal(model[name].numpy(), each)
