"""`lbrx convert`: convert a model to another format."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

from lbrx.cli.options import Cluster, Device, DryRun, Format, LimitOptions, RunOptions
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model, check_output_name
from lbrx.cli.running import planning_for, reporting, write_output


def convert(
    source: Annotated[Path, Argument("A model directory, or a GGUF or SafeTensors file.", "IN")],
    out: Annotated[Path, Argument("The file (.gguf, .safetensors) or directory to write.")],
    *,
    format: Format = None,
    type: Annotated[str | None, Option(help="Convert weights to f32, f16 or bf16.")] = None,
    mmproj: Annotated[
        bool, Option(help="Write the image tower and projector of a vision-language model, for llama.cpp's --mmproj.")
    ] = False,
    dry_run: DryRun = False,
    limits: LimitOptions,
    options: RunOptions,
    cluster: Cluster = None,
    device: Device = "cpu",
) -> None:
    """Convert a model to another format.

    Converts between Hugging Face directories (SafeTensors or PyTorch .bin), GGUF files and MLX directories, including
    the tokenizer and configuration. Quantized weights are copied unchanged if the target format has the same encoding.
    Memory does not grow with the model. If the run stops, run the same command to resume.

    Examples:

      lbrx convert Llama-3.2-1B llama.gguf

      lbrx convert llama.gguf Llama-mlx --format mlx

      lbrx convert llama-q4_0.gguf restored --format safetensors --type bf16

      lbrx convert model resharded --shard-size 2GB

      lbrx convert gemma-3-4b-it mmproj.gguf --mmproj --type f16
    """
    from lbrx.cli.dry_run import show_plan
    from lbrx.jobs.convert.convert import convert as convert_model
    from lbrx.jobs.convert.convert import plan_conversion

    write = partial(
        convert_model, source, out, format=format, type=type, mmproj=mmproj, max_shard_bytes=limits.shard_size
    )
    with reporting("converting", options) as report:
        check_model(source)
        check_output_name(out, format)
        if not dry_run:
            compared = ["inspect", str(out)] if mmproj else ["compare", str(source), str(out)]
            command = shlex.join(["lbrx", *compared])
            write_output(write, report, limits, options, device=device, cluster=cluster, next_command=command)
            return
        with planning_for(limits, report, device, cluster):
            plan = plan_conversion(*write.args, **write.keywords)
            report.warnings(plan.warnings)
            show_plan(plan, options)
