"""Models that a worker keeps open, and a check that they are those of the driver."""

from __future__ import annotations

from pathlib import Path

from lbrx.errors import FileError
from lbrx.files.remote.paths import is_remote
from lbrx.models.inference import LanguageModel, open_model

_opened: dict[str, tuple[LanguageModel, ...]] = {}


def appearance(model: LanguageModel) -> str:
    """Distinguishes models: by shape, and by the sizes of their files if they are on a file system."""
    sizes: list[tuple[str, int]] = []
    if not is_remote(model.path):
        files = [model.path] if model.path.is_file() else sorted(model.path.glob("*.safetensors"))
        sizes = [(file.name, file.stat().st_size) for file in files]
    return f"{model.spec!r} {sizes}"


def is_open(job: str) -> bool:
    """Whether this process has the models of a job open."""
    return job in _opened


def opened_models(job: str, paths: tuple[Path, ...], appearances: tuple[str, ...]) -> tuple[LanguageModel, ...]:
    """The models of a job. A process keeps only those of the last job."""
    if job not in _opened:
        models = tuple(open_model(path) for path in paths)
        for model, expected in zip(models, appearances, strict=True):
            if appearance(model) != expected:
                raise FileError(
                    f"{model.path}: this worker sees another model than the driver; "
                    "expected the same models at the same paths on every node"
                )
        _opened.clear()
        _opened[job] = models
    return _opened[job]
