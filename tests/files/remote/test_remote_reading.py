"""Models in a bucket and behind HTTP are read like those on disk; with faults on the way the same, or an error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.hub import locate_model
from lbrx.files.formats.header import TensorSpec
from lbrx.files.formats.safetensors import lay_out
from lbrx.files.remote import RemotePath, as_path, using_remote
from lbrx.files.remote.filesystem import attempt, forget_listings
from lbrx.files.remote.reading import RemoteFile
from support.bucket import Bucket
from support.faulty_proxy import CUT, ERROR, SHORT, STALL, FaultyProxy
from support.range_server import range_server
from support.tiny import make_llama

VALUES = np.arange(300_000, dtype=np.float32)


def put_values(bucket: Bucket, folder: Path, key: str = "values.safetensors") -> str:
    path = folder / "values.safetensors"
    lbrx.save(path, {"small": lbrx.tensor(VALUES[:10]), "large": lbrx.tensor(VALUES)})
    return bucket.put(key, path.read_bytes())


def test_a_file_in_a_bucket_has_the_tensors_of_the_local_one(bucket: Bucket, folder: Path) -> None:
    model = lbrx.open(put_values(bucket, folder))
    assert model.format == "safetensors"
    np.testing.assert_array_equal(model["large"].numpy(), VALUES)
    np.testing.assert_array_equal(model["large"][1000:1004].numpy(), VALUES[1000:1004])
    assert float(model["small"].sum()) == 45.0


def test_a_directory_in_a_bucket_opens_with_its_config_and_shards(bucket: Bucket, folder: Path) -> None:
    tensors = make_llama(folder / "local", 1)
    lbrx.save(folder / "shards", dict(lbrx.open(folder / "local")), max_shard_bytes=600)
    (folder / "shards/config.json").write_bytes((folder / "local/config.json").read_bytes())
    model = lbrx.open(bucket.put_directory("models/a", folder / "shards"))
    assert len(model.files) > 2
    assert model.config is not None
    assert model.config["model_type"] == "llama"
    for name, values in tensors.items():
        np.testing.assert_array_equal(model[name].numpy(), values)


def test_a_gguf_file_in_a_bucket(bucket: Bucket, folder: Path) -> None:
    lbrx.save(folder / "a.gguf", {"w": lbrx.tensor(VALUES[:64])}, {"general.architecture": "llama"})
    model = lbrx.open(bucket.put("a.gguf", (folder / "a.gguf").read_bytes()))
    assert model.metadata["general.architecture"] == "llama"
    np.testing.assert_array_equal(model["w"].numpy(), VALUES[:64])


def test_a_file_behind_http(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    put_values(bucket, folder)
    with using_remote(block_bytes=1 << 16):
        model = lbrx.open(f"{proxy.url}/{bucket.name}/values.safetensors")
        proxy.inject(CUT, 1)
        np.testing.assert_array_equal(model["large"].numpy(), VALUES)


def test_a_file_in_memory(folder: Path) -> None:
    import fsspec

    lbrx.save(folder / "a.safetensors", {"w": lbrx.tensor(VALUES[:5])})
    fsspec.filesystem("memory").pipe_file("/models/a.safetensors", (folder / "a.safetensors").read_bytes())
    np.testing.assert_array_equal(lbrx.open("memory://models/a.safetensors")["w"].numpy(), VALUES[:5])


@pytest.mark.parametrize("fault", [ERROR, CUT, SHORT, STALL])
def test_faults_that_pass_leave_no_trace(fault: str, bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    url = put_values(bucket, folder)
    with using_remote(block_bytes=1 << 18):
        model = lbrx.open(url)
        proxy.inject(fault, 2, path_part="values")
        np.testing.assert_array_equal(model["large"].numpy(), VALUES)
        assert proxy.faults[0].times == 0


@pytest.mark.parametrize("fault", [ERROR, CUT, SHORT, STALL])
def test_faults_that_stay_are_an_error_after_a_limit(
    fault: str, bucket: Bucket, folder: Path, proxy: FaultyProxy
) -> None:
    url = put_values(bucket, folder)
    file = RemoteFile(RemotePath(url))
    proxy.requests.clear()
    proxy.inject(fault, 1000)
    with pytest.raises(FileError, match=r"values.safetensors: cannot be read from byte 5 to 1005: 3 attempts failed"):
        file.fetch(5, 1000)
    assert [method for method, _ in proxy.requests if method == "GET"] == ["GET"] * 3


def test_a_file_that_was_replaced_is_an_error(bucket: Bucket, folder: Path) -> None:
    url = put_values(bucket, folder)
    with using_remote(block_bytes=1 << 17, ahead_blocks=1):
        model = lbrx.open(url)
        np.testing.assert_array_equal(model["large"][:10].numpy(), VALUES[:10])
        lbrx.save(folder / "values.safetensors", {"small": lbrx.tensor(VALUES[:10]), "large": lbrx.tensor(-VALUES)})
        bucket.put("values.safetensors", (folder / "values.safetensors").read_bytes())
        with pytest.raises(FileError, match="was changed while it was being read"):
            model["large"].numpy()
    np.testing.assert_array_equal(lbrx.open(url)["large"].numpy(), -VALUES)


def test_headers_of_shards_are_read_once(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    make_llama(folder / "local", 1)
    lbrx.save(folder / "shards", dict(lbrx.open(folder / "local")), max_shard_bytes=600)
    url = bucket.put_directory("models/once", folder / "shards")
    shards = len(lbrx.open(url).files)
    asked = [path for method, path in proxy.requests if method == "GET" and path.endswith(".safetensors")]
    assert len(asked) == len(set(asked)) == shards > 2


def test_a_shard_that_is_missing_is_an_error(bucket: Bucket, folder: Path) -> None:
    make_llama(folder / "local", 1)
    lbrx.save(folder / "shards", dict(lbrx.open(folder / "local")), max_shard_bytes=600)
    (first, *_) = sorted((folder / "shards").glob("*.safetensors"))
    first.unlink()
    with pytest.raises(FileError, match=rf"names the shard '{first.name}', which is missing"):
        lbrx.open(bucket.put_directory("models/missing", folder / "shards"))


def test_what_is_not_there_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(FileError, match=r"s3://.*/none: no such file or directory"):
        lbrx.open(f"{bucket.url}/none")
    with pytest.raises(FileError, match="no such bucket"):
        lbrx.open("s3://no-such-bucket-here/none.gguf")


def test_blocks_that_are_kept_are_not_read_again(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    url = put_values(bucket, folder)
    with using_remote(block_bytes=1 << 18):
        model = lbrx.open(url)
        first = model["large"].numpy()
        proxy.requests.clear()
        np.testing.assert_array_equal(model["large"].numpy(), first)
        assert [method for method, _ in proxy.requests if method == "GET"] == []


def test_headers_of_a_model_of_100_gb_take_less_than_a_megabyte(folder: Path) -> None:
    shards, parts = 20, 40
    rows = 100_000_000_000 // (shards * parts * 8192 * 2)
    (folder / "big").mkdir()
    weight_map = {}
    for shard in range(1, shards + 1):
        name = f"model-{shard:05}-of-{shards:05}.safetensors"
        specs = [TensorSpec(f"model.layers.{shard}.part.{part}.weight", "bf16", (rows, 8192)) for part in range(parts)]
        layout = lay_out(name, specs, {"format": "pt"})
        (folder / "big" / name).write_bytes(layout.header)
        os.truncate(folder / "big" / name, layout.file_bytes)
        weight_map |= {spec.name: name for spec in specs}
    (folder / "big/model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "big/config.json").write_text('{"model_type": "llama"}')
    with range_server(folder) as server:
        model = lbrx.open(f"{server.url}/big")
        assert model.nbytes > 99_000_000_000
        assert len(model) == shards * parts
        assert 0 < server.body_bytes < 1_000_000
        assert float(model["model.layers.7.part.3.weight"][:2].max()) == 0.0


def test_a_server_without_ranges_is_an_error(folder: Path) -> None:
    lbrx.save(folder / "a.safetensors", {"a": lbrx.tensor(VALUES), "b": lbrx.tensor(VALUES)})
    with range_server(folder) as server, using_remote(attempts=1, block_bytes=1 << 20):
        server.takes_ranges = False
        model = lbrx.open(f"{server.url}/a.safetensors")
        with pytest.raises(FileError, match="doesn't appear to support range requests"):
            model["b"].numpy()


def test_references_of_recipes(bucket: Bucket) -> None:
    assert locate_model(f"{bucket.url}/a") == as_path(f"{bucket.url}/a")
    assert str(locate_model("hf://owner/name", "v2")) == "hf://owner/name@v2"
    with pytest.raises(UsageError, match="which has no revisions"):
        locate_model(f"{bucket.url}/a", "main")


def test_a_remote_path_is_no_local_file(bucket: Bucket) -> None:
    with pytest.raises(FileError, match="is a remote file; expected a local file"):
        os.stat(as_path(f"{bucket.url}/a"))


def test_blocks_of_an_older_version_are_not_served(bucket: Bucket, folder: Path) -> None:
    for value in (0.0, 1.0):
        lbrx.save(folder / f"{value}.safetensors", {"w": lbrx.full((4096,), value, "f32")})
        url = bucket.put("x.safetensors", (folder / f"{value}.safetensors").read_bytes())
        assert lbrx.open(url)["w"].numpy().sum() == 4096 * value


def test_an_object_that_was_replaced_before_it_is_opened(bucket: Bucket) -> None:
    path = RemotePath(bucket.put("a.bin", b"old bytes"))
    file = RemoteFile(path)
    bucket.put("a.bin", b"new bytes")
    forget_listings(path.parent)
    with pytest.raises(FileError, match="was changed while it was being read"):
        file.fetch(0, 3)


def test_a_whole_remote_file_is_read(bucket: Bucket) -> None:
    path = RemotePath(bucket.put("notes.txt", b"one\r\ntwo"))
    assert path.read_bytes() == b"one\r\ntwo"
    assert path.read_text() == "one\ntwo"


def test_our_own_errors_are_not_tried_again(bucket: Bucket) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise FileError("a: was changed")

    path = RemotePath(f"{bucket.url}/a")
    with pytest.raises(FileError, match=f"^{path}: was changed$"):
        attempt(path, "be read", fail)
    assert len(calls) == 1
