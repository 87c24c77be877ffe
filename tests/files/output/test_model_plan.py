"""Contents written by a run: files and directories, shards, replaced outputs, and going on after a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FileError, UsageError
from lbrx.files.output.contents import Contents, Format, PlannedTensor
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.nonfinite import NonFiniteError
from lbrx.files.output.options import Progress, RunOptions
from lbrx.files.output.run import execute


def contents(format: Format, count: int = 4, quant: str | None = None) -> Contents:
    generator = np.random.default_rng(5)
    tensors = []
    for number in range(count):
        values = lbrx.tensor(generator.standard_normal((8, 256), dtype=np.float32))
        tensors.append(PlannedTensor.of(f"t{number}", values if quant is None else values.quantize(quant)))
    return Contents(format, tuple(tensors), config={"model_type": "llama"} if format != "gguf" else None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_gguf_file_stands_alone(tmp_path: Path) -> None:
    result = execute(plan_output(contents("gguf", quant="q4_k"), tmp_path / "out.gguf"))
    assert names(tmp_path) == ["out.gguf"]
    assert result.written_bytes == 4 * 8 * 144
    written = lbrx.open(tmp_path / "out.gguf")
    for planned in contents("gguf", quant="q4_k").tensors:
        np.testing.assert_array_equal(written[planned.name].numpy(), planned.make().numpy())


def test_gguf_shards_are_named_after_the_file(tmp_path: Path) -> None:
    execute(plan_output(contents("gguf"), tmp_path / "out.gguf", max_shard_bytes=16384))
    assert names(tmp_path) == ["out-00001-of-00002.gguf", "out-00002-of-00002.gguf"]
    assert len(lbrx.open(tmp_path / "out-00001-of-00002.gguf")) == 4


@pytest.mark.parametrize("format", ["safetensors", "mlx"])
def test_a_directory_has_config_and_checksums(tmp_path: Path, format: Format) -> None:
    execute(plan_output(contents(format), tmp_path / "out"))
    expected = ["config.json", "lbrx.checksums.json", "model.safetensors"]
    assert names(tmp_path / "out") == expected + ["model.safetensors.index.json"] * (format == "mlx")
    assert lbrx.open(tmp_path / "out/model.safetensors").metadata["format"] == ("mlx" if format == "mlx" else "pt")


def test_a_safetensors_file(tmp_path: Path) -> None:
    execute(plan_output(contents("safetensors"), tmp_path / "out.safetensors"))
    assert names(tmp_path) == ["out.safetensors"]


def test_a_gguf_name_is_demanded() -> None:
    with pytest.raises(UsageError, match=r"out: a GGUF model is a file; expected a name that ends in \.gguf"):
        plan_output(contents("gguf"), Path("out"))


def test_an_old_file_is_replaced_only_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"GGUF old")
    with pytest.raises(FileError, match=r"out\.gguf: exists; --overwrite replaces it"):
        execute(plan_output(contents("gguf"), out))
    assert out.read_bytes() == b"GGUF old"
    execute(plan_output(contents("gguf"), out), RunOptions(overwrite=True))
    assert len(lbrx.open(out)) == 4
    assert names(tmp_path) == ["out.gguf"]


def test_a_directory_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "out.gguf").mkdir()
    with pytest.raises(FileError, match="is a directory; expected a file to write to"):
        execute(plan_output(contents("gguf"), tmp_path / "out.gguf"), RunOptions(overwrite=True))


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    def stop(state: Progress) -> None:
        if state.done_tensors == 2:
            raise KeyboardInterrupt

    plan = plan_output(contents("gguf", quant="q6_k"), tmp_path / "out.gguf")
    with pytest.raises(KeyboardInterrupt):
        execute(plan, RunOptions(progress=stop))
    assert not (tmp_path / "out.gguf").exists()
    assert execute(plan).resumed_tensors >= 2
    execute(plan_output(contents("gguf", quant="q6_k"), tmp_path / "whole.gguf"))
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_other_settings_do_not_go_on(tmp_path: Path) -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    plans = [
        plan_output(contents("gguf"), tmp_path / "out.gguf", settings_identity={"imatrix": number}) for number in (1, 2)
    ]
    with pytest.raises(KeyboardInterrupt):
        execute(plans[0], RunOptions(progress=stop))
    with pytest.raises(UsageError, match="unfinished work of another run: the imatrix is another"):
        execute(plans[1])
    assert execute(plans[1], RunOptions(restart=True)).resumed_tensors == 0


def test_renames_that_are_missing_are_done_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lbrx.base import system

    plan = plan_output(contents("gguf"), tmp_path / "out.gguf", max_shard_bytes=16384)
    rename = system.rename

    def last_only(source: Path, target: Path) -> None:
        if "00001-of" in target.name:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(system, "rename", last_only)
    with pytest.raises(KeyboardInterrupt):
        execute(plan)
    monkeypatch.undo()
    assert execute(plan).resumed_tensors == 4
    assert names(tmp_path) == ["out-00001-of-00002.gguf", "out-00002-of-00002.gguf"]
    assert len(lbrx.open(tmp_path / "out-00001-of-00002.gguf")) == 4


def test_values_that_are_not_finite_are_found_before_they_are_quantized(tmp_path: Path) -> None:
    values = np.ones((2, 256), np.float32)
    values[1, 7] = np.nan
    tensor = PlannedTensor.of("w", lbrx.tensor(values).quantize("q8_0"))
    plan = plan_output(Contents("gguf", (tensor,)), tmp_path / "out.gguf")
    assert execute(plan).nonfinite == {"w": {"result": (1, 0)}}
    with pytest.raises(NonFiniteError, match="'w': 1 NaN and 0 infinite values in the result"):
        execute(plan_output(Contents("gguf", (tensor,)), tmp_path / "strict.gguf"), RunOptions(strict=True))
