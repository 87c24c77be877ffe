"""Reading models of every format into one record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.files.checkpoint.opening import contents_format
from lbrx.files.formats.gguf_values import GgufMetadata, Typed
from lbrx.jobs.convert.reading import read_contents
from support.tiny_models import write_model


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    directory, arrays = write_model(tmp_path / "model", "qwen3")
    for name in ("tokenizer.json", "generation_config.json", "README.md"):
        (directory / name).write_text("{}")
    contents = read_contents(directory)
    assert contents.format == "safetensors"
    assert contents.config == json.loads((directory / "config.json").read_text())
    assert [file.name for file in contents.side_files] == ["generation_config.json", "tokenizer.json"]
    assert contents.side_files[1].read() == b"{}"
    assert contents.metadata == {"format": "pt"}
    assert contents.directory == directory
    assert [header.path.name for header in contents.sources] == ["model.safetensors"]
    assert {each.name: each.shape for each in contents.tensors} == {n: a.shape for n, a in arrays.items()}
    assert {each.type_name for each in contents.tensors} == {"bf16"}


def test_a_single_file_has_no_config_and_no_directory(tmp_path: Path) -> None:
    directory, _ = write_model(tmp_path, "llama")
    contents = read_contents(directory / "model.safetensors")
    assert (contents.format, contents.config, contents.directory, contents.side_files) == (
        "safetensors",
        None,
        None,
        (),
    )


def test_integer_codings_are_tensors_again(tmp_path: Path) -> None:
    values = lbrx.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64))
    lbrx.save(tmp_path / "a.safetensors", {"w": values.quantize("int4")})
    contents = read_contents(tmp_path / "a.safetensors")
    assert [(each.name, each.type_name, each.shape) for each in contents.tensors] == [("w", "int4", (4, 64))]
    assert contents.metadata == {}


def test_gguf_key_values_keep_their_types(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "a.count": Typed(7, "u16"), "a.numbers": Typed([1, 2], "array[i64]")}
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.full((2, 32), 1.0, "f32").quantize("q8_0")}, metadata)
    contents = read_contents(tmp_path / "a.gguf")
    assert contents.format == "gguf"
    assert isinstance(contents.metadata, GgufMetadata)
    assert (contents.metadata["a.count"], contents.metadata.type_of("a.count")) == (7, "u16")
    assert contents.metadata.type_of("a.numbers") == "array[i64]"
    assert contents.by_name["w"].type_name == "q8_0"


@pytest.mark.parametrize(
    ("config", "header", "expected"),
    [
        ({"model_type": "llama"}, {"format": "pt"}, "safetensors"),
        ({"model_type": "llama"}, {"format": "mlx"}, "mlx"),
        ({"model_type": "llama", "quantization": {"bits": 4, "group_size": 64}}, {}, "mlx"),
        ({"model_type": "llama", "quantization": None}, {}, "safetensors"),
    ],
)
def test_directories_of_mlx_are_told_by_what_they_say(
    tmp_path: Path, config: dict[str, object], header: dict[str, str], expected: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    lbrx.save(tmp_path / "model.safetensors", {"w": lbrx.full((2, 2), 1.0, "f32")}, header)
    assert contents_format(lbrx.open(tmp_path)) == expected
