"""`lbrx shuffle`: a model whose layers come from several models at random."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from lbrx.cli.options import Device, DryRun, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_output_name
from lbrx.cli.running import planning_for, reporting, write_output
from lbrx.errors import UsageError


def shuffle(
    models: Annotated[list[str], Argument("Models of one architecture.", "MODEL...")],
    *,
    out: Annotated[Path, Option("--out", metavar="OUT", help="The directory to write.")],
    weight: Annotated[
        str | None, Option(metavar="W[,W...]", help="How often layers of each model are chosen (default: equally).")
    ] = None,
    full_random: Annotated[
        bool, Option("--full-random", help="Layers in any order, also several times; weights are shares of layers.")
    ] = False,
    dtype: Annotated[str | None, Option(metavar="TYPE", help="Dtype of the output, such as bfloat16.")] = None,
    print_recipe: Annotated[bool, Option("--print-recipe", help="Print the recipe and write nothing.")] = False,
    dry_run: DryRun = False,
    limits: LimitOptions,
    seed: Annotated[int, Option(help="Random seed of the choice.")] = 0,
    options: RunOptions,
    device: Device = "cpu",
) -> None:
    """Combine layers of several models at random.

    Each layer of the output is the same layer of one of the models. The recipe of the result is in its README.md.

    Examples:

      lbrx shuffle model-a model-b --out shuffled --seed 7

      lbrx shuffle model-a model-b --weight 0.7,0.3 --out shuffled --print-recipe > recipe.yml

      lbrx shuffle model-a model-b --weight 0.5,0.5 --full-random --out shuffled --dry-run
    """
    from lbrx.cli.dry_run import show_plan
    from lbrx.jobs.merge.merge import read_and_plan
    from lbrx.jobs.merge.shuffle import shuffle as shuffle_layers
    from lbrx.jobs.merge.shuffle import shuffle_recipe

    weights = None if weight is None else _numbers(weight)
    if print_recipe:
        print(shuffle_recipe(models, weights, seed=seed, full_random=full_random, dtype=dtype), end="")
        return
    with reporting("merging", options) as report:
        check_output_name(out, None, directory_only=True)
        if not dry_run:
            write = partial(
                shuffle_layers,
                models,
                out,
                weights=weights,
                full_random=full_random,
                dtype=dtype,
                seed=seed,
                max_shard_bytes=limits.shard_size,
            )
            write_output(write, report, limits, options, device=device)
            return
        with planning_for(limits, report, device):
            recipe = shuffle_recipe(models, weights, seed=seed, full_random=full_random, dtype=dtype)
            plan = read_and_plan(recipe, out, max_shard_bytes=limits.shard_size, strict=options.strict)
            report.warnings(plan.warnings)
            slices = [line.split("[", 1)[1].rstrip("]") + "]" for line in recipe.splitlines() if "sources" in line]
            show_plan(plan, options, inputs=[("slice", each) for each in slices])


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--weight {text}: expected numbers with commas between them") from error
