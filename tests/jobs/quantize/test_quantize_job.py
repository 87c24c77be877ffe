"""Whole jobs: models of every format in, files out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from lbrx.files.output.contents import Contents
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.run import execute
from lbrx.jobs.quantize import quantize
from lbrx.jobs.quantize.kept_split import lay_out_as_source
from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx
from support.quantizing_models import gguf_model, hf_model, noise

UP = "model.layers.0.mlp.up_proj.weight"


def written(contents: Contents, out: Path, **options: int) -> Path:
    execute(plan_output(contents, out, **options))  # type: ignore[arg-type]
    return out


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(gguf_model(2, values=noise), tmp_path / "source.gguf")


def raw(path: Path) -> dict[str, bytes]:
    model = lbrx.open(path)
    return {name: model[name].raw().numpy().tobytes() for name in model}


def test_a_gguf_file(source: Path, tmp_path: Path) -> None:
    result = quantize(source, tmp_path / "out.gguf", "q4_k_m")
    out, before = lbrx.open(tmp_path / "out.gguf"), lbrx.open(source)
    assert result.tensors == len(before)
    assert out["blk.1.ffn_up.weight"].type_name == "q4_k"
    assert out.metadata["general.file_type"] == 15
    expected = before["blk.1.ffn_up.weight"].quantize("q4_k").realize().raw().numpy()
    assert np.array_equal(out["blk.1.ffn_up.weight"].raw().numpy(), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_memory_do_not_matter(source: Path, tmp_path: Path, threads: int) -> None:
    quantize(source, tmp_path / "a.gguf", "q4_k_m")
    quantize(source, tmp_path / "b.gguf", "q4_k_m", threads=threads, memory="64MB")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_model_is_not_quantized_in_place(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        quantize(source, source, "q8_0", overwrite=True)
    assert source.read_bytes() == before


def test_a_target_size_is_that_of_the_file(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "out.gguf", target_size=1_100_000)
    assert 1_080_000 < (tmp_path / "out.gguf").stat().st_size <= 1_100_000
    with pytest.raises(UsageError, match="a target size is that of one file"):
        quantize(source, tmp_path / "b.gguf", target_size=1_100_000, max_shard_bytes="1MB")


def test_shards(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "whole.gguf", "q8_0")
    quantize(source, tmp_path / "out.gguf", "q8_0", max_shard_bytes="500KB")
    shards = sorted(tmp_path.glob("out-*.gguf"))
    assert len(shards) > 2
    assert raw(shards[0]) == raw(tmp_path / "whole.gguf")


@pytest.mark.parametrize("prune", ["", "0"])
def test_shards_of_the_source_are_kept(tmp_path: Path, prune: str) -> None:
    model = gguf_model(2, values=noise)
    written(model, tmp_path / "source.gguf", max_shard_bytes=1_500_000)
    before = sorted(tmp_path.glob("source-*.gguf"))
    assert len(before) > 2
    layers = {"prune_layers": prune} if prune else {}
    quantize(before[0], tmp_path / "out.gguf", "q8_0", keep_split=True, **layers)
    quantize(before[0], tmp_path / "whole.gguf", "q8_0", **layers)
    after = sorted(tmp_path.glob("out-*.gguf"))
    assert raw(after[0]) == raw(tmp_path / "whole.gguf")
    assert dict(lbrx.open(after[0]).metadata) == {
        **dict(lbrx.open(tmp_path / "whole.gguf").metadata),
        **{key: value for key, value in lbrx.open(after[0]).metadata.items() if key.startswith("split.")},
    }
    if not prune:
        names = [
            [[e.name for e in header.entries] for header in lbrx.open(path).files] for path in (before[0], after[0])
        ]
        assert names[0] == names[1]


def test_only_shards_of_gguf_are_kept(tmp_path: Path) -> None:
    path = written(hf_model(1), tmp_path / "model")
    contents = replace(gguf_model(1), sources=lbrx.open(path).files)
    with pytest.raises(UsageError, match="only the shards of a GGUF model can be kept"):
        lay_out_as_source(contents, "out", None)


@pytest.mark.parametrize("to", ["mlx_4", "mixed_3_6", "mlx_mxfp4"])
def test_mlx_directories(tmp_path: Path, to: str) -> None:
    model = hf_model(2)
    written(model, tmp_path / "model")
    quantize(tmp_path / "model", tmp_path / "out", to)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization"]["mode"] == ("mxfp4" if "mxfp4" in to else "affine")
    out = lbrx.open(tmp_path / "out")
    assert {"model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.scales"} <= set(out)
    assert out["model.layers.1.mlp.down_proj.weight"].type_name == "u32"
    restored = mlx_to_hf(read_mlx(tmp_path / "out")).by_name
    for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        values = model.by_name[name].make()
        assert float((restored[name].make() - values).norm() / values.norm()) < 0.3, name  # three bits at least


def test_integers_in_safetensors(tmp_path: Path) -> None:
    model = hf_model(1)
    written(model, tmp_path / "model")
    quantize(tmp_path / "model", tmp_path / "out", "int8")
    stored, values = lbrx.open(tmp_path / "out")[UP], model.by_name[UP].make()
    assert stored.type_name == "int8"
    assert float((stored - values).norm() / values.norm()) < 0.01


def test_a_quantized_mlx_model_is_refused_unless_allowed(tmp_path: Path) -> None:
    written(hf_model(1), tmp_path / "model")
    quantize(tmp_path / "model", tmp_path / "eight", "mlx_8")
    with pytest.raises(UsageError, match="quantized for MLX already"):
        quantize(tmp_path / "eight", tmp_path / "four", "mlx_4")
    quantize(tmp_path / "eight", tmp_path / "four", "mlx_4", allow_requantize=True)
    assert json.loads((tmp_path / "four/config.json").read_text())["quantization"]["bits"] == 4


def test_a_quantized_mlx_model_can_be_decoded(tmp_path: Path) -> None:
    quantize(demo_models().base, tmp_path / "eight", "mlx_8")
    quantize(tmp_path / "eight", tmp_path / "plain.gguf", "f32")
    plain = lbrx.open(tmp_path / "plain.gguf")["blk.0.ffn_up.weight"]
    original = lbrx.open(demo_models().base)["model.layers.0.mlp.up_proj.weight"].to("f32")
    assert plain.type_name == "f32"
    assert 0 < float((plain - original).norm() / original.norm()) < 0.01
    assert not np.array_equal(plain.numpy(), plain.to("bf16").to("f32").numpy())  # not rounded on the way
    with pytest.raises(UsageError, match="quantized for MLX already"):
        quantize(tmp_path / "eight", tmp_path / "mixed.gguf", "f32", tensor_types=["ffn_up=q4_k"])


def test_a_run_of_other_options_does_not_go_on(source: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(_: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        quantize(source, tmp_path / "out.gguf", "q4_k_m", progress=stop)
    with pytest.raises(UsageError, match="target"):
        quantize(source, tmp_path / "out.gguf", "q5_k_m")
    quantize(source, tmp_path / "out.gguf", "q4_k_m")
    assert lbrx.open(tmp_path / "out.gguf")["blk.0.ffn_up.weight"].type_name == "q4_k"


@pytest.mark.parametrize(
    ("out", "to", "message"),
    [
        ("out", "q4_k_m", "expected a name that ends in .gguf"),
        ("out.gguf", "mlx_4", "mlx_4 is not made in GGUF files"),
    ],
)
def test_a_path_that_does_not_go_with_the_target(source: Path, tmp_path: Path, out: str, to: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quantize(source, tmp_path / out, to)


def test_files_that_are_missing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nowhere\.gguf"):
        quantize(tmp_path / "nowhere.gguf", tmp_path / "out.gguf", "q8_0")
    with pytest.raises(FileError, match=r"nowhere\.dat"):
        quantize(source, tmp_path / "out.gguf", "q8_0", imatrix=tmp_path / "nowhere.dat")
