"""Models of several files: reading them, and laying them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from safetensors import safe_open

from lbrx.errors import FileError, FormatError, ShapeError, UsageError
from lbrx.files.formats.directory import read_directory, read_file
from lbrx.files.formats.gguf_values import GgufMetadata
from lbrx.files.formats.header import FileLayout, TensorSpec
from lbrx.files.formats.safetensors import lay_out
from lbrx.files.formats.shards import (
    index_json,
    lay_out_gguf,
    lay_out_safetensors,
    parse_shard_name,
    shard_name,
    split_into_shards,
)
from support.layout_writing import random_data, write_layout
from support.malformed_bytes import gguf_file, info, read_gguf

TENSORS = [TensorSpec(f"layer.{index}", "f32", (4, index + 1)) for index in range(6)]


def write_all(directory: Path, layouts: list[FileLayout]) -> dict[str, bytes]:
    data = {name: content for layout in layouts for name, content in random_data(layout).items()}
    for layout in layouts:
        write_layout(directory, layout, data)
    return data


def names_of(directory: Path) -> list[str]:
    return [entry.name for header in read_directory(directory).files for entry in header.entries]


def test_sharded_safetensors_round_trip(tmp_path: Path) -> None:
    layouts = lay_out_safetensors(TENSORS, {"format": "pt"}, max_shard_bytes=100)
    assert [layout.name for layout in layouts] == [f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)]
    data = write_all(tmp_path, layouts)
    (tmp_path / "model.safetensors.index.json").write_bytes(index_json(layouts))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "limit": Infinity}')
    header = read_directory(tmp_path)
    assert header.config == {"model_type": "llama", "limit": float("inf")}
    assert [file.path.name for file in header.files] == [layout.name for layout in layouts]
    assert names_of(tmp_path) == [tensor.name for tensor in TENSORS]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_bytes())
    assert index["metadata"]["total_size"] == sum(map(len, data.values()))
    for name, file_name in index["weight_map"].items():
        with safe_open(tmp_path / file_name, "np") as file:
            assert file.get_tensor(name).tobytes() == data[name]


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    layouts = lay_out_safetensors(TENSORS, {}, max_shard_bytes=10**9)
    assert [layout.name for layout in layouts] == ["model.safetensors"]
    write_all(tmp_path, layouts)
    write_layout(tmp_path, lay_out("adapter.safetensors", [TENSORS[0]], {}), random_data(layouts[0]))
    assert names_of(tmp_path) == [tensor.name for tensor in TENSORS]
    assert read_directory(tmp_path).config is None
    assert read_file(tmp_path / "model.safetensors").entries == read_directory(tmp_path).files[0].entries


def test_without_index_all_files_are_read_by_name(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        write_all(tmp_path, [lay_out(f"{name}.safetensors", [TensorSpec(name, "u8", (3,))], {})])
    (tmp_path / "notes.txt").write_text("not weights")
    assert names_of(tmp_path) == ["a", "b", "c"]


def test_an_index_of_another_name_is_found(tmp_path: Path) -> None:
    layouts = lay_out_safetensors(TENSORS, {}, max_shard_bytes=100, stem="diffusion")
    write_all(tmp_path, layouts)
    (tmp_path / "diffusion.safetensors.index.json").write_bytes(index_json(layouts))
    (tmp_path / "unlisted.safetensors").write_bytes(b"never opened")
    assert names_of(tmp_path) == [tensor.name for tensor in TENSORS]


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    layouts = lay_out_safetensors(TENSORS, {}, max_shard_bytes=10**9)
    write_all(tmp_path / "blobs", layouts)
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "model.safetensors")
    assert len(names_of(tmp_path / "snapshot")) == len(TENSORS)


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    write_all(tmp_path, lay_out_safetensors(TENSORS, {}, max_shard_bytes=10**9))
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"a": 1, "a": 2}')
    assert read_directory(tmp_path).config == {"a": 2}


@pytest.mark.parametrize("opened", ["", "llama-00001-of-00004.gguf"])
def test_split_gguf_round_trip(opened: str, tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "split.count": np.uint16(9), "tokenizer.ggml.tokens": ["a", "b"]}
    layouts = lay_out_gguf(TENSORS, metadata, 100, "llama", alignment=64)
    write_all(tmp_path, layouts)
    (tmp_path / "config.json").write_text("{}")
    header = read_directory(tmp_path / opened)
    assert [file.path.name for file in header.files] == [f"llama-0000{i}-of-00004.gguf" for i in range(1, 5)]
    assert [entry.name for file in header.files for entry in file.entries] == [tensor.name for tensor in TENSORS]
    assert header.config == {}
    for number, file in enumerate(header.files):
        assert isinstance(file.metadata, GgufMetadata)
        split: dict[str, Any] = {"split.no": number, "split.count": 4, "split.tensors.count": 6}
        assert {key: file.metadata[key] for key in split} == split
        assert [file.metadata.type_of(key) for key in split] == ["u16", "u16", "i32"]
        assert ("general.architecture" in file.metadata) == (number == 0)
        assert file.metadata["general.alignment"] == 64


def test_split_gguf_of_the_reference_is_read(tmp_path: Path) -> None:
    writer = reference.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for index in range(5):
        writer.add_tensor(f"t{index}", np.full((2, 2), index, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_directory(tmp_path / "m-00001-of-00003.gguf")
    assert [[entry.name for entry in file.entries] for file in header.files] == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_an_unsplit_gguf_has_no_split_keys(tmp_path: Path) -> None:
    (layout,) = lay_out_gguf(TENSORS, {"split.no": np.uint16(3)}, 10**9, "llama")
    assert layout.name == "llama.gguf"
    assert not read_gguf(write_layout(tmp_path, layout, random_data(layout))).metadata
    assert len(read_file(tmp_path / "llama.gguf").entries) == len(TENSORS)


def test_a_single_shard_may_lack_split_keys(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00001.gguf").write_bytes(gguf_file(infos=(info(),)))
    assert names_of(tmp_path) == ["w"]


def test_mixed_byte_orders_are_rejected(tmp_path: Path) -> None:
    for number, endian in ((1, reference.GGUFEndian.LITTLE), (2, reference.GGUFEndian.BIG)):
        path = tmp_path / f"m-0000{number}-of-00002.gguf"
        writer = reference.GGUFWriter(path, "llama", endianess=endian)
        writer.add_uint16("split.no", number - 1)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
    with pytest.raises(FileError, match="is big-endian, expected little like the first shard"):
        read_directory(tmp_path)


def test_shards_keep_the_order_and_the_limit() -> None:
    shards = split_into_shards(TENSORS, max_shard_bytes=100)
    assert [[tensor.name[-1] for tensor in shard] for shard in shards] == [["0", "1", "2"], ["3"], ["4"], ["5"]]
    assert [len(shard) for shard in split_into_shards(TENSORS, 1)] == [1] * 6
    assert split_into_shards([], 1) == []
    quantized = [TensorSpec(name, "q4_k", (2, 256)) for name in "abc"]
    assert [len(shard) for shard in split_into_shards(quantized, 2 * 288)] == [2, 1]


@pytest.mark.parametrize("lay_out_model", [lay_out_safetensors, lay_out_gguf])
def test_what_cannot_be_sharded(lay_out_model: Any) -> None:
    with pytest.raises(UsageError, match="max_shard_bytes is 0"):
        lay_out_model(TENSORS, {}, 0, "m")
    with pytest.raises(UsageError, match="given twice"):
        lay_out_model([TENSORS[0], TENSORS[1], TENSORS[0]], {}, 16, "m")
    with pytest.raises(ShapeError, match="negative size"):
        lay_out_model([TensorSpec("a", "f32", (-1,))], {}, 16, "m")
    with pytest.raises(UsageError, match="65536 shards, expected at most 65535"):
        lay_out_model([TensorSpec(str(index), "i8", (1,)) for index in range(65536)], {}, 1, "m")


@pytest.mark.parametrize("lay_out_model", [lay_out_safetensors, lay_out_gguf])
def test_no_tensors_make_one_file(lay_out_model: Any) -> None:
    (layout,) = lay_out_model([], {}, 1, "m")
    assert layout.slots == ()


def test_shard_names() -> None:
    assert shard_name("a-b", 12, 345, ".gguf") == "a-b-00012-of-00345.gguf"
    parsed = parse_shard_name("a-b-00012-of-00345.gguf")
    assert parsed is not None
    assert (parsed.stem, parsed.number, parsed.count, parsed.suffix) == ("a-b", 12, 345, ".gguf")
    for name in ("a.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a-1-of-2.gguf", "-00001-of-00002.gguf"):
        assert parse_shard_name(name) is None


@pytest.mark.parametrize(("count", "tensors"), [(2, None), (2, 5), (1, 5)])
def test_counts_of_split_tensors_are_checked(tmp_path: Path, count: int, tensors: int | None) -> None:
    for number in range(count):
        writer = reference.GGUFWriter(tmp_path / f"m-0000{number + 1}-of-0000{count}.gguf", "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        if tensors is not None:
            writer.add_int32("split.tensors.count", tensors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
    with pytest.raises(FormatError, match=f"split.tensors.count is {tensors}, but the shards hold 0 tensors"):
        read_directory(tmp_path)
