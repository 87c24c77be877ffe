"""``quantize``: a model in, the same model in fewer bits out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.device import computing_on
from lbrx.errors import UsageError
from lbrx.files.formats.source import read_text
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.contents import Contents
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import RunKeywords, takes_run_options
from lbrx.files.output.plan import DEFAULT_SHARD_BYTES, NO_LIMIT_BYTES, digest, file_state, named_path, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.convert.file_types import FileType
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.quantize.budget import Measuring
from lbrx.jobs.quantize.calibration import (
    calibrated_options,
    calibrating,
    cluster_address,
    files_of_one,
    parse_before_calibration,
    texts_of_run,
)
from lbrx.jobs.quantize.coded import Quantization
from lbrx.jobs.quantize.feedback import check_shrink, encode_layers, folder_identity, forget
from lbrx.jobs.quantize.feedback_encoding import piece_encoder
from lbrx.jobs.quantize.feedback_pieces import feedback_warnings
from lbrx.jobs.quantize.feedback_wanted import FeedbackJob
from lbrx.jobs.quantize.figures import Drawing
from lbrx.jobs.quantize.gguf_model import check_requantized, quantize_gguf
from lbrx.jobs.quantize.hf_model import quantize_hf
from lbrx.jobs.quantize.integer_model import quantize_integers
from lbrx.jobs.quantize.kept_split import lay_out_as_source
from lbrx.jobs.quantize.mlx_model import quantize_mlx
from lbrx.jobs.quantize.options import QuantizeOptions, TypeOverride, parse_options
from lbrx.jobs.quantize.sensitivity import identity_of
from lbrx.jobs.quantize.target_format import check_output_format, in_target_format
from lbrx.jobs.quantize.targets import HfTarget, MlxTarget, model_name
from lbrx.memory.limits import limited
from lbrx.ops.feedback_factors import DEFAULT_SHRINK

if TYPE_CHECKING:
    from lbrx.jobs.quantize.several import Several, SeveralPlan


@dataclass(frozen=True, eq=False)
class QuantizePlan:
    """What will be written, and how every tensor came to its type."""

    output: ModelPlan
    quantization: Quantization

    @property
    def file_bytes(self) -> int:
        """Bytes of all files of weights, headers included."""
        return sum(layout.file_bytes for layout in self.output.layouts)


@takes_run_options
def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str | Sequence[str] | None = None,
    *,
    target_bpw: float | None = None,
    target_size: str | int | None = None,
    candidates: str | Sequence[str] | None = None,
    tensor_types: Sequence[str] = (),
    tensor_type_file: str | Path | None = None,
    output_type: str | None = None,
    embedding_type: str | None = None,
    pure: bool = False,
    leave_output: bool = False,
    imatrix: str | Path | None = None,
    calibrate: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    feedback: bool = False,
    shrink: float = DEFAULT_SHRINK,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    group_size: int | None = None,
    override_kv: Sequence[str] = (),
    prune_layers: str | Iterable[int] = (),
    keep_split: bool = False,
    allow_requantize: bool = False,
    score: str | os.PathLike[str] | None = None,
    draw: Drawing | None = None,
    max_shard_bytes: int | str | None = None,
    measuring: Measuring | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Quantize a model of any format that lbrx reads.

    ``to`` is a GGUF file type (``"q4_k_m"``), a coding of MLX (``"mlx_4"``, ``"mixed_3_6"``), one for transformers
    and vLLM (``"ct_int4"``, ``"gptq_4"``), or plain integers (``"int4"``). With several of them, in a list or with
    commas between them, ``out`` is a directory of models with a card; ``score`` is a text on which the quality of
    each is measured, and ``draw`` draws it. ``target_bpw`` or ``target_size`` is given instead to choose types for
    a size among ``candidates``, and ``measuring`` is called for each tensor that is measured. ``calibrate`` is a
    text, or texts, for which an importance matrix is measured first; it stays beside ``out`` and is used again.
    ``"generated"`` is a text that the model writes itself, followed by that of this package. With ``feedback``,
    errors of columns are made up for by later columns, as these texts say; ``shrink`` is 0 if
    the texts are like those that the model will see, up to 1. ``tensor_types`` are texts such as
    ``"ffn_down=q6_k"`` and ``override_kv`` such as ``"a.b=int:3"``. The last options are those of
    `lbrx.files.output.options.RunOptions`. Call it again with the same arguments to resume a run that was stopped.

    >>> import lbrx, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> tensors = {"blk.0.ffn_up.weight": lbrx.normal((512, 256), seed=1).to("bf16")}
    >>> lbrx.save(f"{folder}/a.gguf", tensors, {"general.architecture": "llama", "llama.block_count": 1})
    >>> quantize(f"{folder}/a.gguf", f"{folder}/b.gguf", "q4_k_m").written_bytes
    73728
    >>> lbrx.open(f"{folder}/b.gguf")["blk.0.ffn_up.weight"].type_name
    'q4_k'
    """
    if shrink != DEFAULT_SHRINK and not feedback:
        raise UsageError("--shrink needs --feedback")
    choices: dict[str, Any] = {
        "target_bpw": target_bpw,
        "target_size": target_size,
        "candidates": candidates,
        "tensor_types": tensor_types,
        "tensor_type_file": tensor_type_file,
        "output_type": output_type,
        "embedding_type": embedding_type,
        "pure": pure,
        "leave_output": leave_output,
        "imatrix": imatrix,
        "include_weights": include_weights,
        "exclude_weights": exclude_weights,
        "group_size": group_size,
        "override_kv": override_kv,
        "prune_layers": prune_layers,
        "keep_split": keep_split,
        "allow_requantize": allow_requantize,
    }
    texts = None if calibrate is None else list(paths_of(calibrate))
    target = named_path(Path(out))
    one = _One(source, texts, feedback, shrink, max_shard_bytes, measuring)
    names = several_names(to, score is not None)
    if names is not None:
        from lbrx.jobs.quantize.several import Several, write_several

        job = Several(Path(source), target, names, choices, texts, None if score is None else Path(score), draw)
        with _checked(job, one, options) as checked:
            return write_several(checked, one.planned, one.written, measuring, options)
    choices["to"] = to if isinstance(to, str) else None
    if texts is None:
        parsed = parse_options(**choices)
        one.check(parsed)
        return one.written(target, parsed, options)
    parsed = parse_before_calibration(target, choices, texts)
    one.check(parsed)
    file_names = [target.name] if isinstance(parsed.target, FileType) else None
    Staging(target, file_names).check_target(options.get("overwrite", False))  # before the long part
    _check_source(source, [parsed if parsed.has_size else replace(parsed, imatrix=target)])
    with calibrating(files_of_one(Path(source), target, parsed), measuring):
        texts[:] = texts_of_run(source, target, texts, options, measuring)
        with limited(options.get("threads"), None):
            parsed = calibrated_options(
                source, target, choices, texts, options.get("device"), measuring, cluster_address(options)
            )
        return one.written(target, parsed, options)


