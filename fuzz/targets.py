"""What is fuzzed: for each kind of input, how it is stored and all that reads it.

A target gets the bytes of one file. The files around it, such as weights for a config.json, are those of ``models/``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lbrx
from lbrx.files.checkpoint.locating import locate
from lbrx.files.checkpoint.summary import as_json, inspect
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.journal import Journal, difference
from lbrx.files.output.model_plan import ModelPlan
from lbrx.files.remote import filesystem
from lbrx.files.remote.paths import RemotePath, as_path, is_remote, without_secrets
from lbrx.files.remote.settings import remote_settings
from lbrx.jobs.convert.convert import plan_conversion
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.imatrix.files import read_imatrix
from lbrx.jobs.lora.adapter import open_with_adapter
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.moe.moe import plan_recipe
from lbrx.jobs.verify import verify
from lbrx.models.architectures.table import known_family
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.chat import read_templates
from lbrx.models.tokenizers.chat_templates import find_template, read_template
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from lbrx.tensors.codecs.mlx import dequantize

Read = Callable[[], object]
ROOT = Path(__file__).parent
MODELS = ROOT / "models"
SEEDS = ROOT / "seeds"
QUANTIZATIONS = SEEDS / "quantization_config"  # config.json of each scheme; ``quantized`` has the weights
FAMILIES = frozenset(path.name for path in MODELS.iterdir()) if MODELS.is_dir() else frozenset()
_MOST_VALUES = 100_000
_TEXT = "The quick brown fox:  1234\n\n\tdéjà vu 你好 <s></s>"


@dataclass(frozen=True)
class Target:
    """One kind of input. ``readers`` stores the bytes below a directory and returns all calls that read them."""

    name: str
    format: str  # which structure mutations keep
    readers: Callable[[Path, bytes], Sequence[Read]]

    def seeds(self) -> list[bytes]:
        """The inputs in the repository, in the order of their names."""
        return [path.read_bytes() for path in sorted((SEEDS / self.name).iterdir())]


def _put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _around(folder: Path, model: str) -> Path:
    """A copy of a small model, made once in a process."""
    if not (folder / model).exists():
        shutil.copytree(MODELS / model, folder / model)
    return folder / model


def _open_and_read(path: Path) -> None:
    """Open a checkpoint, describe it, and read its small tensors."""
    with lbrx.open(path) as model:
        repr(model)
        dict(model.metadata)
        for tensor in list(model.values())[:20]:
            repr(tensor)
            if tensor.size <= _MOST_VALUES:
                tensor.numpy()


def _read_raw(path: Path) -> None:
    with lbrx.open(path, raw=True) as model:
        for tensor in list(model.values())[:5]:
            if tensor.size <= _MOST_VALUES:
                tensor.numpy()


def _weights(name: str, folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / name, data)
    return [
        partial(_open_and_read, path),
        partial(_read_raw, path),
        lambda: as_json(inspect(path)),
        lambda: verify(path),
    ]


def _shards(names: Sequence[str], folder: Path, data: bytes) -> list[Read]:
    """The mutated file is each of the shards in turn, the other one is whole."""
    length = int.from_bytes(data[:4], "little") if len(data) >= 4 else 0
    parts = (data[4 : 4 + length], data[4 + length :])
    for name, content in zip(names, parts, strict=True):
        _put(folder / name, content)
    first = folder / names[0]
    return [partial(_open_and_read, first), lambda: verify(folder, quick=True), lambda: as_json(inspect(folder))]


def _index(name: str, folder: Path, data: bytes) -> list[Read]:
    path = _put(_around(folder, "sharded") / name, data).parent
    return [partial(_open_and_read, path), lambda: verify(path, quick=True), lambda: as_json(inspect(path))]


def _with_config(folder: Path, data: bytes) -> list[Read]:
    """Weights beside the config.json of the scheme that their metadata name."""
    named = re.search(rb'"scheme": *"(\w{1,60})"', data)
    config = QUANTIZATIONS / f"{named[1].decode() if named else ''}.json"
    content = (config if config.is_file() else QUANTIZATIONS / "fp8.json").read_bytes()
    return _quantized(folder, content, data)


def _with_weights(folder: Path, data: bytes) -> list[Read]:
    """A config.json beside the weights of the scheme that it names."""
    named = re.search(rb'"scheme": *"(\w{1,60})"', data)
    weights = SEEDS / "quantized" / f"{named[1].decode() if named else ''}.safetensors"
    content = (weights if weights.is_file() else SEEDS / "quantized" / "fp8.safetensors").read_bytes()
    return _quantized(folder, data, content)


def _quantized(folder: Path, config: bytes, weights: bytes) -> list[Read]:
    path = folder / "quantized"
    _put(path / "config.json", config)
    _put(path / "model.safetensors", weights)
    return [
        partial(_open_and_read, path),
        partial(_read_raw, path),
        lambda: as_json(inspect(path)),
        lambda: verify(path),
        lambda: _make_codes(path),
        *_whole_model(path, folder),
    ]


def _make_codes(path: Path) -> None:
    for planned in read_contents(path, keeps_codes=True).tensors:
        if planned.codes is not None and math.prod(planned.shape) <= _MOST_VALUES:
            codes = planned.codes.make()
            dequantize(codes.weight, codes.scales, codes.biases, planned.codes.mode).numpy()


def _mlx(folder: Path, data: bytes) -> list[Read]:
    path = _around(folder, "mlx")
    _put(path / "model.safetensors", data)
    return [
        lambda: verify(path),
        lambda: plan_conversion(path, folder / "plain", format="safetensors"),
        lambda: _make_all(plan_conversion(path, folder / "a.gguf", format="gguf")),
        lambda: open_model(path),
    ]


def _make_all(plan: ModelPlan) -> None:
    for planned in plan.tensors.values():
        if math.prod(planned.shape) <= _MOST_VALUES:
            planned.make().numpy()


def _family_directory(folder: Path, config: bytes) -> Path:
    """The model whose family a config names, or the first."""
    named = re.search(rb'"model_type": *"(\w+)"', config)
    name = named[1].decode() if named else "llama"
    return _around(folder, name if name in FAMILIES else "llama")


def _whole_model(path: Path, out: Path) -> list[Read]:
    """All that reads the small files of a model, and no weights."""
    recipe = f"{{merge_method: linear, models: [{{model: {json.dumps(str(path))}}}], parameters: {{weight: 1}}}}"
    other = "gguf" if path.is_dir() else "safetensors"
    return [
        lambda: verify(path, quick=True),
        lambda: read_and_plan(recipe, out / "merged"),
        lambda: plan_conversion(path, out / f"converted.{other}", format=other),
        lambda: open_model(path),
    ]


def _config(folder: Path, data: bytes) -> list[Read]:
    path = _family_directory(folder, data)
    _put(path / "config.json", data)

    def family() -> None:
        config = read_json(path / "config.json")
        known = known_family(config)
        if known is not None:
            known.tensors(config, list(lbrx.open(path)))

    return [family, *_whole_model(path, folder)]


def _gguf_model(folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / "model.gguf", data)
    return [*_whole_model(path, folder), lambda: _tokenize(path)]


def _tokenize(path: Path) -> None:
    tokenizer = open_tokenizer(path)
    tokenizer.decode(tokenizer.encode(_TEXT))
    _ = tokenizer.bos_id, tokenizer.eos_id, tokenizer.stop_ids


def _tokenizer(name: str, folder: Path, data: bytes) -> list[Read]:
    model = "sentencepiece" if name == "tokenizer.model" else "llama"
    path = _put(_around(folder, model) / name, data).parent
    recipe = (
        f"{{merge_method: linear, models: [{{model: {json.dumps(str(path))}}}, {{model: {json.dumps(str(MODELS / model))}}}], "
        "parameters: {weight: 1}, tokenizer_source: union}"
    )
    return [
        lambda: _tokenize(path),
        lambda: gguf_tokenizer_metadata(path, read_json(path / "config.json")),
        lambda: read_and_plan(recipe, folder / "merged"),
    ]


def _template(folder: Path, data: bytes) -> list[Read]:
    path = _put(_around(folder, "llama") / "tokenizer_config.json", data).parent
    return [
        lambda: read_templates(path),
        lambda: read_template(path),
        lambda: find_template("auto", [path]),
        lambda: _tokenize(path),
        lambda: gguf_tokenizer_metadata(path, read_json(path / "config.json")),
    ]


def _adapter(name: str, folder: Path, data: bytes) -> list[Read]:
    path = _put(_around(folder, "adapter") / name, data).parent
    return [lambda: _apply(path)]


def _apply(path: Path) -> None:
    with lbrx.open(MODELS / "llama") as base:
        patched = open_with_adapter(base, path)
        for tensor in patched:
            repr(patched[tensor])


def _matrix(folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / "imatrix.gguf", data)
    return [lambda: dict(read_imatrix(path))]


def _recipe(folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / "recipe.yml", data)
    for name in ("llama", "other"):
        _around(folder, name)
    return [lambda: read_and_plan(path, folder / "merged")]


def _mixture(folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / "moe.yml", data)
    for name in ("llama", "other"):
        _around(folder, name)
    return [lambda: plan_recipe(path)]


def _journal(folder: Path, data: bytes) -> list[Read]:
    path = _put(folder / "journal", data)

    def read() -> None:
        with Journal(path) as journal:
            if journal.identity is not None:
                difference(journal.identity, {"lbrx": "1", "seed": 1, "inputs": {"a": "b"}})
            list(journal.entries.values())

    return [read]


def _address(folder: Path, data: bytes) -> list[Read]:
    text = data.decode("utf-8", "surrogateescape")

    def parse() -> None:
        without_secrets(text)
        path = as_path(text)
        str(path), repr(path), path.name, path.parent, is_remote(path)

    def find() -> None:
        if not is_remote(text):  # no requests
            locate(text, directories=(folder,))

    return [parse, find]


class _Service:
    """A file system of fsspec whose answers come from the input."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers

    def ls(self, _url: str, detail: bool) -> Any:
        del detail
        return self._answers["ls"]

    def info(self, url: str) -> Any:
        return self._answers["info"].get(url.rpartition("/")[2], {"type": "directory"})

    def cat_file(self, _url: str, **_range: int) -> bytes:
        return str(self._answers["content"]).encode()

    cat_ranges = cat_file

    def invalidate_cache(self, _url: str) -> None:
        pass


