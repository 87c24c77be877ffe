"""`lbrx types`: list quantization types."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from lbrx.cli.parameters import Option


def types(json_output: Annotated[bool, Option("--json", help="Print the full result as JSON.")] = False) -> None:
    """List quantization types.

    Use them with 'lbrx quantize --to' and 'lbrx merge --quantize'.

    Examples:

      lbrx types

      lbrx types --json
    """
    from lbrx.cli.console import columns, output_console
    from lbrx.jobs.quantize.targets import target_summaries

    rows = target_summaries()
    if json_output:
        fields = [{"name": row.name, "output": row.output, "summary": row.summary} for row in rows]
        sys.stdout.write(json.dumps(fields, indent=2) + "\n")
        return
    table = columns("type", "output", "description", left=("type", "output", "description"))
    for row in rows:
        table.add_row(row.name, row.output, row.summary)
    output_console().print(table)
