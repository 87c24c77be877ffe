"""Whole models between formats: `lbrx convert`, and merges that end in another format or fewer bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.context.transfers import transfers
from lbrx.files.output.run import RunKeywords
from lbrx.jobs.convert.convert import convert
from lbrx.jobs.merge.merge import merge
from lbrx.jobs.quantize import quantize
from support.devices import emulated_gpu
from support.metal_shaders import needs_clang
from support.tiny_models import write_model
from support.tokenizer_fixtures import byte_level_document, write_tokenizer

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
RECIPE = """
merge_method: linear
dtype: bfloat16
models:
  - {model: a, parameters: {weight: 0.6}}
  - {model: b, parameters: {weight: 0.4}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    document = byte_level_document("llama-bpe")
    rows = len(document["model"]["vocab"]) + len(document["added_tokens"])
    for seed, name in enumerate("ab"):
        write_model(tmp_path / name, "llama", seed=seed, vocab_size=rows, **SIZES)
        write_tokenizer(tmp_path / name, document, {"tokenizer_class": "PreTrainedTokenizerFast"})
    (tmp_path / "recipe.yml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(path: Path | str) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in lbrx.open(path).items()}


def test_a_wrong_keyword_is_an_error_before_anything_is_read() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'overwrit'"):
        convert("missing", "out", overwrit=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'thread'"):
        merge("missing.yml", "out", thread=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("function", [convert, merge])
def test_the_options_of_a_run_are_named_where_a_caller_looks(function: Callable[..., object]) -> None:
    with pytest.raises(TypeError) as raised:
        function("missing", "out", overwrit=True)
    for option in RunKeywords.__annotations__:
        assert f"``{option}``" in (function.__doc__ or "")
        assert option in str(raised.value).partition(";")[2]


@pytest.mark.parametrize("type_name", ["f32", "f16", "bf16"])
def test_a_gguf_file_in_another_type_is_what_quantize_writes(folder: Path, type_name: str) -> None:
    convert("a", "a.gguf")
    quantize("a.gguf", "q.gguf", "q4_k_m")
    for source in ("a.gguf", "q.gguf"):
        convert(source, "converted.gguf", type=type_name, overwrite=True)
        quantize(source, "quantized.gguf", type_name, allow_requantize=True, overwrite=True)
        assert (folder / "converted.gguf").read_bytes() == (folder / "quantized.gguf").read_bytes()


@pytest.mark.parametrize("middle", ["m.gguf", "m"])
def test_there_and_back_gives_the_same_bytes(folder: Path, middle: str) -> None:
    convert("a", middle, format="gguf" if middle.endswith("gguf") else "mlx")
    convert(middle, "back", format="safetensors")
    assert values("back") == values("a")
    back, there = (json.loads((folder / name / "config.json").read_text()) for name in ("back", "a"))
    assert {key: back.get(key) for key in there} == there


def test_gguf_to_mlx_and_back_keeps_quantized_blocks(folder: Path) -> None:
    quantize("a", "q.gguf", "q4_0", pure=True)
    convert("q.gguf", "mlx", format="mlx")
    assert json.loads((folder / "mlx/config.json").read_text())["quantization"]["bits"] == 4
    convert("mlx", "decoded", format="safetensors", type="f32")
    convert("q.gguf", "expected", format="safetensors", type="f32")
    for name, expected in lbrx.open("expected").items():
        np.testing.assert_array_equal(lbrx.open("decoded")[name].numpy(), expected.numpy(), err_msg=name)


def test_shards(folder: Path) -> None:
    convert("a", "many", max_shard_bytes="200kB")
    assert len(list((folder / "many").glob("*.safetensors"))) > 2
    convert("many", "many.gguf", max_shard_bytes="300kB")
    first = min(folder.glob("many-*-of-*.gguf"))
    convert(first, "one.gguf")
    convert("a", "whole.gguf")
    assert values("one.gguf") == values("whole.gguf")
    assert list(lbrx.open("one.gguf").metadata) == list(lbrx.open("whole.gguf").metadata)


@pytest.mark.parametrize("out", ["once.gguf", "once"])
def test_a_merge_into_another_format_is_the_merge_converted(folder: Path, out: str) -> None:
    format = None if out.endswith("gguf") else "mlx"
    merge("recipe.yml", out, format=format)
    merge("recipe.yml", "merged")
    convert("merged", "twice.gguf" if format is None else "twice", format=format)
    assert values(out) == values("twice.gguf" if format is None else "twice")
    assert not list(folder.glob(".*"))


def test_a_merge_can_be_quantized_in_one_pass(folder: Path) -> None:
    merge("recipe.yml", "merged.gguf", quantize="q4_k_m")
    merge("recipe.yml", "merged")
    quantize("merged", "two.gguf", "q4_k_m")
    once, twice = lbrx.open("merged.gguf"), lbrx.open("two.gguf")
    assert {name: tensor.type_name for name, tensor in once.items()} == {
        name: tensor.type_name for name, tensor in twice.items()
    }
    for name, tensor in twice.items():
        assert once[name].raw().numpy().tobytes() == tensor.raw().numpy().tobytes(), name
    assert sorted(path.name for path in folder.glob("*.gguf")) == ["merged.gguf", "two.gguf"]


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", "a", "a.gguf", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "bf16" in printed
    assert "a.gguf" in printed
    assert not (folder / "a.gguf").exists()
    assert run(["convert", "a", "a.gguf"]) == 0
    assert capsys.readouterr().out.startswith("a.gguf: 21 tensors, ")
    assert run(["merge", "recipe.yml", "m.gguf", "--quantize", "q8_0", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["files"] == ["m.gguf"]
    assert plan["types"]["q8_0"] == 16


@needs_clang
def test_the_gpu_writes_the_same_bytes(folder: Path) -> None:
    arguments = ["--type", "f16", "--format", "safetensors", "-q"]
    assert run(["convert", "a", "on_cpu", *arguments]) == 0
    with using_metal(emulated_gpu()) as gpu:
        before = transfers(gpu).dispatches
        assert run(["convert", "a", "on_gpu", *arguments, "--device", "metal"]) == 0
        assert transfers(gpu).dispatches > before
    written = [(folder / name / "model.safetensors").read_bytes() for name in ("on_cpu", "on_gpu")]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "a", "a.gguf", "--format", "ggml"], "unknown format 'ggml'; expected one of gguf, mlx"),
        (["convert", "a", "a.gguf", "--type", "float64"], "cannot convert to 'float64'; expected one of f32, f16"),
        (["convert", "a", "a.gguf", "--type", "q4_0"], "cannot convert to 'q4_0'; expected one of f32, f16"),
        (
            ["convert", "a", "out", "--format", "gguf"],
            "out: a GGUF model is a file; expected a name that ends",
        ),
        (["convert", "nowhere", "out"], "nowhere"),
        (
            ["merge", "recipe.yml", "m.gguf", "--quantize", "q4_k_x"],
            "unknown quantization 'q4_k_x'; did you mean 'q4_k_s'?",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_input_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_a_killed_conversion_goes_on(folder: Path) -> None:
    code = (
        "import os, signal\nfrom lbrx.jobs.quantize import quantize\n"
        "def stop(state):\n    if state.done_tensors == 8: os.kill(os.getpid(), signal.SIGKILL)\n"
        "quantize('a', 'q.gguf', 'q6_k', progress=stop)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "q.gguf").exists()
    assert quantize("a", "q.gguf", "q6_k").resumed_tensors >= 7
    quantize("a", "whole.gguf", "q6_k")
    assert (folder / "q.gguf").read_bytes() == (folder / "whole.gguf").read_bytes()


def test_quantized_models_are_merged_as_they_are(folder: Path) -> None:
    for name in "ab":
        quantize(name, f"{name}-q.gguf", "q8_0")
    Path("quantized.yml").write_text(
        RECIPE.replace("model: a", "model: a-q.gguf").replace("model: b", "model: b-q.gguf")
    )
    merge("quantized.yml", "merged")
    for name in "ab":
        convert(f"{name}-q.gguf", f"{name}-decoded", format="safetensors")
    merged, left, right = lbrx.open("merged"), lbrx.open("a-decoded"), lbrx.open("b-decoded")
    assert sorted(merged) == sorted(lbrx.open("a"))
    for name, tensor in merged.items():
        expected = (0.6 * left[name] + 0.4 * right[name]).to("bf16")
        assert tensor.numpy().tobytes() == expected.numpy().tobytes(), name
    assert (folder / "merged/tokenizer.json").exists()
    assert json.loads((folder / "merged/config.json").read_text())["model_type"] == "llama"


def test_a_model_of_mlx_is_merged(folder: Path) -> None:
    quantize("b", "b-mlx", "mlx_8")
    Path("mixed.yml").write_text(RECIPE.replace("model: b", "model: b-mlx"))
    merge("mixed.yml", "merged")
    convert("b-mlx", "b-decoded", format="safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    expected = (0.6 * lbrx.open("a")[name] + 0.4 * lbrx.open("b-decoded")[name]).to("bf16")
    assert lbrx.open("merged")[name].numpy().tobytes() == expected.numpy().tobytes()
    assert (folder / "merged/tokenizer.json").read_bytes() == (folder / "a/tokenizer.json").read_bytes()


@pytest.mark.parametrize("source", ["a", "q.gguf", "mlx"])
def test_a_type_for_gguf_leaves_norms_in_f32_and_is_told(source: str, folder: Path) -> None:
    quantize("a", "q.gguf", "q4_0")
    quantize("a", "mlx", "mlx_4")
    convert(source, "out.gguf", type="f16")
    written = lbrx.open(folder / "out.gguf")
    assert {tensor.type_name for tensor in written.values() if tensor.ndim > 1} == {"f16"}
    assert {tensor.type_name for tensor in written.values() if tensor.ndim < 2} == {"f32"}
    assert written.metadata["general.file_type"] == 1