def plan_several_outputs(
    source: Path,
    out: Path,
    names: Sequence[str],
    choices: Mapping[str, Any],
    *,
    calibrate: Sequence[Path] | None = None,
    score: Path | None = None,
    feedback: bool = False,
    shrink: float = DEFAULT_SHRINK,
    max_shard_bytes: int | str | None = None,
    measuring: Measuring | None = None,
    options: RunKeywords,
) -> SeveralPlan:
    """What ``quantize`` would do for several types. ``choices`` are its options that decide what an output is."""
    from lbrx.jobs.quantize.several import Several, plan_several

    texts = None if calibrate is None else list(calibrate)
    one = _One(source, texts, feedback, shrink, max_shard_bytes, measuring)
    with _checked(Several(source, named_path(out), names, choices, texts, score), one, options) as job:
        return plan_several(job, one.planned, measuring, options)


@contextmanager
def _checked(job: Several, one: _One, options: RunKeywords) -> Iterator[Several]:
    """A job with several outputs that was checked, and whose texts are there; no other run uses what it measures."""
    from lbrx.jobs.quantize.several import check_several

    for each in check_several(job, options.get("overwrite", False)):
        one.check(each)
    if one.texts is None:
        yield job
        return
    choices = job.choices(job.out)
    _check_source(job.source, choices.values())
    stems = [name.removesuffix(".gguf") for name in (model_name(job.source), *choices)]
    with calibrating([job.out, *(job.out / stem for stem in stems)], one.measuring):
        texts = texts_of_run(job.source, job.out, one.texts, options, one.measuring)
        one.texts[:] = texts
        yield replace(job, texts=texts, feedback_identity=one.feedback_identity())


