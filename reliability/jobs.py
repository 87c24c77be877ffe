"""The commands that are tried, on tiny models, and what has to hold after each trial."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import lbrx
from lbrx.base import system
from lbrx.demo.models import demo_models
from lbrx.errors import LbrxError
from lbrx.files.output.run import restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.lora.extract import extract_lora
from lbrx.models.inference import open_model

Files = dict[str, bytes]
Parts = dict[str, lbrx.Tensor]
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
    runs_model: bool = False  # it needs a model that can generate text

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
        if job.runs_model:
            shutil.copytree(demo_models().base, self.inputs / "model")
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
        for scheme, parts, settings in (_fp8(tensors), _gptq(generator)):
            path = directory / f"{name}-{scheme}"
            path.mkdir()
            lbrx.save(path / "model.safetensors", parts, {"format": "pt"})
            (path / "config.json").write_text(json.dumps({"quantization_config": settings}))


def _fp8(tensors: Mapping[str, Any]) -> tuple[str, Parts, dict[str, Any]]:
    """The weights as codes of 8 bits with scales for blocks."""
    parts: Parts = {name: lbrx.tensor(values).to("f8_e4m3") for name, values in tensors.items()}
    parts |= {f"{name}_scale_inv": lbrx.full((2, 2), 0.5, "f32") for name in tensors}
    return "fp8", parts, {"quant_method": "fp8", "weight_block_size": [4, 4]}


def _gptq(generator: np.random.Generator) -> tuple[str, Parts, dict[str, Any]]:
    """Weights of 4 bits whose columns are sorted into two groups."""
    parts: Parts = {}
    for module in _LAYER:
        base = f"model.layers.0.self_attn.{module}"
        words = generator.integers(-(1 << 31), 1 << 31, (3, 8, 8)).astype(np.int32)
        parts[f"{base}.qweight"], parts[f"{base}.qzeros"] = lbrx.tensor(words[0]), lbrx.tensor(words[1][:2, :1].copy())
        parts[f"{base}.scales"] = lbrx.full((2, 8), 0.25, "f16")
        parts[f"{base}.g_idx"] = lbrx.tensor(generator.permutation(np.arange(64, dtype=np.int32) // 32))
    return "gptq", parts, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}


def _merge(weight: float, scheme: str = "", **options: Any) -> Callable[[Path, Path], object]:
    def run(inputs: Path, out: Path) -> object:
        recipe = {
            "merge_method": "linear",
            "models": [
                {"model": str(inputs / f"a{scheme}"), "parameters": {"weight": weight}},
                {"model": str(inputs / f"b{scheme}"), "parameters": {"weight": 1}},
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


def _generate(inputs: Path, out: Path) -> object:
    """Save the logits of generated tokens; the cache of keys and values grows."""
    model = open_model(inputs / "model")
    cache, tokens, rows = model.new_cache(capacity=8, kv_type="f16"), [5, 9, 2, 77, 31], []
    with lbrx.using(threads=1):
        while len(rows) < 20:
            rows.append(model.logits(tokens, cache)[-1])
            tokens = [int(rows[-1].argmax())]
    return lbrx.save(out, {"logits": lbrx.tensor(np.stack(rows))}, threads=1)


def _moe(_: Path, out: Path) -> object:
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
    Job("merge of FP8 models", "out", _merge(1, "-fp8")),
    Job("merge that keeps FP8", "out", _merge(1, "-fp8", quantize="same")),
    Job("merge of GPTQ models --overwrite", "out", _merge(1, "-gptq", **_OVER), _merge(2, "-gptq")),
    Job("convert an FP8 model", "out", _convert("a-fp8", type="f16")),
    Job("convert a GPTQ model", "out", _convert("a-gptq", max_shard_bytes=600)),
    Job("generate", "out.safetensors", _generate, runs_model=True),
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
