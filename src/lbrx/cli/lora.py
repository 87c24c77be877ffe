"""`lbrx lora`: extract, merge, combine and convert LoRA adapters."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import click

from lbrx.cli.options import LimitOptions, Memory, RunOptions, Threads
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.cli.status import shown_progress
from lbrx.errors import UsageError
from lbrx.memory.limits import limited


class Action(StrEnum):
    """What to do."""

    extract = "extract"
    merge = "merge"
    combine = "combine"
    convert = "convert"


class AdapterType(StrEnum):
    """The dtype of the factors."""

    f32 = "f32"
    bf16 = "bf16"
    f16 = "f16"


_ARGUMENTS = {
    Action.extract: "FINETUNED BASE OUT",
    Action.merge: "BASE ADAPTER [ADAPTER...] OUT",
    Action.combine: "ADAPTER ADAPTER [ADAPTER...] OUT",
    Action.convert: "ADAPTER OUT",
}


def _combinations() -> Sequence[str]:
    from lbrx.jobs.lora.combine import COMBINATIONS

    return COMBINATIONS


def lora(
    action: Annotated[Action, Argument("What to do.", "ACTION")],
    paths: Annotated[
        list[str],
        Argument("; ".join(f"{action}: {text}" for action, text in _ARGUMENTS.items()) + ".", "PATH..."),
    ],
    rank: Annotated[
        int | None,
        Option(
            "--rank",
            min=1,
            help="extract: rank of each matrix (default: 32), with --max-error the largest one (default: no limit). "
            "combine: the rank of a combination with svd (default: the largest one) or knots (default: exact).",
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        Option("--max-error", help="extract: the smallest rank per matrix with at most this relative error."),
    ] = None,
    modules: Annotated[
        str | None, Option("--modules", metavar="REGEX", help="extract: only modules whose name matches.")
    ] = None,
    exclude: Annotated[
        str | None, Option("--exclude", metavar="REGEX", help="extract: no modules whose name matches.")
    ] = None,
    save_modules: Annotated[
        bool, Option("--save-modules", help="extract: store changed embeddings, norms and biases in full.")
    ] = False,
    save_module: Annotated[
        list[str] | None,
        Option("--save-module", metavar="NAME", help="extract: store this module in full, such as lm_head."),
    ] = None,
    method: Annotated[
        str, Option("--method", help="combine: cat, svd, linear, ties, ties_svd, knots_ties, ...", values=_combinations)
    ] = "cat",
    weight: Annotated[
        str | None, Option(metavar="W[,W...]", help="combine: the weight of each adapter (default: 1).")
    ] = None,
    density: Annotated[
        float | None, Option(help="combine: share of elements that ties, dare and magnitude_prune keep.")
    ] = None,
    seed: Annotated[int, Option(help="combine: random seed of dare.")] = 0,
    format: Annotated[
        str | None,
        Option(help="combine, convert: peft, mlx or gguf.", values=lambda: ("peft", "mlx", "gguf")),
    ] = None,
    base: Annotated[
        str | None, Option(metavar="MODEL", help="combine, convert: the base model, if GGUF needs its config.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="merge: print the plan without running it.")] = False,
    dtype: Annotated[AdapterType | None, Option("--dtype", help="Dtype of the adapter's tensors.")] = None,
    threads: Threads = None,
    memory: Memory = None,
    tensors: Annotated[bool, Option("--tensors", help="extract: list every tensor.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Extract, merge, combine or convert LoRA adapters.

    'extract' replaces the change of each weight matrix with its best low-rank approximation and measures how much of
    the change it captures. 'merge' adds adapters to their base. 'combine' makes one adapter of several; cat is exact,
    its rank is the sum of the ranks. 'convert' writes an adapter of PEFT, MLX or llama.cpp in another format.

    Examples:

      lbrx lora extract fine-tuned base adapter --rank 16

      lbrx lora extract fine-tuned base adapter --max-error 0.05 --save-modules

      lbrx lora extract fine-tuned base adapter --modules self_attn --exclude k_proj --dtype bf16

      lbrx lora merge base adapter merged --dry-run

      lbrx lora merge base adapter merged

      lbrx lora combine math code both --weight 0.7,0.3

      lbrx lora combine math code both --method ties_svd --density 0.5 --rank 16

      lbrx lora combine math code both --method knots_ties --density 0.3

      lbrx lora convert adapter adapter.gguf --base base

      lbrx lora convert adapter adapter-mlx
    """
    _check_count(action, paths)
    limits = LimitOptions(threads, memory)
    type_name = None if dtype is None else dtype.value
    if dry_run and action is not Action.merge:
        raise UsageError(f"--dry-run is for 'merge'; '{action}' writes an adapter, not a model")
    if action is Action.merge:
        _merge(paths, limits, RunOptions(json_output=json_output), dry_run=dry_run)
    elif action is Action.extract:
        from lbrx.jobs.lora.extract import ExtractOptions

        options = ExtractOptions(
            rank, max_error, modules, save_modules, type_name or "f32", 0, exclude, tuple(save_module or ())
        )
        _extract(paths, options, limits, with_tensors=tensors, as_json=json_output)
    else:
        from lbrx.jobs.lora.combine import combine_loras
        from lbrx.jobs.lora.convert import convert_lora

        with limited(threads, memory), shown_progress("combining") as progress:
            if action is Action.convert:
                out = convert_lora(*paths, format=format, base=base, type=type_name)
            else:
                out = combine_loras(
                    paths[:-1],
                    paths[-1],
                    weights=_weights(weight, len(paths) - 1),
                    method=method,
                    rank=rank,
                    density=density,
                    dtype=type_name,
                    seed=seed,
                    format=format or ("gguf" if paths[-1].endswith(".gguf") else "peft"),
                    base=base,
                    progress=progress,
                )
        _print_adapter(out, as_json=json_output)


