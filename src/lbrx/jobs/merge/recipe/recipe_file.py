"""The text of a recipe file."""

from __future__ import annotations

import os
from pathlib import Path

from lbrx.errors import FileError
from lbrx.files.formats.header import GGUF_MAGIC
from lbrx.jobs.merge.recipe.yaml_lines import MAX_RECIPE_BYTES, RecipeLine, check_size

_IS_A_MODEL = "is a model; expected a recipe (a YAML file)"


def recipe_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a recipe file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "recipe.yml")
    ...     _ = path.write_text("merge_method: linear")
    ...     recipe_text(path)
    'merge_method: linear'
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_RECIPE_BYTES + 1)
    except IsADirectoryError as error:
        raise FileError(f"{name}: is a directory; expected a recipe (a YAML file)") from error
    except OSError as error:
        raise FileError(f"{name}: the recipe cannot be read: {error.strerror}") from error
    if content.startswith(GGUF_MAGIC) or _is_safetensors(content):
        raise FileError(f"{name}: {_IS_A_MODEL}")
    check_size(len(content), name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeLine(name, line).error("the recipe is not UTF-8 text") from error


def _is_safetensors(content: bytes) -> bool:
    """Whether a file begins with the length of a JSON header; text has larger numbers there."""
    return content[8:9] == b"{" and content[5:8] == bytes(3)
