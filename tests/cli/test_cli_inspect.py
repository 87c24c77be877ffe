"""`lbrx inspect` on files that the libraries of the formats have written, and on files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.demo.models import demo_models
from support.cli_running import lbrx_command

Capture = pytest.CaptureFixture[str]


def safetensors_model(path: Path) -> Path:
    """Three tensors of two types, written by the safetensors library."""
    tensors = {
        "model.embed_tokens.weight": np.zeros((300, 10), ml_dtypes.bfloat16),
        "model.layers.0.mlp.up_proj.weight": np.ones((10, 20), ml_dtypes.bfloat16),
        "model.norm.weight": np.ones(10, np.float32),
    }
    save_file(tensors, path, {"format": "pt"})
    return path


def gguf_model(path: Path) -> Path:
    """A GGUF file with a vocabulary, written by the gguf library."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_token_list([f"token {number}" for number in range(2000)])
    writer.add_token_scores([float(number) for number in range(1999)] + [float("-inf")])
    writer.add_chat_template("{% for message in messages %}\n\x1b[31m" + "x" * 3000)
    writer.add_array("general.tags", ["chat", "tiny"])
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), np.float16))
    writer.add_tensor("output.weight", np.zeros((3, 288), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_safetensors_file(tmp_path: Path, capsys: Capture) -> None:
    path = safetensors_model(tmp_path / "model.safetensors")
    outcome = lbrx_command(capsys, "inspect", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert lines_of(outcome.out) == [
        str(path),
        "format SafeTensors file",
        f"files 1 file, {lbrx.memory.format_bytes(path.stat().st_size)}",
        "parameters 3.21 K in 3 tensors, 6.3 KiB",
        "",
        "type tensors elements bytes",
        "bf16 2 3.20 K 6.3 KiB",
        "f32 1 10 40 B",
        "",
        "metadata, 1 entry",
        "format pt",
    ]


def test_the_tensors_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    outcome = lbrx_command(capsys, "inspect", "--tensors", safetensors_model(tmp_path / "model.safetensors"))
    listed = lines_of(outcome.out)
    start = listed.index("type shape bytes name")
    assert sorted(listed[start + 1 :]) == [
        "bf16 10 x 20 400 B model.layers.0.mlp.up_proj.weight",
        "bf16 300 x 10 5.9 KiB model.embed_tokens.weight",
        "f32 10 40 B model.norm.weight",
    ]


@pytest.mark.parametrize("pattern", ["*.up_proj.*", "up_proj", "model.layers.?.mlp.up_proj.weight"])
def test_a_filter_lists_and_counts_what_it_matches(pattern: str, tmp_path: Path, capsys: Capture) -> None:
    path = safetensors_model(tmp_path / "model.safetensors")
    listed = lines_of(lbrx_command(capsys, "inspect", path, "--filter", pattern).out)
    assert "parameters 200 in 1 of 3 tensors, 400 B" in listed
    assert listed[-2:] == ["type shape bytes name", "bf16 10 x 20 400 B model.layers.0.mlp.up_proj.weight"]


def test_a_filter_that_matches_nothing_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros(2, np.float32)}, path)
    outcome = lbrx_command(capsys, "inspect", path, "--filter", "layers.*")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"error: {path}: none of its 1 tensors matches 'layers.*', such as 'w'\n"


def test_a_gguf_file(tmp_path: Path, capsys: Capture) -> None:
    outcome = lbrx_command(capsys, "inspect", gguf_model(tmp_path / "tiny.gguf"))
    listed = lines_of(outcome.out)
    assert outcome.code == 0
    assert "format GGUF file" in listed
    assert "architecture llama, 2 layers" in listed
    assert "q4_k 1 1.54 K 864 B" in listed
    assert "f16 1 512 1 KiB" in listed
    assert "tokenizer.ggml.tokens 2,000 strings" in listed
    assert "tokenizer.ggml.scores 2,000 numbers" in listed
    assert "general.tags [chat, tiny]" in listed
    template = next(line for line in listed if line.startswith("tokenizer.chat_template"))
    assert template.startswith(r"tokenizer.chat_template {% for message in messages %}\n\x1b[31mxxx")
    assert template.endswith("x... (3,035 characters)")
    assert "\x1b" not in outcome.out


def test_weights_of_mlx_are_counted_one_by_one(tmp_path: Path, capsys: Capture) -> None:
    base = demo_models().base
    lbrx.quantize(base, tmp_path / "mlx", "mlx_4")
    printed = " ".join(lbrx_command(capsys, "inspect", tmp_path / "mlx").out.split())
    assert "format MLX directory, 4 bits in groups of 64" in printed
    assert lbrx.inspect(tmp_path / "mlx").parameters == lbrx.inspect(base).parameters


def test_json_is_complete(tmp_path: Path, capsys: Capture) -> None:
    path = gguf_model(tmp_path / "tiny.gguf")
    described: dict[str, Any] = json.loads(
        lbrx_command(capsys, "inspect", "--json", path).out, parse_constant=pytest.fail
    )
    metadata = described.pop("metadata")
    assert metadata["tokenizer.ggml.tokens"] == [f"token {number}" for number in range(2000)]
    assert metadata["tokenizer.ggml.scores"][-2:] == [1998.0, "-inf"]
    assert len(metadata["tokenizer.chat_template"]) == 3035
    tensors = {tensor.pop("name"): tensor for tensor in described.pop("tensors")}
    reader = gguf.GGUFReader(path)
    assert {tensor.name: tensor.data_offset for tensor in reader.tensors} == {
        name: tensor.pop("offset") for name, tensor in tensors.items()
    }
    assert tensors == {
        "token_embd.weight": {"type": "f16", "shape": [8, 64], "file": "tiny.gguf", "bytes": 1024},
        "output.weight": {"type": "q4_k", "shape": [3, 512], "file": "tiny.gguf", "bytes": 864},
    }
    file_bytes = path.stat().st_size
    assert described == {
        "path": str(path),
        "format": "gguf",
        "files": [{"name": "tiny.gguf", "bytes": file_bytes, "byte_order": "little", "tensors": 2}],
        "architecture": "llama",
        "layers": 2,
        "quantization": None,
        "parameters": 512 + 1536,
        "bytes": 1024 + 864,
        "types": {
            "f16": {"tensors": 1, "elements": 512, "bytes": 1024},
            "q4_k": {"tensors": 1, "elements": 1536, "bytes": 864},
        },
        "config": None,
    }


def huggingface_directory(path: Path, config: dict[str, Any]) -> Path:
    """Two shards and their index, written by the safetensors library."""
    path.mkdir()
    names = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    for name, file_name in names.items():
        save_file({name: np.zeros((4, 4), np.float32)}, path / file_name, {"format": "pt"})
    index = {"metadata": {"total_size": 128}, "weight_map": names}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_sharded_directory(tmp_path: Path, capsys: Capture) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    listed = lines_of(
        lbrx_command(capsys, "inspect", huggingface_directory(tmp_path / "model", config), "--tensors").out
    )
    assert "format Hugging Face directory (SafeTensors)" in listed
    assert "architecture LlamaForCausalLM (llama), 1 layer" in listed
    assert "parameters 32 in 2 tensors, 128 B" in listed
    assert listed[-2:] == ["f32 4 x 4 64 B a.weight", "f32 4 x 4 64 B b.weight"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "n_layer": 12}, ("GPT2LMHeadModel", 12)),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 34}}, ("gemma3", 34)),
        ({"architectures": "Llama", "model_type": 3, "num_hidden_layers": "many"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_what_a_config_tells(
    config: dict[str, Any], expected: tuple[Any, Any], tmp_path: Path, capsys: Capture
) -> None:
    path = huggingface_directory(tmp_path / "model", config)
    described = json.loads(lbrx_command(capsys, "inspect", "--json", path).out)
    assert (described["architecture"], described["layers"]) == expected
    assert described["config"] == config


def test_a_split_gguf_model(tmp_path: Path, capsys: Capture) -> None:
    tensors = {f"blk.{number}.weight": lbrx.full((8, 32), number, "f32") for number in range(3)}
    lbrx.save(tmp_path / "tiny", tensors, {"general.architecture": "llama"}, format="gguf", max_shard_bytes=1024)
    for path in (tmp_path, tmp_path / "tiny-00001-of-00003.gguf"):
        listed = lines_of(lbrx_command(capsys, "inspect", path).out)
        assert "format GGUF model in shards" in listed
        assert "architecture llama" in listed
        assert listed[2].startswith("files 3 files, ")
        assert "parameters 768 in 3 tensors, 3 KiB" in listed


def test_names_from_a_file_cannot_control_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"evil\x1b[2J\nname [red]": np.zeros(1, np.float32)}, path, {"[bold]key\x07": "[/]value"})
    outcome = lbrx_command(capsys, "inspect", "--tensors", path)
    listed = lines_of(outcome.out)
    assert listed[-1] == r"f32 1 4 B evil\x1b[2J\nname [red]"
    assert r"[bold]key\x07 [/]value" in listed


