"""Resolve a model reference: a local path, a URL, or a hub repository, which is downloaded once.

The environment variables of the hub apply: ``HF_TOKEN``, ``HF_HOME`` (cache), ``HF_HUB_OFFLINE=1`` (cache only).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lbrx.errors import FileError, UsageError
from lbrx.files.remote.paths import as_path, is_remote

# The files that a merge needs: SafeTensors weights, configs, tokenizer and processor files.
DOWNLOADED_PATTERNS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")

_REPOSITORY = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


def local_path(path: str, directories: Sequence[Path] = (Path(),)) -> Path | None:
    """Return the path in the first directory that contains it, or None; a URL is returned unchanged.

    >>> local_path("no-such-model") is None
    True
    """
    if is_remote(path):
        return as_path(path)
    try:
        expanded = Path(path).expanduser()
        return next((local for directory in directories if (local := directory / expanded).exists()), None)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, a user without a home directory
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"{path[:200]}: cannot be looked up: {reason}") from error


def locate_model(path: str, revision: str | None = None, directories: Sequence[Path] = (Path(),)) -> Path:
    """Return the local path of a model: the path itself, looked up in each directory, or a downloaded repository.

    >>> locate_model("no-such-model")
    Traceback (most recent call last):
    lbrx.errors.FileError: no-such-model: no such file or directory, nor a repository of the hub ('owner/name')
    """
    local = local_path(path, directories)
    if local is None:
        if is_repository(path):
            return download(path, revision)
        detail = ", nor a repository of the hub ('owner/name')" if _REPOSITORY.fullmatch(path) else ""
        raise FileError(f"{path}: no such file or directory{detail}")
    if revision is not None and path.startswith("hf://"):
        return as_path(f"{path}@{revision}")
    if revision is not None:
        raise UsageError(f"{path}@{revision}: is a local model, which has no revisions; expected no '@{revision}'")
    return local


def is_repository(path: str) -> bool:
    """Return whether a reference looks like ``owner/name`` on the hub, and not like a path.

    >>> is_repository("mistralai/Mistral-7B-v0.1"), is_repository("./models/a"), is_repository("model.gguf")
    (True, False, False)
    """
    return (
        path.count("/") == 1
        and _REPOSITORY.fullmatch(path) is not None
        and not path.endswith((".gguf", ".safetensors"))
    )


def download(repository: str, revision: str | None = None) -> Path:
    """Return the local snapshot of a repository; download the files that are not in the cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(DOWNLOADED_PATTERNS)))
    except Exception as error:  # the hub raises its own errors, HTTP client errors and OSError
        raise _hub_error(repository, revision, error) from error


def _hub_error(repository: str, revision: str | None, error: Exception) -> FileError:
    from huggingface_hub import constants, errors

    name = repository if revision is None else f"{repository}@{revision}"
    # Subclasses first: GatedRepoError is a RepositoryNotFoundError.
    reasons: tuple[tuple[Any, str], ...] = (
        (errors.GatedRepoError, "is gated on the hub; expected a token (HF_TOKEN) with access to it"),
        (errors.RepositoryNotFoundError, "no such file or directory here, and no such repository on the hub"),
        (errors.RevisionNotFoundError, f"the repository has no revision {revision!r}"),
        (errors.LocalEntryNotFoundError, _unreachable(constants.HF_HUB_OFFLINE)),
    )
    reason = next((text for error_class, text in reasons if isinstance(error, error_class)), None)
    if reason is None:
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        reason = f"cannot be downloaded from the hub: {first_line}"
    return FileError(f"{name}: {reason}")


def _unreachable(is_offline: bool) -> str:
    why = "HF_HUB_OFFLINE forbids downloads" if is_offline else "the hub cannot be reached"
    return f"no such file or directory here, it is not in the hub's cache, and {why}"
