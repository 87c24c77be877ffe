"""`lbrx quantize`: quantize a model."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lbrx.cli.options import Cluster, Device, DryRun, LimitOptions, RunOptions, type_names
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model, check_output_name
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError

_LEAST_DRAWN = 1e-6  # nats

if TYPE_CHECKING:
    from lbrx.jobs.quantize.quantize import QuantizePlan


def quantize(
    source: Annotated[Path, Argument("A model directory, or a GGUF or SafeTensors file.", "IN")],
    out: Annotated[Path, Argument("The .gguf file to write; a directory for all other types.")],
    *,
    to: Annotated[
        str | None,
        Option(
            metavar="TYPE",
            help="q4_k_m, ... for GGUF; mlx_4, ... for MLX; ct_int4, gptq_4, ... for vLLM ('lbrx types' lists all). "
            "Several with commas: OUT is a directory.",
            values=type_names,
        ),
    ] = None,
    target_bpw: Annotated[
        float | None,
        Option(metavar="BITS", help="Choose a type per tensor to use at most BITS bits per weight on average."),
    ] = None,
    target_size: Annotated[
        str | None,
        Option(metavar="SIZE", help="Choose a type per tensor to get a file of at most this size, such as 4GB."),
    ] = None,
    candidates: Annotated[
        str | None,
        Option(metavar="TYPES", help="Types to choose from with --target-bpw or --target-size, comma-separated."),
    ] = None,
    tensor_type: Annotated[
        list[str] | None,
        Option(
            metavar="PATTERN=TYPE",
            help="Type of tensors whose name matches. The first match wins.",
        ),
    ] = None,
    tensor_type_file: Annotated[
        Path | None, Option(metavar="FILE", help="A file with more PATTERN=TYPE, separated by white space.")
    ] = None,
    output_type: Annotated[str | None, Option(metavar="TYPE", help="Type of the output matrix.")] = None,
    embedding_type: Annotated[str | None, Option(metavar="TYPE", help="Type of the token embedding.")] = None,
    pure: Annotated[bool, Option("--pure", help="Use one type for all tensors instead of a mix.")] = False,
    leave_output: Annotated[bool, Option("--leave-output", help="Do not quantize the output matrix.")] = False,
    imatrix: Annotated[Path | None, Option(metavar="FILE", help="An importance matrix from llama.cpp.")] = None,
    calibrate: Annotated[
        list[Path] | None,
        Option(
            metavar="FILE",
            help="Measure an importance matrix for this text first; 'generated': let the model write one. "
            "Can be repeated.",
        ),
    ] = None,
    feedback: Annotated[
        bool, Option("--feedback", help="With --calibrate: let later columns make up for the errors of earlier ones.")
    ] = False,
    shrink: Annotated[
        float,
        Option(help="With --feedback: 0 for texts like those of later use, up to 1 for others."),
    ] = 0.2,
    score: Annotated[
        Path | None,
        Option(metavar="FILE", help="With several types: measure the quality of each on this text, for the card."),
    ] = None,
    plot: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="With a size and --calibrate: draw expected divergence against size, as front.png."
        ),
    ] = None,
    include_weights: Annotated[
        list[str] | None, Option(metavar="TEXT", help="Use importances only of tensors whose names contain TEXT.")
    ] = None,
    exclude_weights: Annotated[
        list[str] | None, Option(metavar="TEXT", help="Do not use importances of tensors whose names contain TEXT.")
    ] = None,
    group_size: Annotated[int | None, Option(min=1, help="Weights per scale, for MLX and integer types.")] = None,
    override_kv: Annotated[
        list[str] | None,
        Option(metavar="KEY=TYPE:VALUE", help="Set a metadata key."),
    ] = None,
    prune_layers: Annotated[str | None, Option(metavar="LAYERS", help="Remove layers, such as 20,22-24.")] = None,
    keep_split: Annotated[bool, Option("--keep-split", help="Split the output into the same shards as IN.")] = False,
    allow_requantize: Annotated[
        bool, Option("--allow-requantize", help="Accept a model that is already quantized.")
    ] = False,
    dry_run: DryRun = False,
    tensors: Annotated[bool, Option("--tensors", help="With --dry-run: list every tensor, its type and why.")] = False,
    limits: LimitOptions,
    options: RunOptions,
    cluster: Cluster = None,
    device: Device = "cpu",
) -> None:
    """Quantize a model to GGUF, to MLX, or for vLLM and transformers.

    Quantizes a Hugging Face directory to a GGUF file in one pass. Types are mixed like llama-quantize does. With
    --target-bpw or --target-size, each tensor gets the type that keeps the measured error lowest. Memory does not grow
    with the model. If the run stops, run the same command to resume.

    Examples:

      lbrx quantize Llama-3.2-1B llama.gguf --to q4_k_m

      lbrx quantize llama-bf16.gguf llama.gguf --to q4_k_m --imatrix imatrix.gguf --tensor-type 'ffn_down=q6_k'

      lbrx quantize Llama-3.1-8B llama.gguf --target-size 4GB --dry-run

      lbrx quantize Llama-3.1-8B llama.gguf --target-size 4GB --calibrate calibration.txt --plot front.png

      lbrx quantize Llama-3.2-1B Llama-mlx --to mixed_3_6

      lbrx quantize Llama-3.2-1B outputs --to q4_k_m,q5_k_m,q8_0,mlx_4 --calibrate a.txt --score b.txt

      lbrx quantize Llama-3.2-1B Llama-w4 --to ct_int4
    """
    from lbrx.cli.several import show_several, write_several
    from lbrx.jobs.quantize.calibration import (
        calibrated_options,
        calibrating,
        files_of_one,
        parse_before_calibration,
    )
    from lbrx.jobs.quantize.options import parse_options
    from lbrx.jobs.quantize.quantize import plan_quantize, several_names
    from lbrx.jobs.quantize.quantize import quantize as quantize_model

    choices: dict[str, Any] = {
        "to": to,
        "target_bpw": target_bpw,
        "target_size": target_size,
        "candidates": candidates,
        "tensor_types": tensor_type or (),
        "tensor_type_file": tensor_type_file,
        "output_type": output_type,
        "embedding_type": embedding_type,
        "pure": pure,
        "leave_output": leave_output,
        "imatrix": imatrix,
        "include_weights": include_weights or (),
        "exclude_weights": exclude_weights or (),
        "group_size": group_size,
        "override_kv": override_kv or (),
        "prune_layers": prune_layers or (),
        "keep_split": keep_split,
        "allow_requantize": allow_requantize,
    }
    names = several_names(to, score is not None)
    with reporting("quantizing", options) as report:
        if names is not None:
            _check_used(tensors=tensors, candidates=candidates is not None)
            calibration: dict[str, Any] = {"calibrate": calibrate or None, "feedback": feedback, "shrink": shrink}
            if dry_run:
                with planning_for(limits, report, device, cluster):
                    show_several(source, out, names, choices, score, calibration, limits, options, report, cluster)
                return
            given = {**choices, "to": names, **calibration}
            run = partial(write_output, report=report, limits=limits, options=options, device=device, cluster=cluster)
            write_several(source, out, given, score, run, limits, options)
            return
        if score is not None:
            raise UsageError("--score needs --to with several types")
        _check_plot(plot, is_measured=to is None and bool(calibrate))
        parsed = parse_before_calibration(out, choices, calibrate) if calibrate else parse_options(**choices)
        _check_used(tensors=tensors and not dry_run, candidates=candidates is not None and to is not None)
        check_model(source)
        check_output_name(out, None)
        with ExitStack() as status:
            measuring = status.enter_context(shown_progress("measuring"))
            planning: dict[str, Any] = {"max_shard_bytes": limits.shard_size, "measuring": measuring}
            if not dry_run:
                calibration = {"calibrate": calibrate or None, "feedback": feedback, "shrink": shrink}
                write = partial(quantize_model, source, out, **choices, **calibration, **planning)
                write_output(
                    write,
                    report,
                    limits,
                    options,
                    status=status,
                    device=device,
                    cluster=cluster,
                    next_command=shlex.join(["lbrx", "score", str(out), "--reference", str(source), "--text", "FILE"]),
                )
                if plot is None:
                    return
            files = files_of_one(source, out, parsed) if calibrate else []
            with planning_for(limits, report, device, cluster), calibrating(files, measuring):
                if calibrate:
                    parsed = calibrated_options(source, out, choices, calibrate, device, measuring, cluster)
                plan = plan_quantize(source, out, parsed, **planning)
                status.close()
                if plot is not None:
                    _draw_front(plot, plan)
                    if not dry_run:
                        return
                report.warnings(plan.output.warnings)
                _show(plan, options, with_tensors=tensors)


def _check_plot(plot: Path | None, *, is_measured: bool) -> None:
    if plot is None:
        return
    from lbrx.plots.heat_map import check_picture

    if not is_measured:
        raise UsageError("--plot needs --calibrate, and --target-size or --target-bpw")
    check_picture(plot)


def _draw_front(plot: Path, plan: QuantizePlan) -> None:
    """Draw the expected divergence of the best choices for all sizes, and the one that was taken."""
    from lbrx.plots.size_against_divergence import Point, draw_points

    found, error = plan.quantization, plan.quantization.total_error or 0.0
    line = [Point("", nbytes, value, value, value) for nbytes, value in found.front if value > _LEAST_DRAWN]
    chosen = Point(plan.output.out.name, found.nbytes, error, error, error)
    draw_points(plot, [chosen], "Expected divergence of the best types for each size", line)


def _check_used(*, tensors: bool, candidates: bool) -> None:
    """Raise for options that have no effect."""
    if tensors:
        raise UsageError("--tensors needs --dry-run")
    if candidates:
        raise UsageError("--candidates needs --target-bpw or --target-size; it cannot be used with --to")


def _show(plan: QuantizePlan, options: RunOptions, *, with_tensors: bool) -> None:
    """Print the plan."""
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import columns, count_text, output_console, plural
    from lbrx.cli.dry_run import show_plan

    quantization, console = plan.quantization, output_console()
    error = quantization.total_error
    rows = [("parameters", f"{count_text(quantization.parameters)} in {plural(len(quantization.coded), 'tensor')}")]
    costs = [] if error is None else [("measured error", f"{error:.6g}")]
    show_plan(plan.output, options, inputs=rows, costs=costs, fields=_plan_fields(plan))
    if options.json_output:
        return
    table = columns("type", "tensors", "weights", "bytes", "bits", left=("type",))
    for row in quantization.type_totals():
        bits = f"{8 * row.nbytes / max(row.elements, 1):.3f}"
        table.add_row(row.type_name, f"{row.tensors:,}", count_text(row.elements), format_bytes(row.nbytes), bits)
    console.print()
    console.print(table)
    if with_tensors:
        console.print()
        console.print(_tensor_table(plan))


def _tensor_table(plan: QuantizePlan) -> object:
    from lbrx.cli.console import columns, printable, shape_text

    table = columns("from", "to", "shape", "name", "why", left=("name", "why"))
    table.columns[0].justify = table.columns[1].justify = "left"
    table.columns[-1].no_wrap = False
    for tensor in plan.quantization.coded:
        source, choice = tensor.source, tensor.choice
        table.add_row(
            source.type_name,
            choice.type_name,
            shape_text(source.shape),
            printable(source.name),
            printable(choice.reason),
        )
    return table


def _plan_fields(plan: QuantizePlan) -> dict[str, object]:
    quantization = plan.quantization
    return {
        "parameters": quantization.parameters,
        "bits_per_weight": quantization.bits_per_weight,
        "measured_error": quantization.total_error,
        "types": {
            row.type_name: {"tensors": row.tensors, "elements": row.elements, "bytes": row.nbytes}
            for row in quantization.type_totals()
        },
        "tensors": [
            {
                "name": tensor.source.name,
                "shape": list(tensor.source.shape),
                "from": tensor.source.type_name,
                "to": tensor.choice.type_name,
                "bytes": tensor.nbytes,
                "reason": tensor.choice.reason,
            }
            for tensor in quantization.coded
        ],
    }
