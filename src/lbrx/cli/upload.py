"""`lbrx upload`: push a model to the Hugging Face hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lbrx.cli.options import DryRun
from lbrx.cli.parameters import Argument, Option
from lbrx.cli.status import ProgressBar

if TYPE_CHECKING:
    from lbrx.jobs.upload.checked_files import UploadedFile


def upload(
    source: Annotated[Path, Argument("A model, a GGUF file, or a directory of outputs.", "OUT")],
    repository: Annotated[str, Argument("The repository on the hub.", "OWNER/NAME")],
    revision: Annotated[str | None, Option(metavar="BRANCH", help="The branch, made if it is missing.")] = None,
    private: Annotated[bool, Option("--private", help="Make a private repository.")] = False,
    message: Annotated[str | None, Option(metavar="TEXT", help="The message of the commit.")] = None,
    dry_run: DryRun = False,
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    Uploads a model directory, a GGUF file with its shards, or the outputs of 'lbrx quantize' to a repository, which is
    made if it does not exist. All files appear in one commit. Unfinished or damaged models and files with secrets are
    refused; hidden files are left out. The token is HF_TOKEN, or that of 'hf auth login'. If the upload stops, run the
    same command to resume.

    Examples:

      lbrx upload outputs me/Llama-3.2-1B-GGUF --dry-run

      lbrx upload merged me/merged --private

      lbrx upload llama-Q4_K_M.gguf me/Llama-3.2-1B-GGUF --revision v2
    """
    from lbrx.jobs.upload.upload import plan_upload
    from lbrx.jobs.upload.upload import upload as upload_files

    if dry_run:
        _show(plan_upload(source, repository), json_output)
        return
    bar = ProgressBar("uploading", in_bytes=True) if sys.stderr.isatty() else None
    try:
        result = upload_files(
            source,
            repository,
            revision=revision,
            private=private,
            message=message,
            progress=None if bar is None else bar.update,
        )
    finally:
        if bar is not None:
            bar.stop()
    if json_output:
        files = [{"name": file.name, "bytes": file.nbytes} for file in result.files]
        fields = {"repository": repository, "revision": result.revision, "url": result.url, "files": files}
        print(json.dumps({"event": "done", **fields}))
        return
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import plural, printable

    print(printable(f"{result.url}: {plural(len(result.files), 'file')}, {format_bytes(result.nbytes)}"))


def _show(files: list[UploadedFile], json_output: bool) -> None:
    from lbrx.base.system import format_bytes
    from lbrx.cli.console import columns, output_console, plural, printable

    if json_output:
        print(json.dumps({"event": "plan", "files": [{"name": each.name, "bytes": each.nbytes} for each in files]}))
        return
    table = columns("file", "size", left=("file",))
    for each in files:
        table.add_row(printable(each.name), format_bytes(each.nbytes))
    output_console().print(table)
    print(f"{plural(len(files), 'file')}, {format_bytes(sum(each.nbytes for each in files))}")
