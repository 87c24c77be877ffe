"""`lbrx hash`: hash the tensors of a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model


def hash(
    model: Annotated[Path, Argument("A model directory, or a GGUF or SafeTensors file.")],
    layers: Annotated[bool, Option("--layers", help="Print a hash for each layer instead of each tensor.")] = False,
    json_output: Annotated[bool, Option("--json", help="Print the hashes as JSON.")] = False,
) -> None:
    """Print SHA-256 hashes of tensors.

    Hashes the bytes that are stored, without headers: a tensor has the same hash in any file. The last line is a hash
    of all tensors. Compare two outputs with diff.

    Examples:

      lbrx hash model.gguf

      lbrx hash model.gguf --layers
    """
    from lbrx.cli.console import printable
    from lbrx.jobs.hash.hashing import hash_model

    check_model(model)
    found = hash_model(model)
    if json_output:
        report = {"tensors": dict(found.tensors), "layers": dict(found.layers), "total": found.total}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    named = {f"layer {number}" if number >= 0 else "others": digest for number, digest in found.layers.items()}
    for name, digest in (named if layers else found.tensors).items():
        sys.stdout.write(f"{digest}  {printable(name)}\n")
    sys.stdout.write(f"{found.total}  {printable(str(model))}\n")
