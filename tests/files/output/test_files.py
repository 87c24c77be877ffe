"""Opening and saving whole files, with the real safetensors and gguf libraries on the other side."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors import deserialize, safe_open
from safetensors.numpy import save_file

import lbrx
from lbrx.errors import LbrxError
from lbrx.tensors.dtype import DTYPES

STORED = [row.name for row in DTYPES.values() if not row.is_packed]
IN_GGUF = [row.name for row in DTYPES.values() if row.gguf is not None]


def values(dtype_name: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count) % 7 - 2).astype(np.int64).astype(DTYPES[dtype_name].numpy).reshape(shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype_name", STORED)
def test_safetensors_reads_what_lbrx_saves(tmp_path: Path, dtype_name: str) -> None:
    path = tmp_path / "a.safetensors"
    array = values(dtype_name)
    lbrx.save(path, {"w": lbrx.tensor(array), "none": lbrx.tensor(values(dtype_name, (0, 4)))}, {"format": "pt"})
    loaded = dict(deserialize(path.read_bytes()))
    assert loaded["w"]["dtype"] == DTYPES[dtype_name].safetensors
    assert loaded["w"]["shape"] == [3, 5]
    assert bytes(loaded["w"]["data"]) == array.tobytes()
    assert loaded["none"]["shape"] == [0, 4]
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype_name", STORED)
def test_lbrx_opens_what_safetensors_saves(tmp_path: Path, dtype_name: str) -> None:
    path = tmp_path / "a.safetensors"
    array = values(dtype_name)
    save_file({"w": array, "odd": np.zeros(3, np.uint8)}, path, metadata={"k": "v"})
    model = lbrx.open(path)
    assert set(model) == {"w", "odd"}
    assert same_bits(model["w"].numpy(), array)
    assert dict(model.metadata) == {"k": "v"}
    assert not model["w"].numpy().flags.writeable


@pytest.mark.parametrize("dtype_name", IN_GGUF)
def test_gguf_reads_what_lbrx_saves(tmp_path: Path, dtype_name: str) -> None:
    path = tmp_path / "a.gguf"
    array = values(dtype_name)
    lbrx.save(path, {"w": lbrx.tensor(array)}, {"general.architecture": "llama", "n": 3, "list": [1, 2], "s": ["a"]})
    reader = gguf.GGUFReader(path)
    (tensor,) = reader.tensors
    assert tensor.name == "w"
    assert tensor.tensor_type.value == DTYPES[dtype_name].gguf
    assert tensor.data.tobytes() == array.tobytes()
    assert reader.fields["general.architecture"].contents() == "llama"
    assert reader.fields["list"].contents() == [1, 2]


@pytest.mark.parametrize("endianess", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_lbrx_opens_what_gguf_saves(tmp_path: Path, endianess: gguf.GGUFEndian) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    arrays = {"f": values("f32", (4, 3)), "h": values("f16", (2, 2)), "i": values("i32"), "d": values("f64")}
    for name, array in arrays.items():
        writer.add_tensor(name, array.copy())
    writer.add_uint32("llama.block_count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = lbrx.open(path)
    assert model.metadata["llama.block_count"] == 2
    for name, array in arrays.items():
        assert np.array_equal(model[name].numpy(), array)
        assert float(model[name].sum()) == float(array.astype(np.float64).sum())
        assert np.array_equal((model[name][1:, ::-1] + 1).numpy(), array[1:, ::-1] + array.dtype.type(1))


def test_quantized_blocks_are_carried_as_they_are(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    blocks = np.random.default_rng(0).integers(0, 255, (4, 2 * 18), dtype=np.uint8)
    writer = gguf.GGUFWriter(first, "llama")
    writer.add_tensor("w", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    w = lbrx.open(first)["w"]
    assert (w.type_name, w.shape, w.nbytes) == ("q4_0", (4, 64), blocks.size)
    assert w.quantization is not None
    assert (w.quantization.scheme, w.quantization.bits, w.quantization.group_size) == ("q4_0", 4.5, 32)
    lbrx.save(second, {"w": w}, lbrx.open(first).metadata)
    assert lbrx.open(second)["w"].raw().numpy().tobytes() == blocks.tobytes()


def test_packed_integers_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    codes = np.random.default_rng(1).integers(-8, 8, (7, 9)).astype(np.int8)
    fours = lbrx.tensor(codes).to("i4")
    twos = lbrx.tensor(codes % 4 - 2).to("i2")
    lbrx.save(path, {"fours": fours, "twos": twos})
    model = lbrx.open(path)
    assert model["fours"].nbytes == 32
    assert np.array_equal(model["fours"].to("i8").numpy(), codes)
    assert np.array_equal(model["twos"].to("i8").numpy(), codes % 4 - 2)
    assert np.array_equal((model["fours"][2:5, 1:] * 3).numpy(), codes[2:5, 1:] * 3)


@pytest.mark.filterwarnings("ignore:.*NaN")
def test_nan_payloads_survive_a_plain_copy(tmp_path: Path) -> None:
    bits = np.array([0x7F81, 0xFFC1, 0x7FFF, 0x0001], np.uint16)
    array = bits.view(ml_dtypes.bfloat16)
    lbrx.save(tmp_path / "a.safetensors", {"w": lbrx.tensor(array)})
    lbrx.save(tmp_path / "b.safetensors", {"w": lbrx.open(tmp_path / "a.safetensors")["w"]})
    assert lbrx.open(tmp_path / "b.safetensors")["w"].numpy().view(np.uint16).tolist() == bits.tolist()


def test_values_that_are_not_finite_are_a_warning_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"good": lbrx.tensor([1.0]), "w": lbrx.tensor([1.0, np.nan, -np.inf]), "v": lbrx.tensor([np.inf])}
    message = r"a\.safetensors: tensor 'w': 1 NaN and 1 infinite values in the result; tensors with such values: 2"
    with pytest.warns(RuntimeWarning, match=message):
        lbrx.save(path, tensors, threads=1)
    assert np.isnan(lbrx.open(path)["w"].numpy()[1])
    before = path.read_bytes()
    with pytest.raises(LbrxError, match="tensor 'w': 1 NaN and 1 infinite values in the result"):
        lbrx.save(path, tensors, strict=True, threads=1)
    assert path.read_bytes() == before


def test_the_bytes_do_not_depend_on_threads_and_memory(tmp_path: Path) -> None:
    tensors = {f"t{n}": lbrx.normal((700, 1000), n).to("bf16") for n in range(3)}
    for name, threads, memory in (("a", 1, None), ("b", 4, "4MB")):
        lbrx.save(tmp_path / f"{name}.safetensors", tensors, threads=threads, memory=memory)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["none.safetensors", "none.gguf", "none"])
def test_no_tensors_at_all(tmp_path: Path, name: str) -> None:
    lbrx.save(tmp_path / name, {}, max_shard_bytes=None if "." in name else 1000)
    assert list(lbrx.open(tmp_path / name)) == []


def test_shards_have_checksums(tmp_path: Path) -> None:
    target = tmp_path / "model"
    lbrx.save(target, {f"t{n}": lbrx.full((100,), n, "f32") for n in range(10)}, max_shard_bytes=1000)
    assert lbrx.verify(target).is_good
    with (target / "model-00002-of-00005.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"?")
    assert [finding.place for finding in lbrx.verify(target).errors] == ["t3"]


def test_shards_and_their_index(tmp_path: Path) -> None:
    target = tmp_path / "model"
    tensors = {f"t{n}": lbrx.tensor(np.full((100,), n, np.float32)) for n in range(10)}
    seen: list[lbrx.Progress] = []
    lbrx.save(target, tensors, max_shard_bytes=1000, progress=seen.append)
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4000
    assert sorted(index["weight_map"]) == sorted(tensors)
    assert len(set(index["weight_map"].values())) == 5
    model = lbrx.open(target)
    assert [float(model[f"t{n}"].mean()) for n in range(10)] == list(range(10))
    assert [progress.done_bytes for progress in seen] == [400 * n for n in range(1, 11)]
    with pytest.raises(lbrx.FileError, match="exists; expected a new or empty directory"):
        lbrx.save(target, tensors, max_shard_bytes=1000)


def test_gguf_shards(tmp_path: Path) -> None:
    tensors = {f"t{n}": lbrx.tensor(np.full((100,), n, np.float32)) for n in range(4)}
    lbrx.save(tmp_path / "m.gguf", tensors, {"general.architecture": "llama"}, max_shard_bytes=900)
    first = tmp_path / "m-00001-of-00002.gguf"
    model = lbrx.open(first)
    assert list(model) == list(tensors)
    assert model.metadata["general.architecture"] == "llama"
    assert float(model["t3"].sum()) == 300


def test_a_missing_tensor_is_named_with_its_neighbour(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    lbrx.save(path, {"lm_head.weight": lbrx.tensor(np.zeros(1, np.float32))})
    message = r"a\.safetensors: has no tensor 'lm_head'; did you mean 'lm_head\.weight'\?"
    with pytest.raises(lbrx.TensorNotFound, match=message):
        lbrx.open(path)["lm_head"]
    with pytest.raises(lbrx.TensorNotFound, match=r"has no tensor 'blk\.0'; its names are like 'lm_head\.weight'"):
        lbrx.open(path)["blk.0"]


def test_only_named_tensors_are_saved(tmp_path: Path) -> None:
    with pytest.raises(lbrx.UsageError, match="expected a dict of names and tensors to save, not Tensor"):
        lbrx.save(tmp_path / "a.safetensors", lbrx.tensor([1.0]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("out.bin", np.zeros(1, np.float32), "the ending tells no format"),
        ("out.gguf", np.zeros(1, np.uint8), "tensor 'w' is u8, which GGUF does not have"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, tensor: np.ndarray, message: str
) -> None:
    with pytest.raises(lbrx.LbrxError, match=message):
        lbrx.save(tmp_path / name, {"w": lbrx.tensor(tensor)})
    assert list(tmp_path.iterdir()) == []
