"""The files that sentence-transformers has beside a model: a list of modules, and a folder with settings for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lbrx.errors import FormatError
from lbrx.files.formats.strict_json import parse_object
from lbrx.files.output.plan import SideFile

MODULES_NAME = "modules.json"
_ROOT_NAMES = (MODULES_NAME, "config_sentence_transformers.json", "sentence_bert_config.json")
_FOLDER = re.compile(r"\d{1,3}_\w{1,64}")
_WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
_FOLDER_NAMES = ("config.json", *_WEIGHT_NAMES)
_LARGEST_BYTES = 1 << 26  # of weights, which are copied through memory


def sentence_modules(directory: Path | None) -> Iterator[SideFile]:
    """Yield the files of sentence-transformers in a model's directory, in the order of its list of modules.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> written = (folder / "modules.json").write_text('[{"path": ""}, {"path": "1_Pooling"}]')
    >>> (folder / "1_Pooling").mkdir()
    >>> written = (folder / "1_Pooling" / "config.json").write_text("{}")
    >>> [file.name for file in sentence_modules(folder)]
    ['modules.json', '1_Pooling/config.json']
    """
    if directory is None or not (directory / MODULES_NAME).is_file():
        return
    for name in _ROOT_NAMES:
        if (directory / name).is_file():
            yield SideFile(name, source=directory / name)
    for folder in _folders(directory / MODULES_NAME):
        for name in _FOLDER_NAMES:
            path = directory / folder / name
            if not path.is_file():
                continue
            if path.stat().st_size > _LARGEST_BYTES:
                raise FormatError(f"{path}: has {path.stat().st_size} bytes; expected at most {_LARGEST_BYTES}")
            yield SideFile(f"{folder}/{name}", source=path)


def is_module_folder(path: Path) -> bool:
    """Return whether a directory contains nothing but the files of a module."""
    return _FOLDER.fullmatch(path.name) is not None and all(
        child.is_file() and child.name in _FOLDER_NAMES for child in path.iterdir()
    )


def is_module_weight(name: str) -> bool:
    """Return whether a small file has weights, such as ``2_Dense/model.safetensors``."""
    folder, _, file = name.rpartition("/")
    return bool(folder) and file in _WEIGHT_NAMES


def _folders(path: Path) -> Iterator[str]:
    modules = parse_object(b'{"modules":' + path.read_bytes() + b"}", str(path))["modules"]
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise FormatError(f"{path}: is not a list of modules")
    for module in modules:
        folder = module.get("path", "")
        if folder == "":  # the model itself
            continue
        if not isinstance(folder, str) or _FOLDER.fullmatch(folder) is None:
            raise FormatError(f"{path}: 'path' is {folder!r:.80}; expected a folder such as '1_Pooling'")
        yield folder
