"""Several outputs of one model: a directory with a file or a directory for each type, and a model card.

Everything is checked before the first output is written. The text for importances is run once. Each output is a run of
its own and appears when it is complete. A record in the directory lists the complete ones: they are not written again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import format_bytes, make_directory
from lbrx.engine.device import computing_on
from lbrx.errors import FileError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.header import FileLayout
from lbrx.files.formats.source import read_text
from lbrx.files.output.model_plan import ModelPlan
from lbrx.files.output.options import Progress, ProgressCallback, RunKeywords
from lbrx.files.output.plan import digest, file_state, model_state, output_bytes
from lbrx.files.output.run import RunResult, staging_of, tensor_count
from lbrx.files.output.staging import Staging, existing_parent
from lbrx.jobs.convert.file_types import FileType
from lbrx.jobs.convert.model_card import CARD_NAME, card_metadata, card_of
from lbrx.jobs.imatrix.generated import is_generated
from lbrx.jobs.imatrix.imatrix import calibrated
from lbrx.jobs.quantize.budget import Measuring
from lbrx.jobs.quantize.calibration import check_texts, cluster_address
from lbrx.jobs.quantize.feedback import feedback_folder, forget
from lbrx.jobs.quantize.figures import (
    PICTURE_NAME,
    Drawing,
    Output,
    card_text,
    comparable,
    is_there,
    quality_of,
    read_record,
    write_record,
)
from lbrx.jobs.quantize.options import QuantizeOptions, parse_options
from lbrx.jobs.quantize.targets import MlxTarget, model_name, uses_importances
from lbrx.jobs.score.score import score
from lbrx.memory.limits import limited
from lbrx.settings import arithmetic_version

if TYPE_CHECKING:
    from lbrx.jobs.quantize.quantize import QuantizePlan

Planning = Callable[[Path, QuantizeOptions], "QuantizePlan"]
Writing = Callable[[Path, QuantizeOptions, RunKeywords], RunResult]


@dataclass(frozen=True, slots=True)
class Several:
    """What to make: a model, a directory, names of types, and options from texts that all of them share."""

    source: Path
    out: Path
    types: Sequence[str]
    options: Mapping[str, Any]
    texts: Sequence[Path] | None = None
    score_text: Path | None = None
    draw: Drawing | None = None
    feedback_identity: str = ""  # of error feedback, which plans do not know yet

    def choices(self, imatrix_path: Path | None) -> dict[str, QuantizeOptions]:
        """The options of each output by its name. An importance matrix that was measured is for GGUF files."""
        model, found = model_name(self.source), {}
        for name in self.types:
            parsed = parse_options(name, **self.options)
            output = output_name(model, name, parsed)
            if output in found:
                raise UsageError(f"{name!r} is given twice; expected each type once")
            if imatrix_path is not None and uses_importances(parsed.target):
                parsed = replace(parsed, imatrix=imatrix_path)
            found[output] = parsed
        return found


def output_name(model: str, type_name: str, options: QuantizeOptions) -> str:
    """The name of an output, as people name them for llama.cpp and MLX.

    >>> output_name("Llama", "q4_k_m", parse_options("q4_k_m")), output_name("Llama", "mlx_4", parse_options("mlx_4"))
    ('Llama-Q4_K_M.gguf', 'Llama-MLX-4bit')
    """
    target = options.target
    if isinstance(target, FileType):
        return f"{model}-{target.name.upper()}.gguf"
    if not isinstance(target, MlxTarget):
        return f"{model}-{type_name}"
    name = type_name.removeprefix("mlx_")
    return f"{model}-MLX-{name}{'bit' if name.isdigit() else ''}"


def write_several(
    job: Several, plan: Planning, write: Writing, measuring: Measuring | None, options: RunKeywords
) -> RunResult:
    """Write the outputs of a job that was checked; ``plan`` and ``write`` are for one. Returns the sum of results."""
    started = monotonic()
    run = _planned(job, plan, measuring, options)
    plans = run.plans
    run.check()
    results = run.write(write)
    run.finish(measuring)
    return RunResult(
        job.out,
        sum(tensor_count(each.output) for each in plans.values()),
        sum(output_bytes(each.output) for each in plans.values()),
        run.resumed_tensors,
        {f"{name}: {key}": value for name, each in results.items() for key, value in each.nonfinite.items()},
        monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class SeveralPlan:
    """What would be written: the plans of all outputs by their names, which of them are complete, and free bytes."""

    plans: Mapping[str, QuantizePlan]
    complete: frozenset[str]
    free_bytes: int

    @property
    def write_bytes(self) -> int:
        """Bytes of the outputs that are not complete."""
        return sum(each.file_bytes for name, each in self.plans.items() if name not in self.complete)


def plan_several(job: Several, plan: Planning, measuring: Measuring | None, options: RunKeywords) -> SeveralPlan:
    """What `write_several` would do; raises the errors that it raises before it writes."""
    run = _planned(job, plan, measuring, options)
    return SeveralPlan(run.plans, run.complete, run.check())


def _planned(job: Several, plan: Planning, measuring: Measuring | None, options: RunKeywords) -> _Run:
    choices = job.choices(_importances(job, measuring, options))
    with limited(options.get("threads"), options.get("memory")):
        plans = {name: plan(job.out / name, each) for name, each in choices.items()}
    return _Run(job, plans, choices, options)


def check_several(job: Several, overwrite: bool) -> list[QuantizeOptions]:
    """Raise for what can be wrong before texts are run. Returns the options of all outputs."""
    if not job.types:
        raise UsageError("there are no types to quantize to; expected at least one")
    if job.out.suffix in (".gguf", ".safetensors"):
        raise UsageError(f"{job.out}: several outputs need a directory; expected a name without {job.out.suffix}")
    if job.out.exists() and not job.out.is_dir():
        raise FileError(f"{job.out}: is a file; expected a directory to write to")
    if job.texts is not None and job.options.get("imatrix") is not None:
        raise UsageError("--calibrate and --imatrix cannot be used together")
    check_texts(job.texts or ())
    if job.score_text is not None:
        text = read_text(job.score_text)
        if not text:
            raise UsageError(f"{job.score_text}: is empty; expected a text to score")
        if any(text == read_text(each) for each in job.texts or () if not is_generated(each)):
            raise UsageError(f"{job.score_text}: is the text of --calibrate; expected another one to score")
    stand_in = job.source if job.texts is not None else None
    choices, known = job.choices(stand_in), read_record(job.out)  # it is not read here
    for name in choices:
        path = job.out / name
        staging = Staging(path, [name] if path.suffix == ".gguf" else None)
        if name not in known and not staging.journal.exists():
            staging.check_target(overwrite)
    return list(choices.values())


def _importances(job: Several, measuring: Measuring | None, options: RunKeywords) -> Path | None:
    """The importance matrix, which is measured once for all outputs, in their directory."""
    if job.texts is None:
        return None
    make_directory(job.out)
    with computing_on(options.get("device"), None):
        return calibrated(
            job.source, job.out / f"{model_name(job.source)}.gguf", job.texts, measuring, cluster_address(options)
        )


class _Run:
    def __init__(
        self,
        job: Several,
        plans: Mapping[str, QuantizePlan],
        choices: Mapping[str, QuantizeOptions],
        options: RunKeywords,
    ) -> None:
        self._job, self.plans, self._choices, self._options = job, plans, choices, options
        self._record = read_record(job.out)
        self._identities = {name: _identity(each, job.feedback_identity) for name, each in plans.items()}
        self.complete = frozenset(name for name in plans if self._is_done(name))
        self.resumed_tensors = 0

    def check(self) -> int:
        """Raise if an output is in the way, or if there is too little space for all of them. Returns the free bytes."""
        job = self._job
        waiting = [each.output for name, each in self.plans.items() if name not in self.complete]
        overwrite = self._options.get("overwrite", False)
        for each in waiting:
            staging_of(each).check_target(overwrite)
        if not overwrite and (job.out / CARD_NAME).exists() and not self._record and waiting:
            raise FileError(f"{job.out / CARD_NAME}: exists; --overwrite replaces it")
        needed = sum(layout.file_bytes for each in waiting for layout in each.layouts)
        needed -= sum(_allocated_bytes(staging_of(each).partial) for each in waiting)
        free = shutil.disk_usage(existing_parent(job.out)).free
        if needed > free:
            raise FileError(f"{job.out}: disk full: needs {format_bytes(needed)}, has {format_bytes(free)} free")
        return free

    def write(self, write: Writing) -> dict[str, RunResult]:
        """Write the outputs that are missing."""
        make_directory(self._job.out)
        outputs = [each.output for each in self.plans.values()]
        if (planned := self._options.get("planned")) is not None:
            planned(_combined(self._job.out, self.plans))
        total_bytes, total_tensors = sum(map(output_bytes, outputs)), sum(map(tensor_count, outputs))
        done_bytes = done_tensors = 0
        results = {}
        for name, each in self.plans.items():
            if name in self.complete:
                self.resumed_tensors += tensor_count(each.output)
                forget(feedback_folder(self._job.out / name))  # a run that was killed may not have done it
            else:
                start = (done_bytes, total_bytes, done_tensors, total_tensors)
                results[name] = self._written(name, write, _shifted(self._options.get("progress"), name, *start))
            done_bytes += output_bytes(each.output)
            done_tensors += tensor_count(each.output)
        return results

    def _written(self, name: str, write: Writing, progress: ProgressCallback | None) -> RunResult:
        plan, target = self.plans[name], self._choices[name].to
        output = Output(name, str(target), self._identities[name], plan.file_bytes, _bits(plan))
        self._note(replace(output, states_before=_states_or_none(plan)))
        options: RunKeywords = {**self._options, "progress": progress, "planned": None}
        result = write(self._job.out / name, self._choices[name], options)
        self.resumed_tensors += result.resumed_tensors
        self._note(replace(output, states=_states(plan)))
        return result

    def _note(self, *outputs: Output) -> None:
        """Add outputs to the record, which another run into the directory may have changed."""
        self._record |= read_record(self._job.out)
        self._record |= {output.name: output for output in outputs}
        write_record(self._job.out, self._record)

    def _is_done(self, name: str) -> bool:
        """Whether an earlier run wrote this output, and it has not changed since."""
        known = self._record.get(name)
        if known is None or known.identity != self._identities[name]:
            return False
        states = _states_or_none(self.plans[name])
        if states is None or known.states is not None:
            return states is not None and known.states == states
        return known.states_before != states and self._was_published(name, states)

    def _was_published(self, name: str, states: Mapping[str, Sequence[Any]]) -> bool:
        """Whether a run that was killed had given an output its name, but not noted that."""
        if staging_of(self.plans[name].output).journal.exists():
            return False
        for layout in self.plans[name].output.layouts:
            with _file(self.plans[name], layout).open("rb") as file:
                if states[layout.name][0] != layout.file_bytes or file.read(len(layout.header)) != layout.header:
                    return False
        self._note(replace(self._record[name], states=states))
        return True

    # -- figures -----------------------------------------------------------------------------------------------------

    def finish(self, measuring: Measuring | None) -> None:
        """Measure outputs whose quality is not known, draw them, and write the model card."""
        job = self._job
        if job.score_text is not None:
            self._score(read_text(job.score_text), job.score_text.name, measuring)
        record = self._record | read_record(job.out)  # another run may have added outputs
        outputs = [record[name] for name in sorted(record) if record[name].states is not None]
        outputs = [each for each in outputs if is_there(job.out, each)]
        outputs = comparable(outputs, next(iter(self.plans)))
        has_picture = job.draw is not None and sum(each.quality is not None for each in outputs) > 0
        if has_picture and job.draw is not None:
            job.draw(job.out / PICTURE_NAME, outputs)
        text = card_text(_head(job.source), model_name(job.source), outputs, has_picture)
        write_atomically(job.out / CARD_NAME, text.encode())

    def _score(self, text: str, text_name: str, measuring: Measuring | None) -> None:
        job, states = self._job, model_state(self._job.source)
        given = repr((arithmetic_version(), str(job.source.resolve()), states)).encode()
        wanted = {name: digest(text.encode(), given, self._identities[name].encode()) for name in self.plans}
        missing = [
            name
            for name, identity in wanted.items()
            if (quality := self._record[name].quality) is None or quality.identity != identity
        ]
        if not missing:
            return
        paths = [_opened_path(self.plans[name]) for name in missing]
        threads, device = self._options.get("threads"), self._options.get("device")
        first, *others = score(paths, text, reference=job.source, progress=measuring, threads=threads, device=device)
        scored = []
        for name, each in zip(missing, others, strict=True):
            quality = quality_of(wanted[name], each, first, text_name, digest(text.encode()))
            scored.append(replace(self._record[name], quality=quality))
        self._note(*scored)


def _identity(plan: QuantizePlan, feedback: str) -> str:
    contents = {file.name: file.read() for file in plan.output.side_files}
    return digest(repr(sorted(plan.output.identity(contents).items(), key=str)).encode(), feedback.encode())


def _states(plan: QuantizePlan) -> dict[str, list[int | str]]:
    return {layout.name: file_state(_file(plan, layout)) for layout in plan.output.layouts}


def _states_or_none(plan: QuantizePlan) -> dict[str, list[int | str]] | None:
    """The states of the files, or None if one is missing."""
    try:
        return _states(plan)
    except FileError:
        return None


def _allocated_bytes(directory: Path) -> int:
    """The bytes on the disk of the files that a stopped run has begun."""
    files = directory.iterdir() if directory.is_dir() else ()
    return sum(512 * file.stat().st_blocks for file in files)


def _file(plan: QuantizePlan, layout: FileLayout) -> Path:
    out = plan.output.out
    return out / layout.name if plan.output.is_directory else out.with_name(layout.name)


def _opened_path(plan: QuantizePlan) -> Path:
    """What the output is opened by: the directory, the file, or its first shard."""
    return plan.output.out if plan.output.is_directory else _file(plan, plan.output.layouts[0])


def _bits(plan: QuantizePlan) -> float:
    return plan.quantization.bits_per_weight


def _combined(out: Path, plans: Mapping[str, QuantizePlan]) -> ModelPlan:
    """The plans of all outputs as one, for reports: it cannot be run."""
    outputs = [each.output for each in plans.values()]
    layouts = tuple(layout for each in outputs for layout in each.layouts)
    warnings = tuple(dict.fromkeys(warning for each in outputs for warning in each.warnings))
    return ModelPlan(out, True, layouts, (), {}, outputs[0].sources, warnings=warnings)


def _shifted(
    callback: ProgressCallback | None, name: str, bytes_before: int, all_bytes: int, tensors_before: int, tensors: int
) -> ProgressCallback | None:
    """A callback for one output that reports how far all of them are."""
    if callback is None:
        return None

    def shifted(state: Progress) -> None:
        callback(
            Progress(
                bytes_before + state.done_bytes,
                all_bytes,
                tensors_before + state.done_tensors,
                tensors,
                f"{name}/{state.tensor}",
                state.at_hand,
                bytes_before + state.resumed_bytes,
            )
        )

    return shifted


def _head(source: Path) -> bytes:
    """The YAML of the card: what the source says of name, licence and languages."""
    checkpoint = open_checkpoint(source)
    metadata = dict(checkpoint.metadata) if checkpoint.format.startswith("gguf") else card_metadata(source)
    return next((file.read() for file in card_of(metadata)), b"")
