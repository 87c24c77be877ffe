"""The file with the tower and projector of a vision-language model. Its content is compared with llama.cpp's in
tests/models/architectures/test_golden_families.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from support.cli_running import lbrx_command
from support.family_goldens import golden


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden("qwen3_vl").write(tmp_path_factory.mktemp("qwen3_vl") / "model")


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_the_command_writes_a_file_that_gguf_reads(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mmproj.gguf"
    result = lbrx_command(capsys, "convert", original, out, "--mmproj", "--type", "f16")
    assert result.code == 0, result.err
    reader = gguf.GGUFReader(out)
    assert reader.get_field("clip.projector_type").contents() == "qwen3vl_merger"
    assert reader.get_field("clip.vision.is_deepstack_layers").contents() == [True, False]
    assert reader.get_field("general.type").contents() == "mmproj"
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types["v.blk.0.attn_qkv.weight"] == "F16"
    assert types["v.blk.0.attn_qkv.bias"] == types["v.patch_embd.weight"] == "F32"
    second = next(tensor.data for tensor in reader.tensors if tensor.name == "v.patch_embd.weight.1")
    frames = golden("qwen3_vl").arrays()["model.visual.patch_embed.proj.weight"]
    np.testing.assert_array_equal(second.reshape(frames[:, :, 1].shape), frames[:, :, 1])


def test_a_language_model_has_no_projector(tmp_path: Path) -> None:
    folder = golden("llama").write(tmp_path / "model")
    with pytest.raises(LbrxError, match=r"model_type of config.json is 'llama', which has no projector"):
        lbrx.convert(folder, tmp_path / "out.gguf", mmproj=True)


def test_another_format_is_an_error(original: Path, tmp_path: Path) -> None:
    with pytest.raises(LbrxError, match=r"a GGUF model is a file; expected a name that ends in .gguf"):
        lbrx.convert(original, tmp_path / "out", mmproj=True)


def test_pixel_values_are_needed(model: Path, tmp_path: Path) -> None:
    (model / "preprocessor_config.json").unlink()
    with pytest.raises(LbrxError, match=r"preprocessor_config.json: 'image_mean' is None; expected a list of numbers"):
        lbrx.convert(model, tmp_path / "out.gguf", mmproj=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deepstack_visual_indexes": [7]}, "'deepstack_visual_indexes' is \\[7\\]; expected numbers of the 2 blocks"),
        ({"deepstack_visual_indexes": "all"}, "'deepstack_visual_indexes' is 'all'"),
        ({"deepstack_visual_indexes": []}, "'deepstack_visual_indexes' has 0 numbers, but there is a tensor"),
        ({"depth": 0}, "is 0; expected a whole number above zero"),
        ({"patch_size": "four"}, "'vision_patch_size' is 'four'"),
    ],
)
def test_wrong_configs_are_one_error(model: Path, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    change_json(model / "config.json", lambda config: config["vision_config"].update(values))
    with pytest.raises(LbrxError, match=message):
        lbrx.convert(model, tmp_path / "out.gguf", mmproj=True)


def test_missing_and_unknown_tensors_are_named(original: Path, model: Path, tmp_path: Path) -> None:
    tensors = dict(lbrx.open(original))
    del tensors["model.visual.pos_embed.weight"]
    tensors["model.visual.adapter.weight"] = lbrx.full((2, 2), 1.0, "f32")
    lbrx.save(model / "model.safetensors", tensors)
    with pytest.raises(LbrxError, match=r"'model.visual.adapter.weight' is not known .* no tensors 'visual.pos_embed'"):
        lbrx.convert(model, tmp_path / "out.gguf", mmproj=True)
