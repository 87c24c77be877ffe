"""What a plan would write, for `--dry-run`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lbrx.base.system import format_bytes

if TYPE_CHECKING:
    from lbrx.files.output.plan import OutputPlan


def show_files(plan: OutputPlan, *, as_json: bool) -> None:
    """Print the files that a plan would write, and the types in them."""
    counts: dict[str, int] = {}
    for layout in plan.layouts:
        for slot in layout.slots:
            counts[slot.type_name] = counts.get(slot.type_name, 0) + 1
    nbytes = sum(layout.file_bytes for layout in plan.layouts)
    files = [layout.name for layout in plan.layouts] + [file.name for file in plan.side_files]
    if as_json:
        fields = {"event": "plan", "out": str(plan.out), "types": counts, "write_bytes": nbytes, "files": files}
        print(json.dumps(fields))
        return
    print(f"{'output':<16}{plan.out}")
    print(f"{'tensors':<16}{', '.join(f'{count:,} {type_name}' for type_name, count in counts.items())}")
    print(f"{'to write':<16}{format_bytes(nbytes)} in {', '.join(files)}")