def test_of_very_many_metadata_entries_some_are_shown(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros(1, np.float32)}, path, {f"key{number:04}": "x" for number in range(250)})
    listed = lines_of(lbrx_command(capsys, "inspect", path).out)
    assert "metadata, 250 entries" in listed
    assert listed[-1] == "... 150 more (use --json)"
    assert sum(line.startswith("key") for line in listed) == 100


def test_a_file_without_tensors(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "empty.safetensors"
    save_file({}, path)
    outcome = lbrx_command(capsys, "inspect", "--tensors", path)
    assert outcome.code == 0
    assert "parameters 0 in 0 tensors, 0 B" in lines_of(outcome.out)


LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS_POINTER, "is a Git LFS pointer, not the file itself; run git lfs pull"),
        (HTML, "is an HTML page, probably from a failed download; expected SafeTensors or GGUF"),
        (b"", "is empty, expected a SafeTensors or GGUF file"),
        (b'\x10\x00\x00\x00\x00\x00\x00\x00{"a"', "header ends at byte 24, but the file has 12"),
    ],
    ids=["lfs", "html", "empty", "header cut off"],
)
def test_bad_input(content: bytes, message: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    outcome = lbrx_command(capsys, "inspect", path)
    assert (outcome.code, outcome.out, outcome.err) == (1, "", f"error: {path}: {message}\n")


def test_a_truncated_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": np.zeros(100, np.float32)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    outcome = lbrx_command(capsys, "inspect", path)
    assert (outcome.code, outcome.out) == (1, "")
    expected = f"error: {path}: tensor 'w' ends at byte {len(whole)}, but the file has {len(whole) - 8}\n"
    assert outcome.err == expected


def test_a_missing_path_and_a_directory_without_a_model(tmp_path: Path, capsys: Capture) -> None:
    missing = lbrx_command(capsys, "inspect", tmp_path / "gone")
    assert missing.code == 1
    assert missing.err == f"error: {tmp_path / 'gone'}: cannot be opened: No such file or directory\n"
    empty = lbrx_command(capsys, "inspect", tmp_path)
    assert (empty.code, empty.err) == (1, f"error: {tmp_path}: holds no .safetensors or .gguf files\n")