def several_names(to: str | Sequence[str] | None, is_scored: bool = False) -> list[str] | None:
    """The types of an output that is a directory of models; None if it is one model.

    >>> several_names("q4_k_m, q8_0"), several_names("q4_k_m")
    (['q4_k_m', 'q8_0'], None)
    """
    if to is None or (isinstance(to, str) and "," not in to and not is_scored):
        return None
    given = to.split(",") if isinstance(to, str) else to
    return [name.strip().lower() for name in given if name.strip()]


def paths_of(text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """One path, or several."""
    return tuple(Path(one) for one in ([text] if isinstance(text, str | os.PathLike) else text))


@dataclass(frozen=True, slots=True)
class _One:
    """Plans and writes one model."""

    source: str | os.PathLike[str]
    texts: list[Path] | None
    feedback: bool
    shrink: float
    max_shard_bytes: int | str | None
    measuring: Measuring | None

    def check(self, choices: QuantizeOptions) -> None:
        """Raise if error feedback is asked for and not possible."""
        if not self.feedback:
            return
        if self.texts is None:
            raise UsageError("--feedback needs --calibrate, a text whose inputs of layers are measured")
        if choices.prune_layers:
            raise UsageError("--feedback cannot be used with --prune-layers")
        check_shrink(self.shrink)

    def feedback_identity(self) -> str:
        """What error feedback depends on besides the model and the types."""
        if not self.feedback:
            return ""
        return digest(repr(self.shrink).encode(), *(read_text(text).encode() for text in self.texts or ()))

    def planned(self, out: Path, choices: QuantizeOptions) -> QuantizePlan:
        return plan_quantize(self.source, out, choices, max_shard_bytes=self.max_shard_bytes, measuring=self.measuring)

    def written(self, out: Path, choices: QuantizeOptions, options: RunKeywords) -> RunResult:
        if self.feedback and self.texts is not None:
            choices = _with_feedback(self.source, out, choices, self.texts, self.shrink, options, self.measuring)
        plan_call = partial(plan_output_of_quantize, self.source, out, choices, max_shard_bytes=self.max_shard_bytes)
        result = plan_and_execute(plan_call, options, measuring=self.measuring)
        if choices.feedback is not None:
            forget(choices.feedback)
        return result


def _check_source(source: str | os.PathLike[str], choices: Iterable[QuantizeOptions]) -> None:
    """Raise if the model is quantized already, before texts are run."""
    with reading(source):
        contents = read_contents(Path(source))
        for options in choices:
            own = in_target_format(contents, options)
            if isinstance(options.target, FileType):
                check_requantized(own, options)


def _with_feedback(
    source: str | os.PathLike[str],
    out: Path,
    choices: QuantizeOptions,
    texts: Sequence[Path],
    shrink: float,
    options: RunKeywords,
    measuring: Measuring | None,
) -> QuantizeOptions:
    """Encode the layers first; the options then name their folder."""
    with limited(options.get("threads"), options.get("memory")), computing_on(options.get("device"), None):
        plan = plan_quantize(source, out, choices, measuring=measuring)
        path = Path(source)
        with piece_encoder(
            _feedback_job(path, out, choices), cluster_address(options), options.get("threads")
        ) as encoder:
            folder = encode_layers(path, out, plan.quantization, texts, shrink, measuring, encoder)
    return replace(choices, feedback=folder)


def _feedback_job(source: Path, out: Path, choices: QuantizeOptions) -> FeedbackJob:
    """The job for workers of a cluster, which see the same files at the same paths."""
    imatrix, sensitivity = (each and each.resolve() for each in (choices.imatrix, choices.sensitivity))
    own = replace(choices, imatrix=imatrix, sensitivity=sensitivity)
    return FeedbackJob(source.resolve(), partial(plan_quantize, source.resolve(), out.absolute(), own))


def plan_output_of_quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: QuantizeOptions,
    *,
    max_shard_bytes: int | str | None = None,
    measuring: Measuring | None = None,
) -> ModelPlan:
    """What ``quantize`` writes for these arguments."""
    return plan_quantize(source, out, options, max_shard_bytes=max_shard_bytes, measuring=measuring).output