def _check_count(action: Action, paths: Sequence[str]) -> None:
    expected = _ARGUMENTS[action]
    least, has_more = len(expected.replace("[ADAPTER...] ", "").split()), "..." in expected
    if len(paths) < least or (len(paths) > least and not has_more):
        raise click.UsageError(f"{len(paths)} arguments for {action}; expected {expected}")


def _weights(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--weight {text}: expected numbers with commas between them") from error
    if len(weights) not in (1, count):
        raise UsageError(f"--weight has {len(weights)} numbers for {count} adapters; expected one, or one for each")
    return weights * (count if len(weights) == 1 else 1)


def _print_adapter(out: Path, *, as_json: bool) -> None:
    from lbrx.base.system import format_bytes
    from lbrx.files.checkpoint.opening import open_checkpoint

    files = [out] if out.is_file() else sorted(out.glob("*.safetensors"))
    written = [open_checkpoint(file) for file in files]
    tensors, nbytes = sum(map(len, written)), sum(file.nbytes for file in written)
    if as_json:
        print(json.dumps({"out": str(out), "tensors": tensors, "written_bytes": nbytes}))
    else:
        print(f"{out}: {tensors:,} tensors, {format_bytes(nbytes)}")


def _extract(paths: Sequence[str], options: object, limits: LimitOptions, *, with_tensors: bool, as_json: bool) -> None:
    from lbrx.cli.lora_extraction import extraction_json, print_extraction, print_total
    from lbrx.jobs.lora.extract import ExtractOptions, extract_lora

    assert isinstance(options, ExtractOptions)
    tuned, base, out = map(Path, paths)
    for path in (tuned, base):
        check_model(path)
    with limited(limits.threads, limits.memory), shown_progress("extracting") as progress:
        extraction = extract_lora(tuned, base, out, **options.keywords(), progress=progress)
    if as_json:
        sys.stdout.write(json.dumps(extraction_json(extraction, out), indent=2) + "\n")
        return
    print_extraction(extraction, out, options, with_tensors=with_tensors)
    print_total(extraction, base, out)


def _merge(paths: Sequence[str], limits: LimitOptions, options: RunOptions, *, dry_run: bool) -> None:
    """Merge adapters into their base."""
    from lbrx.cli.dry_run import show_plan
    from lbrx.jobs.merge.lora import lora_recipe, merge_lora
    from lbrx.jobs.merge.merge import read_and_plan

    base, *adapters, out = map(Path, paths)
    check_model(base)
    for adapter in adapters:
        check_model(adapter, may_be_adapter=True)
    with reporting("merging", options) as report:
        chosen = adapters[0] if len(adapters) == 1 else adapters
        if dry_run:
            with planning_for(limits, report):
                plan = read_and_plan(lora_recipe(base, chosen), out)
                report.warnings(plan.warnings)
                show_plan(plan, options, inputs=[("model", str(base)), *(("adapter", str(each)) for each in adapters)])
            return
        write_output(partial(merge_lora, base, chosen, out), report, limits, options)
