"""`lbrx convert`: a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lbrx.cli.cluster_options import Cluster
from lbrx.cli.options import (
    DryRun,
    JsonEvents,
    Memory,
    Overwrite,
    Quiet,
    Restart,
    ShardSize,
    Strict,
    Sync,
    Threads,
    allow_many_files,
)
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model, check_output_name
from lbrx.cli.planned_files import show_files
from lbrx.cli.progress import reporter
from lbrx.cli.running import check_overwriting, run_output, within_limits
from lbrx.errors import LbrxError


def convert(
    source: Annotated[Path, Argument("A model: a directory, or a GGUF or SafeTensors file.", "IN")],
    out: Annotated[Path, Argument("The file (.gguf, .safetensors) or directory to write.")],
    format: Annotated[
        str | None,
        Option(help="gguf, mlx or safetensors; what OUT ends in by default."),
    ] = None,
    type: Annotated[str | None, Option(help="Turn weights into f32, f16 or bf16.")] = None,
    dry_run: DryRun = False,
    threads: Threads = None,
    memory: Memory = None,
    shard_size: ShardSize = None,
    strict: Strict = False,
    json_output: JsonEvents = False,
    overwrite: Overwrite = False,
    restart: Restart = False,
    sync: Sync = True,
    quiet: Quiet = False,
    cluster: Cluster = None,
) -> None:
    """Write a model in another format.

    Hugging Face directories (SafeTensors, or PyTorch's .bin), GGUF files and MLX directories, each into each, with
    tokenizer and settings. Quantized weights stay as they are wherever the other format has the same coding. Memory
    does not grow with the model; after a failure, or a kill, the same command goes on where it stopped.

    Examples:

      lbrx convert Llama-3.2-1B llama.gguf

      lbrx convert llama.gguf Llama-mlx --format mlx

      lbrx convert llama-q4_0.gguf restored --format safetensors --type bf16

      lbrx convert model resharded --shard-size 2GB
    """
    from lbrx.cluster.description import PlanSource

    allow_many_files()
    report = reporter(as_json=json_output, is_quiet=quiet)
    try:
        check_model(source)
        check_output_name(out, format)
        with within_limits(threads, memory):
            call = PlanSource.convert(source, out, format=format, type=type, max_shard_bytes=shard_size)
            plan = call.build()
            report.warnings(plan.warnings)
            if dry_run:
                show_files(plan, as_json=json_output)
                return
            check_overwriting(plan, overwrite)
            run_output(
                plan,
                call,
                report,
                cluster=cluster,
                threads=threads,
                memory=memory,
                strict=strict,
                overwrite=overwrite,
                restart=restart,
                sync=sync,
                as_json=json_output,
                is_quiet=quiet,
            )
    except LbrxError as error:
        report.failed(error)
        raise
