"""lbrx.verify: what is sound passes, and everything that is broken is found and named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
import support
from lbrx.files.output.checksum import Checksum
from lbrx.files.output.run import checksums_json
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.verify import VerifyReport, verify
from lbrx.jobs.verify.verify import CHECKS
from support.verified_models import CONFIG, HIDDEN, TOKENS, VOCABULARY, llama_arrays, write_llama


def write_checksums(directory: Path) -> None:
    sums = {}
    for name, tensor in lbrx.open(directory).items():
        checksum = Checksum(tensor.nbytes)
        checksum.add(0, tensor.raw().numpy())
        sums[name] = checksum.hexdigest()
    (directory / "lbrx.checksums.json").write_bytes(checksums_json(sums))


def write_gguf(path: Path, source: Path, **changes: lbrx.Tensor) -> Path:
    contents = hf_to_gguf(read_contents(source), tokenizer_metadata=TOKENS)
    tensors = {each.name: each.make() for each in contents.tensors} | changes
    lbrx.save(path, tensors, contents.metadata)
    return path


def texts(report: VerifyReport) -> list[str]:
    return [f"{finding.severity}: {finding.place}: {finding.text}" for finding in report.findings]


def errors(path: Path, **options: Any) -> list[str]:
    return [f"{finding.place}: {finding.text}" for finding in verify(path, **options).errors]


def test_a_sound_model(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    write_checksums(directory)
    report = verify(directory)
    assert texts(report) == []
    assert (report.format, report.tensors) == ("huggingface", 21)
    done = [check.name for check in report.checks if check.is_done]
    assert done == [name for name in CHECKS if name != "generation settings"]
    assert [check.reason for check in report.checks if not check.is_done] == ["has no generation_config.json"]
    assert report.as_json()["is_good"] is True


def test_progress_counts_all_tensors(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(write_llama(tmp_path / "a"), progress=lambda done, total, _: seen.append((done, total)))
    assert seen == [(number, 21) for number in range(1, 22)]


def test_nothing_there(tmp_path: Path) -> None:
    report = verify(tmp_path / "no")
    assert [finding.text for finding in report.errors] == ["cannot be opened: No such file or directory"]
    assert report.format is None


def test_a_cut_file(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    content = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(content[:-8])
    (found,) = errors(directory)
    assert "but the file has" in found


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    arrays = llama_arrays()
    arrays["model.norm.weight"][3] = np.nan
    arrays["lm_head.weight"][1, 5:7] = -np.inf
    directory = write_llama(tmp_path / "a", arrays)
    assert sorted(errors(directory)) == [
        "lm_head.weight: has 0 NaN and 2 infinite values of 2,048",
        "model.norm.weight: has 1 NaN and 0 infinite values of 64",
    ]
    assert errors(directory, quick=True) == []


@pytest.mark.parametrize("type_name", ["q4_0", "q8_0", "q5_1"])
def test_broken_scales_of_blocks(type_name: str, tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    blocks = lbrx.tensor(llama_arrays()["lm_head.weight"]).quantize(type_name).realize()
    path = write_gguf(tmp_path / "a.gguf", directory, **{"output.weight": blocks})
    assert errors(path) == []
    entry = next(entry for entry in lbrx.open(path).entries if entry.name == "output.weight")
    with path.open("r+b") as file:
        file.seek(entry.offset)
        file.write(np.array([np.nan], np.float16).tobytes())
    expected = f"output.weight: has 32 NaN and 0 infinite values of 2,048, from broken scales of {type_name} blocks"
    assert errors(path) == [expected]


def test_big_endian_values(tmp_path: Path) -> None:
    from gguf import GGUFEndian, GGUFWriter

    writer = GGUFWriter(tmp_path / "a.gguf", "test", endianess=GGUFEndian.BIG)
    writer.add_tensor("w", np.array([1.0, np.inf, 2.0], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert errors(tmp_path / "a.gguf") == ["w: has 0 NaN and 1 infinite values of 3"]


def test_a_pytorch_file_with_strides() -> None:
    golden = support.GOLDEN / "pytorch" / "views.pt"
    report = verify(golden)
    assert report.is_good
    assert report.tensors == 5


# -- checksums --------------------------------------------------------------------------------------------------------


def test_changed_bytes(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    write_checksums(directory)
    entry = next(entry for entry in lbrx.open(directory).entries if entry.name == "model.norm.weight")
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\1")
    (found,) = errors(directory)
    assert found.startswith("model.norm.weight: has the checksum ")
    assert found.endswith(": its bytes changed")


def test_checksums_of_other_tensors(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    write_checksums(directory)
    place = directory / "lbrx.checksums.json"
    content = json.loads(place.read_text())
    content["tensors"]["other"] = content["tensors"].pop("lm_head.weight")
    place.write_text(json.dumps(content))
    assert texts(verify(directory)) == [
        "warning: lm_head.weight: has no checksum in lbrx.checksums.json",
        "error: other: has a checksum in lbrx.checksums.json, but is not there",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "error: .*: lbrx.checksums.json: is not valid JSON"),
        ('{"algorithm": "md5"}', "warning: lbrx.checksums.json: is made by 'md5'"),
        (checksums_json({}).decode().replace("{}", "[]"), "error: lbrx.checksums.json: has no object 'tensors'"),
    ],
)
def test_broken_checksums(content: str, expected: str, tmp_path: Path) -> None:
    import re

    directory = write_llama(tmp_path / "a")
    (directory / "lbrx.checksums.json").write_text(content)
    assert re.match(expected.replace(".*: ", ".*"), texts(verify(directory))[0])


def test_a_merge_can_be_verified(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"merge_method: linear\nmodels:\n  - {{model: {directory}, parameters: {{weight: 1}}}}\n")
    lbrx.merge(recipe, tmp_path / "out")
    assert texts(verify(tmp_path / "out")) == []


# -- index ------------------------------------------------------------------------------------------------------------


def sharded(tmp_path: Path) -> Path:
    directory = write_llama(tmp_path / "a")
    arrays = {name: lbrx.tensor(values) for name, values in llama_arrays().items()}
    lbrx.save(tmp_path / "shards", arrays, {"format": "pt"}, max_shard_bytes=60_000)
    (directory / "model.safetensors").unlink()
    for file in (tmp_path / "shards").iterdir():
        file.rename(directory / file.name)
    return directory


def test_shards_with_their_index(tmp_path: Path) -> None:
    assert [text for text in texts(verify(sharded(tmp_path))) if not text.startswith("note")] == []


def test_index_that_is_wrong(tmp_path: Path) -> None:
    directory = sharded(tmp_path)
    place = directory / "model.safetensors.index.json"
    index = json.loads(place.read_text())
    del index["weight_map"]["model.norm.weight"]
    index["metadata"]["total_size"] = 7
    place.write_text(json.dumps(index))
    lbrx.save(directory / "other.safetensors", {"x": lbrx.full((2,), 1.0, "f32")})
    found = [text for text in texts(verify(directory, quick=True)) if not text.startswith("note")]
    size = sum(values.nbytes for values in llama_arrays().values())
    assert found == [
        "warning: other.safetensors: is not a part of the model: no index names it",
        "error: model.norm.weight: is in a shard, but not in model.safetensors.index.json",
        f"warning: model.safetensors.index.json: says that the tensors have 7 bytes, but they have {size}",
    ]


def test_missing_shard(tmp_path: Path) -> None:
    directory = sharded(tmp_path)
    next(directory.glob("model-00002*")).unlink()
    (found,) = errors(directory)
    assert "which is missing" in found


# -- architecture and vocabulary --------------------------------------------------------------------------------------


def test_names_and_shapes_of_a_directory(tmp_path: Path) -> None:
    arrays = llama_arrays()
    del arrays["model.layers.1.mlp.up_proj.weight"]
    arrays["model.norm.weight"] = np.ones(8, np.float32)
    arrays["model.layers.2.input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    arrays["model.surplus"] = np.ones(3, np.float32)
    directory = write_llama(tmp_path / "a", arrays)
    assert texts(verify(directory, quick=True)) == [
        f"error: {directory}: tensor 'model.layers.1.mlp.up_proj.weight' is missing; the architecture 'llama' needs it",
        f"error: {directory}: tensor 'model.layers.2.input_layernorm.weight' is in layer 2, "
        "but config.json says that there are 2 layers",
        f"error: {directory}: tensor 'model.norm.weight' has shape (8,), "
        "expected (64,) from config.json's (hidden_size)",
        "warning: model.surplus: is not a tensor that the architecture 'llama' knows",
    ]


def test_config_that_makes_no_sense(tmp_path: Path) -> None:
    found = errors(write_llama(tmp_path / "a", num_hidden_layers="two"), quick=True)
    assert len(found) == 1
    assert "num_hidden_layers" in found[0]


def test_unknown_familys_are_noted(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a", model_type="novel", architectures=["Novel"])
    assert "model_type is 'novel': names and shapes are not checked" in " ".join(texts(verify(directory, quick=True)))


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "a")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["new"] = 40
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert errors(directory, quick=True) == [
        "tokenizer: has ids up to 40, but 'model.embed_tokens.weight' has 32 rows",
        "tokenizer: has ids up to 40, but 'lm_head.weight' has 32 rows",
    ]
    (directory / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in errors(directory, quick=True)[0]


def test_gguf_against_its_key_values(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    assert [text for text in texts(verify(write_gguf(tmp_path / "a.gguf", source))) if "note" not in text] == []
    contents = hf_to_gguf(read_contents(source), tokenizer_metadata=TOKENS)
    tensors = {each.name: each.make() for each in contents.tensors if each.name != "blk.1.ffn_up.weight"}
    tensors["blk.0.attn_k.weight"] = lbrx.full((16, HIDDEN), 1.0, "f32")
    tensors["surplus"] = lbrx.full((4,), 1.0, "f32")
    lbrx.save(tmp_path / "b.gguf", tensors, contents.metadata)
    assert [text for text in texts(verify(tmp_path / "b.gguf", quick=True)) if "note" not in text] == [
        "error: blk.0.attn_k.weight: has shape (16, 64), expected (32, 64) from the file's key-values",
        f"error: {tmp_path}/b.gguf: tensor 'blk.1.ffn_up.weight' is missing; the architecture 'llama' needs it",
        "warning: surplus: is not a tensor that the architecture 'llama' knows",
    ]


def test_gguf_vocabulary(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    rows = lbrx.full((VOCABULARY + 1, HIDDEN), 1.0, "f32")
    path = write_gguf(tmp_path / "a.gguf", source, **{"token_embd.weight": rows, "output.weight": rows})
    assert errors(path, quick=True) == ["tokenizer: has 32 tokens, but 'token_embd.weight' has 33 rows"]


def test_gguf_without_what_it_needs(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.full((4,), 1.0, "f32")}, {"general.architecture": "llama"})
    assert "has no 'llama.block_count'" in errors(tmp_path / "a.gguf", quick=True)[0]
    lbrx.save(tmp_path / "b.gguf", {"w": lbrx.full((4,), 1.0, "f32")}, {"general.architecture": "novel"})
    assert "names and shapes are not checked" in texts(verify(tmp_path / "b.gguf", quick=True))[0]


def test_mlx_is_checked_as_if_decoded(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "a")
    contents = read_contents(source)
    coded = [
        each.mapped(lambda values: values.quantize("q8_0").realize(), type_name="q8_0") if len(each.shape) > 1 else each
        for each in contents.tensors
    ]
    made = hf_to_mlx(replace(contents, tensors=tuple(coded)))
    directory = write_llama(tmp_path / "mlx")
    lbrx.save(directory / "model.safetensors", {each.name: each.make() for each in made.tensors}, made.metadata)
    (directory / "config.json").write_text(json.dumps(made.config))
    assert errors(directory) == []
    (directory / "config.json").write_text(json.dumps({**CONFIG, "quantization": {"bits": 4, "group_size": 32}}))
    assert "expected (32, 4) for 4 bits" in errors(directory, quick=True)[0]
