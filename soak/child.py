"""The process of one job: ``python -m soak.child LIMITS ARGUMENTS...``, within limits that begin after the imports.

LIMITS is JSON: ``fsize`` is the largest file in bytes, ``nofile`` and ``as`` count descriptors and bytes of address
space beyond those in use.
"""

from __future__ import annotations

import json
import os
import resource
import sys

import psutil

import lbrx
import lbrx.jobs.convert
import lbrx.jobs.merge.merge
import lbrx.jobs.quantize
from lbrx.cli.main import command_of, is_expected, main


def limit(limits: dict[str, int]) -> None:
    process = psutil.Process()
    now = {"fsize": 0, "nofile": process.num_fds(), "as": process.memory_info().vms}
    for name, more in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        resource.setrlimit(number, (now[name] + more, resource.getrlimit(number)[1]))


def save(source: str, out: str) -> int:
    with lbrx.open(source) as model:
        lbrx.save(out, {name: model[name] * 0.5 for name in model})
    return 0


if __name__ == "__main__":
    if sys.argv[2] != "save":
        command_of(sys.argv[2])  # imports the command
    limit(json.loads(sys.argv.pop(1)))
    if sys.argv[1] == "save":
        try:
            sys.exit(save(*sys.argv[2:]))
        except Exception as error:
            if not is_expected(error):
                raise
            os.write(2, f"error: {error}\n".encode())
            sys.exit(1)
    main()
