"""Merges that read from a bucket and write into one: the bytes are those of a local merge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lbrx
from lbrx.cli.main import run
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.output.model_plan import plan_output
from lbrx.files.output.run import execute
from lbrx.files.remote import uploading, using_remote
from lbrx.files.remote.filesystem import RemoteState
from lbrx.files.remote.paths import RemotePath
from lbrx.jobs.quantize.quantize import quantize
from support.bucket import Bucket
from support.faulty_proxy import CUT, ERROR, HANG, SHORT, FaultyProxy
from support.quantizing_models import gguf_model, noise
from support.tiny import LINEAR, directory_bytes, make_llama, read_json

SHARD_BYTES = 1200


def models(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)


def local_merge(folder: Path, recipe: str = LINEAR) -> dict[str, bytes]:
    (folder / "recipe.yml").write_text(recipe)
    lbrx.merge(folder / "recipe.yml", folder / "merged", max_shard_bytes=SHARD_BYTES)
    return directory_bytes(folder / "merged")


def remote_recipe(bucket: Bucket, folder: Path) -> str:
    a, b = (bucket.put_directory(f"models/{name}", folder / name) for name in "ab")
    return LINEAR.replace("model: a", f"model: '{a}'").replace("model: b", f"model: '{b}'")


def without_card(files: dict[str, bytes]) -> dict[str, bytes]:
    """The model card names the models, which are at other places."""
    return {name: content for name, content in files.items() if name != "README.md"}


def test_a_merge_from_a_bucket_gives_the_bytes_of_a_local_one(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    models(folder)
    expected = local_merge(folder)
    recipe = remote_recipe(bucket, folder)
    for fault, model in ((ERROR, "a"), (CUT, "b"), (SHORT, "b")):
        proxy.inject(fault, 1, path_part=f"{model}/model.safetensors")
    lbrx.merge(recipe, folder / "from-bucket", max_shard_bytes=SHARD_BYTES)
    assert without_card(directory_bytes(folder / "from-bucket")) == without_card(expected)
    assert [fault.times for fault in proxy.faults] == [0, 0, 0]


def test_a_merge_into_a_bucket_uploads_shards_and_the_index_last(
    bucket: Bucket, folder: Path, proxy: FaultyProxy
) -> None:
    models(folder)
    for name in "ab":
        (folder / name / "tokenizer.json").write_text("{}")
    expected = local_merge(folder)
    assert len([name for name in expected if name.endswith(".safetensors")]) > 2
    assert max(expected) > "model.safetensors.index.json"
    proxy.inject(ERROR, 1, method="PUT")
    proxy.inject(HANG, 1, method="PUT")
    result = lbrx.merge(folder / "recipe.yml", f"{bucket.url}/out/model", max_shard_bytes=SHARD_BYTES)
    assert result.resumed_tensors == 0
    assert str(result.out) == f"{bucket.url}/out/model"
    assert bucket.contents("out/model") == expected
    puts = [path for method, path in proxy.requests if method == "PUT"]
    assert puts[-1].partition("?")[0].endswith("model.safetensors.index.json")
    assert list((folder / "uploads").iterdir()) == []


def test_folders_of_sentence_transformers_are_uploaded(bucket: Bucket, folder: Path) -> None:
    models(folder)
    (folder / "a" / "modules.json").write_text('[{"path": "1_Pooling"}]')
    (folder / "a" / "1_Pooling").mkdir()
    (folder / "a" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "recipe.yml").write_text(LINEAR)
    lbrx.merge(folder / "recipe.yml", f"{bucket.url}/out/model")
    uploaded = bucket.contents("out/model")
    assert uploaded["1_Pooling/config.json"] == b'{"pooling_mode_cls_token": true}'
    assert uploaded["modules.json"] == b'[{"path": "1_Pooling"}]'


def test_large_shards_are_uploaded_in_parts(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    values = lbrx.uniform((3 << 20,), seed=1)
    for name in "ab":
        lbrx.save(folder / f"{name}.safetensors", {"w": values.to("f32")})
    recipe = LINEAR.replace("model: a", "model: a.safetensors").replace("model: b", "model: b.safetensors")
    (folder / "recipe.yml").write_text(recipe)
    lbrx.merge(folder / "recipe.yml", folder / "merged")
    with using_remote(part_bytes=5 << 20):
        lbrx.merge(folder / "recipe.yml", f"{bucket.url}/large")
    assert bucket.contents("large") == directory_bytes(folder / "merged")
    assert any("partNumber=2" in path for method, path in proxy.requests if method == "PUT")
    assert bucket.unfinished_uploads() == []


def test_an_upload_that_fails_is_resumed(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    models(folder)
    expected = local_merge(folder)
    target = f"{bucket.url}/out"
    proxy.inject(ERROR, 1000, method="PUT", path_part="model-00003")
    with pytest.raises(FileError, match=r"model-00003.*cannot be uploaded: 3 attempts failed"):
        lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES)
    assert "model.safetensors.index.json" not in bucket.contents("out")
    proxy.reset()
    result = lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES)
    assert result.resumed_tensors > 2
    assert bucket.contents("out") == expected
    sent = [path for method, path in proxy.requests if method == "PUT"]
    assert not any("model-00001" in path for path in sent)


def test_a_shard_that_vanished_is_made_again(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    models(folder)
    expected = local_merge(folder)
    target = f"{bucket.url}/out"
    proxy.inject(ERROR, 1000, method="PUT", path_part="model-00003")
    with pytest.raises(FileError, match="cannot be uploaded"):
        lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES)
    proxy.reset()
    (first,) = [name for name in bucket.contents("out") if name.startswith("model-00001")]
    bucket.client.delete_object(Bucket=bucket.name, Key=f"out/{first}")
    lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES)
    assert bucket.contents("out") == expected


def test_what_stands_in_the_bucket_is_only_replaced_if_told_to(bucket: Bucket, folder: Path) -> None:
    models(folder)
    expected = local_merge(folder)
    bucket.put("out/model.safetensors", b"old")
    bucket.put("out/model.safetensors.index.json", b"{}")
    bucket.put("out/notes.md", b"mine")
    target = f"{bucket.url}/out"
    with pytest.raises(FileError, match=r"exists and holds model\.safetensors; --overwrite replaces it"):
        lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES)
    lbrx.merge(folder / "recipe.yml", target, max_shard_bytes=SHARD_BYTES, overwrite=True)
    assert bucket.contents("out") == expected | {"notes.md": b"mine"}


def test_an_input_that_changes_during_the_merge_is_an_error(bucket: Bucket, folder: Path) -> None:
    models(folder)
    recipe = remote_recipe(bucket, folder)
    changed = (folder / "b/model.safetensors").read_bytes()

    def replace_model(_: object) -> None:
        bucket.put("models/b/model.safetensors", changed[:-1] + b"\0")

    with pytest.raises(LbrxError, match="changed"):
        lbrx.merge(recipe, folder / "out", progress=replace_model)
    assert not (folder / "out").exists()


def test_the_output_cannot_be_among_the_inputs(bucket: Bucket, folder: Path) -> None:
    models(folder)
    with pytest.raises(FileError, match="is an input in the directory of the output"):
        lbrx.merge(remote_recipe(bucket, folder), f"{bucket.url}/models/a", overwrite=True)


def test_http_cannot_be_written(folder: Path) -> None:
    models(folder)
    (folder / "recipe.yml").write_text(LINEAR)
    with pytest.raises(UsageError, match="cannot be written over http"):
        lbrx.merge(folder / "recipe.yml", "http://127.0.0.1:9/out")


def test_the_commands_take_urls(bucket: Bucket, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models(folder)
    expected = local_merge(folder)
    assert run(["merge", "recipe.yml", f"{bucket.url}/cli", "--shard-size", str(SHARD_BYTES)]) == 0
    assert bucket.contents("cli") == expected
    capsys.readouterr()
    assert run(["inspect", f"{bucket.url}/cli", "--json"]) == 0
    (folder / "printed.json").write_text(capsys.readouterr().out)
    printed = read_json(folder / "printed.json")
    assert printed["path"] == f"{bucket.url}/cli"
    assert printed["layers"] == 2


def test_without_fsspec_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "import lbrx\n"
        "try: lbrx.open('s3://bucket/model')\n"
        "except lbrx.FileError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "s3://: cannot be read without s3fs; run: pip install 'lbrx[remote]'\n"


def test_a_save_into_a_bucket_uploads_what_a_local_one_writes(bucket: Bucket, folder: Path) -> None:
    tensors = {f"t{number}": lbrx.full((100,), number, "f32") for number in range(4)}
    for name, max_shard_bytes in (("model.safetensors", None), ("sharded", 900)):
        lbrx.save(folder / name, tensors, max_shard_bytes=max_shard_bytes)
        lbrx.save(f"{bucket.url}/saved/{name}", tensors, max_shard_bytes=max_shard_bytes)
    local = {"model.safetensors": (folder / "model.safetensors").read_bytes()}
    local |= {f"sharded/{name}": content for name, content in directory_bytes(folder / "sharded").items()}
    assert bucket.contents("saved") == local
    with pytest.raises(FileError, match="exists; expected a new or empty directory"):
        lbrx.save(f"{bucket.url}/saved/sharded", tensors, max_shard_bytes=900)


def test_a_single_file_leaves_its_neighbours(bucket: Bucket, folder: Path) -> None:
    execute(plan_output(gguf_model(1, values=noise), folder / "in.gguf"))
    bucket.put("dir/other.safetensors", b"precious")
    quantize(folder / "in.gguf", folder / "local.gguf", "q8_0")
    quantize(folder / "in.gguf", f"{bucket.url}/dir/a.gguf", "q8_0")
    local = (folder / "local.gguf").read_bytes()
    assert bucket.contents("dir") == {"other.safetensors": b"precious", "a.gguf": local}
    with pytest.raises(FileError, match=r"exists and holds a\.gguf; --overwrite"):
        quantize(folder / "in.gguf", f"{bucket.url}/dir/a.gguf", "q8_0")


def interrupted_upload(bucket: Bucket, folder: Path, proxy: FaultyProxy, **options: bool) -> dict[str, bytes]:
    """A merge whose third shard cannot be uploaded; the files of a local merge."""
    models(folder)
    expected = local_merge(folder)
    proxy.inject(ERROR, 1000, method="PUT", path_part="model-00003")
    with pytest.raises(FileError, match="cannot be uploaded"):
        lbrx.merge(folder / "recipe.yml", f"{bucket.url}/out", max_shard_bytes=SHARD_BYTES, **options)
    proxy.reset()
    return expected


def test_an_old_index_is_gone_while_shards_are_uploaded(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    bucket.put("out/model.safetensors.index.json", b"{}")
    interrupted_upload(bucket, folder, proxy, overwrite=True)
    assert "model.safetensors.index.json" not in bucket.contents("out")


def test_an_uploaded_shard_that_was_replaced_is_made_again(bucket: Bucket, folder: Path, proxy: FaultyProxy) -> None:
    expected = interrupted_upload(bucket, folder, proxy)
    first = min(bucket.contents("out"))
    bucket.put(f"out/{first}", b"x" * len(expected[first]))
    lbrx.merge(folder / "recipe.yml", f"{bucket.url}/out", max_shard_bytes=SHARD_BYTES)
    assert bucket.contents("out") == expected


def test_a_short_upload_is_repeated(bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_state_of, sizes = uploading.fresh_state_of, []

    def once_short(path: RemotePath) -> RemoteState:
        state = fresh_state_of(path)
        sizes.append(state.nbytes)
        return RemoteState(state.nbytes - 1, state.version) if len(sizes) == 1 else state

    monkeypatch.setattr(uploading, "fresh_state_of", once_short)
    (folder / "file").write_bytes(b"0123456789")
    state = uploading.upload(folder / "file", RemotePath(f"{bucket.url}/file"))
    assert (sizes, state.nbytes) == ([10, 10], 10)