def _listing(folder: Path, data: bytes) -> list[Read]:
    del folder
    answers = json.loads(data) if _is_json(data) else {}
    path = RemotePath("s3://bucket/model")

    def read() -> None:
        with mock.patch.object(filesystem, "filesystem", lambda _scheme: _Service(answers)):
            for child in path.iterdir():
                if child.is_file():
                    filesystem.state_of(child)
            path.is_dir()

    return [read]


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


TARGETS = {
    target.name: target
    for target in (
        Target("safetensors", "safetensors", partial(_weights, "model.safetensors")),
        Target("gguf", "gguf", partial(_weights, "weights.gguf")),
        Target("pytorch", "zip", partial(_weights, "model.pt")),
        Target("gguf_split", "bytes", partial(_shards, ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"))),
        Target("quantized", "safetensors", _with_config),
        Target("quantization_config", "json", _with_weights),
        Target("mlx", "safetensors", _mlx),
        Target("index", "json", partial(_index, "model.safetensors.index.json")),
        Target("config", "json", _config),
        Target("gguf_model", "gguf", _gguf_model),
        Target("tokenizer_json", "json", partial(_tokenizer, "tokenizer.json")),
        Target("sentencepiece", "protobuf", partial(_tokenizer, "tokenizer.model")),
        Target("tokenizer_config", "json", _template),
        Target("adapter_config", "json", partial(_adapter, "adapter_config.json")),
        Target("adapter", "safetensors", partial(_adapter, "adapter_model.safetensors")),
        Target("imatrix", "bytes", _matrix),
        Target("imatrix_gguf", "gguf", _matrix),
        Target("recipe", "text", _recipe),
        Target("moe_recipe", "text", _mixture),
        Target("journal", "text", _journal),
        Target("address", "text", _address),
        Target("listing", "json", _listing),
    )
}


def set_up() -> None:
    """No requests to the hub, whatever a recipe names, and no waiting between attempts."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    remote_settings.attempts = 1
