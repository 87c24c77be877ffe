"""The commands that are tried, on tiny models, and what has to hold after each trial."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import lbrx
from lbrx.base import system
from lbrx.errors import LbrxError
from lbrx.files.output.run import restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.lora.extract import extract_lora

Files = dict[str, bytes]
_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj")
_METADATA = {"general.architecture": "llama", "llama.block_count": 1}


@dataclass(frozen=True)
class Job:
    """A command that writes ``out/target``. ``before`` writes the old version, if there is one."""

    name: str
    target: str
    run: Callable[[Path, Path], object]  # the inputs' directory and the target
    before: Callable[[Path, Path], object] | None = None
    exchanges: bool = True  # False: a file system that cannot exchange names

    def perform(self, trial: Trial) -> None:
        with nullcontext() if self.exchanges else patch.object(system, "exchange", lambda *_: False):
            self.run(trial.inputs, trial.out / self.target)


class WrongOutcomeError(AssertionError):
    """A fault had a result that it must not have."""


class Trial:
    """A directory with inputs and an output that is prepared anew before each trial of a job."""

    def __init__(self, job: Job, root: Path) -> None:
        self.job, self.root = job, root.resolve()
        self.inputs, self.out = self.root / "in", self.root / "out"
        write_inputs(self.inputs)
        self.input_files = files_of(self.inputs)
        self.old = self._prepare_old()
        job.perform(self)  # fills caches, and gives the new version
        self.new = files_of(self.out)
        self.reset()
        if self.new == self.old or files_of(self.out) != self.old:
            raise WrongOutcomeError(f"{job.name}: the job changes nothing, or cannot be prepared")

    def reset(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        write_files(self.out, self.old)

    def _prepare_old(self) -> Files:
        self.out.mkdir()
        if self.job.before is not None:
            self.job.before(self.inputs, self.out / self.job.target)
        return files_of(self.out)

    def check(self, what: str) -> None:
        """After a fault: old or new, and the next run finishes."""
        if files_of(self.inputs) != self.input_files:
            raise WrongOutcomeError(f"{what}: an input was changed")
        state = self._state()
        if state == "between":
            restore_replaced(Staging(self.out / self.job.target))
            state = "old" if visible(self.out) == self.old else "between"
        if state == "between" and self.old:
            raise WrongOutcomeError(f"{what}: the target is neither old nor new: {sorted(visible(self.out))}")
        try:
            self.job.perform(self)
        except LbrxError as error:
            if state != "new":
                raise WrongOutcomeError(f"{what}: the next run failed: {error}") from error
            return  # complete, and not to be replaced without --overwrite
        if files_of(self.out) != self.new:
            raise WrongOutcomeError(f"{what}: the next run wrote something else: {sorted(files_of(self.out))}")

    def _state(self) -> str:
        found = visible(self.out)
        if found == self.new:
            return "new"
        if found == self.old:
            return "old"
        first = min(self.new)
        if first in found:
            raise WrongOutcomeError(f"{self.job.name}: the target is partial: {sorted(found)}")
        return "between"  # of a split model without its first file, which no reader takes for a model


def files_of(directory: Path) -> Files:
    """All files below a directory, by their paths in it."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def visible(directory: Path) -> Files:
    """The files that are no work of an unfinished run."""
    return {name: content for name, content in files_of(directory).items() if not name.startswith(".")}


def write_files(directory: Path, files: Files) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def write_inputs(directory: Path) -> None:
    for number, name in enumerate(("a", "b")):
        generator = np.random.default_rng(number)
        tensors = {
            f"model.layers.0.self_attn.{module}.weight": generator.standard_normal((8, 8)).astype(np.float32)
            for module in _LAYER
        }
        (directory / name).mkdir(parents=True)
        lbrx.save(directory / name / "model.safetensors", tensors, {"format": "pt"})
        blocks = {
            f"blk.0.{part}.weight": generator.standard_normal((32, 256)).astype(np.float32)
            for part in ("ffn_up", "ffn_down", "ffn_gate")
        }
        lbrx.save(directory / f"{name}.gguf", blocks, _METADATA)


def _merge(weight: float, **options: Any) -> Callable[[Path, Path], object]:
    def run(inputs: Path, out: Path) -> object:
        recipe = {
            "merge_method": "linear",
            "models": [
                {"model": str(inputs / "a"), "parameters": {"weight": weight}},
                {"model": str(inputs / "b"), "parameters": {"weight": 1}},
            ],
        }
        return lbrx.merge(recipe, out, threads=1, **options)

    return run


def _convert(name: str, **options: Any) -> Callable[[Path, Path], object]:
    return lambda inputs, out: lbrx.convert(inputs / name, out, threads=1, **options)


def _quantize(name: str, **options: Any) -> Callable[[Path, Path], object]:
    return lambda inputs, out: lbrx.quantize(inputs / name, out, "q8_0", threads=1, **options)


def _save(name: str, **options: Any) -> Callable[[Path, Path], object]:
    def run(inputs: Path, out: Path) -> object:
        tensors = {key: value * 2 for key, value in lbrx.open(inputs / name).items()}
        return lbrx.save(out, tensors, _METADATA if out.suffix == ".gguf" else None, threads=1, **options)

    return run


def _extract(inputs: Path, out: Path) -> object:
    return extract_lora(inputs / "a", inputs / "b", out, rank=2)


def _moe(_: Path, out: Path) -> object:
    from lbrx.demo.models import demo_models

    models = demo_models()
    experts = [{"source_model": str(models.prose)}, {"source_model": str(models.code)}]
    recipe = {"base_model": str(models.base), "gate_mode": "random", "experts": experts}
    return lbrx.moe(recipe, out, threads=1)


_SPLIT_BYTES = 40_000
_OVER = {"overwrite": True}
JOBS = (
    Job("merge", "out", _merge(1)),
    Job("merge --overwrite", "out", _merge(1, **_OVER), _merge(2)),
    Job("merge --overwrite, no exchange", "out", _merge(1, **_OVER), _merge(2), exchanges=False),
    Job("merge into shards", "out", _merge(1, max_shard_bytes=600)),
    Job("convert", "out.gguf", _convert("a.gguf", type="f16")),
    Job("convert --overwrite", "out.gguf", _convert("a.gguf", type="f16", **_OVER), _convert("b.gguf", type="f16")),
    Job("quantize", "out.gguf", _quantize("a.gguf")),
    Job("split GGUF", "out.gguf", _convert("a.gguf", max_shard_bytes=_SPLIT_BYTES)),
    Job(
        "split GGUF --overwrite",
        "out.gguf",
        _convert("a.gguf", max_shard_bytes=_SPLIT_BYTES, **_OVER),
        _convert("b.gguf", max_shard_bytes=_SPLIT_BYTES),
    ),
    Job("lora extract", "out", _extract),
    Job("moe", "out", _moe),
    Job("save", "out.safetensors", _save("a/model.safetensors")),
    Job("save over a file", "out.safetensors", _save("a/model.safetensors"), _save("b/model.safetensors")),
    Job(
        "save over a split model",
        "out.gguf",
        _save("a.gguf", max_shard_bytes=_SPLIT_BYTES),
        _save("b.gguf", max_shard_bytes=_SPLIT_BYTES),
    ),
)


@contextmanager
def trial(job: Job, root: Path) -> Iterator[Trial]:
    """A trial's directory, removed at the end."""
    directory = root / job.target.replace(".", "-")
    directory.mkdir(parents=True)
    try:
        yield Trial(job, directory)
    finally:
        shutil.rmtree(directory)