def plan_quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: QuantizeOptions,
    *,
    max_shard_bytes: int | str | None = None,
    measuring: Measuring | None = None,
) -> QuantizePlan:
    """What ``quantize`` would do. Weights are read only where types are chosen by their errors, and then a few rows;
    ``measuring`` is called for each tensor that is read."""
    path = Path(out)
    is_gguf = isinstance(options.target, FileType)
    check_output_format(path, options)
    if options.target_bytes is not None and (max_shard_bytes is not None or options.keep_split):
        raise UsageError("a target size is that of one file, without shards; give bits per weight instead")
    restore_replaced(Staging(path))  # it may be the source
    with reading(source):
        quantization = plan_contents(read_contents(Path(source)), options, measuring)
    limit_bytes = shard_limit(max_shard_bytes, NO_LIMIT_BYTES if is_gguf else DEFAULT_SHARD_BYTES)
    output = plan_output(quantization.contents, path, max_shard_bytes=limit_bytes, settings_identity=_identity(options))
    if options.keep_split:
        layouts = lay_out_as_source(quantization.contents, path.name.removesuffix(".gguf"), quantization.old_names)
        output = replace(output, layouts=layouts)
    names = [tensor.source.name for tensor in quantization.coded]
    measured = () if options.feedback is None else feedback_warnings(options.feedback)
    output = replace(output, warnings=(*output.warnings, *_unmatched(options.overrides, names), *measured))
    return QuantizePlan(output, quantization)


def _unmatched(overrides: Sequence[TypeOverride], names: Sequence[str]) -> Iterator[str]:
    """A warning for each --tensor-type whose pattern no tensor's name matches."""
    example = f", such as {names[0]!r}" if names else ""
    for override in overrides:
        if not any(map(override.matches, names)):
            text = f"{override.pattern}={override.type_name}"
            yield f"--tensor-type {text}: matches none of the {len(names)} names of tensors{example}"


def quantized(contents: Contents, options: QuantizeOptions) -> Contents:
    """A model in fewer bits, in the format that the target demands; nothing is computed until it is written.

    >>> import lbrx
    >>> from lbrx.files.output.contents import PlannedTensor
    >>> up = PlannedTensor.of("blk.0.ffn_up.weight", lbrx.normal((512, 256), seed=1))
    >>> model = Contents("gguf", (up,), {"general.architecture": "llama", "llama.block_count": 1})
    >>> quantized(model, QuantizeOptions("q6_k")).tensors[0].type_name
    'q6_k'
    """
    return plan_contents(contents, options).contents


def plan_contents(contents: Contents, options: QuantizeOptions, measuring: Measuring | None = None) -> Quantization:
    """A model in fewer bits, with the choice for each of its tensors."""
    contents, target = in_target_format(contents, options), options.target
    if isinstance(target, FileType):
        return quantize_gguf(contents, options, measuring)
    if isinstance(target, MlxTarget):
        return quantize_mlx(contents, options, measuring)
    return quantize_hf(contents, options) if isinstance(target, HfTarget) else quantize_integers(contents, options)


def _identity(options: QuantizeOptions) -> dict[str, Any]:
    identity = options.identity()
    if options.imatrix is not None:
        identity["importance matrix (--imatrix)"] = [str(options.imatrix), *file_state(options.imatrix)]
    if options.sensitivity is not None:
        identity["measured sensitivity (--calibrate)"] = identity_of(options.sensitivity)
    if options.feedback is not None:
        identity["error feedback (--feedback)"] = folder_identity(options.feedback)
    return identity
