"""Checks of input and output paths before any work begins."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from lbrx.errors import FileError, UsageError
from lbrx.files.remote.paths import is_remote

_TORCH_ENDINGS = (".bin", ".pt", ".pth")


def check_model(path: Path, *, may_be_adapter: bool = False) -> None:
    """Raise if the path does not exist, suggesting similar ones, or if it is an adapter without its base."""
    if is_remote(path):
        return
    if not path.exists():
        raise FileError(f"{path}: cannot be opened: {os.strerror(errno.ENOENT)}{_meant(path)}")
    if not may_be_adapter and path.is_dir():
        from lbrx.files.checkpoint.locating import refuse_adapter

        refuse_adapter(str(path), path)


def _meant(path: Path) -> str:
    from lbrx.files.checkpoint.hub import is_repository
    from lbrx.files.checkpoint.locating import similar_path

    in_hub = f"; use 'hf://{path}' to read it from the Hugging Face hub" if is_repository(str(path)) else ""
    return similar_path(str(path)) or in_hub


def check_output_name(out: Path, format: str | None, *, directory_only: bool = False) -> None:
    """Raise if the name is that of a file but the format needs a directory, or if it is a PyTorch file.

    >>> check_output_name(Path("model.gguf"), "mlx")
    Traceback (most recent call last):
    lbrx.errors.UsageError: model.gguf: an MLX model is a directory; expected a name that does not end in .gguf
    """
    names = {"mlx": "an MLX model", "safetensors": "a SafeTensors model"}
    if out.suffix == ".gguf" and format in names:
        raise UsageError(f"{out}: {names[format]} is a directory; expected a name that does not end in .gguf")
    if out.suffix == ".safetensors" and directory_only:
        raise UsageError(f"{out}: the output is a directory; expected a name that does not end in .safetensors")
    if out.suffix in _TORCH_ENDINGS:
        raise UsageError(
            f"{out}: lbrx cannot write PyTorch files; expected a directory, or a name ending in .gguf or .safetensors"
        )


def check_replaced(out: Path, inputs: Iterable[Path], others: Iterable[Path] = ()) -> None:
    """Raise if replacing a directory would delete inputs, other needed files or the current directory.

    Inputs directly in the directory are checked when the plan runs.

    >>> check_replaced(Path("/a"), [Path("/a/b/w.gguf")])
    Traceback (most recent call last):
    lbrx.errors.UsageError: /a: contains /a/b/w.gguf, which --overwrite would delete; choose another output path
    """
    target = out.resolve()
    if target in (Path.cwd(), *Path.cwd().parents):
        raise UsageError(
            f"{out}: is or contains the current directory, which --overwrite would delete; choose another output path"
        )
    lost = [path for path in inputs if not is_remote(path) and target in path.resolve().parents[1:]]
    lost += [path for path in others if target in path.resolve().parents]
    if lost:
        raise UsageError(f"{out}: contains {lost[0]}, which --overwrite would delete; choose another output path")
