"""MLX, compressed-tensors, GPTQ and AWQ models that are calibrated: closer to the original at the same size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run as run_command
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.quantize import quantize
from lbrx.jobs.quantize.group_codes import finite_rows, store, store_joined, stored_group_values
from lbrx.jobs.quantize.options import parse_options
from lbrx.jobs.score.score import score
from lbrx.ops.group_feedback import GroupCodes

HELD_OUT = (
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto them, When a man or woman "
    "shall separate themselves to vow a vow of a Nazarite, he shall separate himself from wine and strong drink."
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(calibration_text()[:2500])
    return path


@pytest.mark.parametrize("name", ["mlx_3", "ct_int4_asym", "gptq_4", "awq_4"])
def test_models_are_closer_to_the_original(tmp_path: Path, text: Path, name: str) -> None:
    base, outs = demo_models().base, [tmp_path / each for each in ("plain", "searched", "better")]
    quantize(base, outs[0], name, group_size=32)
    quantize(base, outs[1], name, group_size=32, calibrate=text)
    quantize(base, outs[2], name, group_size=32, calibrate=text, feedback=True)
    kinds = [{key: (each.type_name, each.shape) for key, each in lbrx.open(out, raw=True).items()} for out in outs]
    assert kinds[0] == kinds[1] == kinds[2]
    assert len({(out / "config.json").read_text() for out in outs}) == 1
    distances = [one.divergence for one in score(outs, HELD_OUT, reference=base)[1:]]
    plain, searched, better = (0.0 if each is None else each.mean for each in distances)
    assert searched < plain
    assert better < 0.9 * searched
    assert not (tmp_path / ".better.feedback").exists()


def test_importances_of_experts(tmp_path: Path) -> None:
    """Each expert has its own."""
    columns, experts = 64, 2
    sizes = {"hidden_size": columns, "intermediate_size": 32, "num_attention_heads": 4, "vocab_size": 8}
    sizes |= {"num_experts_per_tok": 1}
    config = json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 1, "num_experts": experts, **sizes})
    names = [f"model.layers.0.mlp.experts.{number}.up_proj.weight" for number in range(experts)]
    weight = lbrx.normal((32, columns), seed=1).to("bf16")
    lbrx.save(tmp_path / "in" / "model.safetensors", dict.fromkeys(names, weight))
    (tmp_path / "in" / "config.json").write_text(config)
    sums = np.ones((experts, columns), np.float32)
    sums[0, :8], sums[1, -8:] = 1000, 1000
    matrix = {
        "blk.0.ffn_up_exps.weight.in_sum2": sums[:, None],
        "blk.0.ffn_up_exps.weight.counts": np.ones((experts, 1), np.float32),
    }
    metadata = {"general.type": "imatrix", "imatrix.datasets": ["a"], "imatrix.chunk_count": 1}
    lbrx.save(tmp_path / "i.gguf", matrix, metadata | {"imatrix.chunk_size": 1})
    for to in ("ct_int4", "mlx_4"):
        out = tmp_path / to
        quantize(tmp_path / "in", out, to, group_size=64, imatrix=tmp_path / "i.gguf")
        if to == "mlx_4":
            lbrx.convert(out, tmp_path / "back", type="f32")
        opened = lbrx.open(out if to == "ct_int4" else tmp_path / "back")
        errors = [np.square((opened[name].to("f32") - weight.to("f32")).numpy()) for name in names]
        assert errors[0][:, :8].mean() < 0.5 * errors[1][:, :8].mean()
        assert errors[1][:, -8:].mean() < 0.5 * errors[0][:, -8:].mean()


def test_a_stopped_run_encodes_only_the_rest(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lbrx.jobs.quantize.feedback as module

    original, calls = module.store_piece, []

    def counted(*given: object) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "store_piece", counted)
    arguments = (demo_models().base, tmp_path / "b", "ct_int4")
    options = {"group_size": 32, "calibrate": text, "feedback": True}
    with pytest.raises(KeyboardInterrupt):
        quantize(*arguments, **options)  # type: ignore[arg-type]
    assert len(list((tmp_path / ".b.feedback").glob("*.safetensors"))) == 4
    quantize(*arguments, **options)  # type: ignore[arg-type]
    coded = [name for name in lbrx.open(tmp_path / "b", raw=True) if name.endswith("packed")]
    assert len(calls) == 1 + len(coded)


def test_types_without_importances(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ct_fp8", "mlx_mxfp4", "int4"):
        with pytest.raises(UsageError, match=f"{name} is rounded without importances"):
            parse_options(name, imatrix=tmp_path / "i.gguf")
    command = ["quantize", str(demo_models().base), str(tmp_path / "a"), "--to", "ct_fp8", "--calibrate", str(text)]
    assert run_command(command) == 1
    assert "ct_fp8 is rounded without importances" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_directory_is_replaced(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)
    quantize(demo_models().base, ".", "mlx_4", calibrate=text)  # an empty directory, which is the current one
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(FileError, match="exists and is not empty; --overwrite replaces it"):
        quantize(demo_models().base, out, "mlx_8", calibrate=text)
    quantize(demo_models().base, out, "mlx_8", calibrate=text, overwrite=True)
    assert len((out / "model.safetensors").read_bytes()) > len(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.imatrix.gguf"]


def test_values_that_are_not_finite_have_no_codes() -> None:
    values = np.ones((4, 64), np.float32)
    values[3, 5] = np.inf
    with pytest.raises(UsageError, match="tensor 'w' has values that are not finite"):
        list(finite_rows("w", lbrx.tensor(values)))


def test_codes_in_files_are_joined_and_read_as_expressions(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    pieces = [
        GroupCodes(
            random.integers(0, 16, (rows, 96)).astype(np.uint8),
            random.normal(size=(rows, 3)).astype(np.float32),
            random.normal(size=(rows, 3)).astype(np.float32),
        )
        for rows in (70, 1, 9)
    ]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, piece in zip(paths, pieces, strict=True):
        store(path, piece)
    store_joined(tmp_path / "all.safetensors", paths)
    expected = np.concatenate([piece.values() for piece in pieces])
    whole, some = (stored_group_values(tmp_path, "all", rows) for rows in (slice(None), slice(69, 72)))
    assert whole is not None
    assert some is not None
    assert whole.storage is some.storage is None  # nothing is in memory
    np.testing.assert_array_equal(whole.numpy(), expected)
    np.testing.assert_array_equal(some.numpy(), expected[69:72])
    assert stored_group_values(tmp_path, "none") is None
