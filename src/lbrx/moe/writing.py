"""Writing a mixture: streamed into shards beside the target, and renamed when it is complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lbrx import system
from lbrx.errors import FileError
from lbrx.formats.header import Slot, TensorSpec
from lbrx.formats.shards import index_json, lay_out_safetensors
from lbrx.moe.mixture import MoePlan
from lbrx.output import Progress, ProgressCallback, write_layout
from lbrx.plan.records import DEFAULT_SHARD_BYTES
from lbrx.plan.side_files import INDEX_NAME, read_side_file
from lbrx.workplace import Workplace

_METADATA = {"format": "pt"}  # which the transformers library demands


def write_moe(
    plan: MoePlan,
    out: str | os.PathLike[str],
    *,
    max_shard_bytes: int | str = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> int:
    """Write a mixture into a directory, and return the bytes of its tensors.

    Memory does not grow with the models. What stands at ``out`` is replaced only with ``overwrite``, at the very end.
    """
    place = Workplace(Path(out))
    place.restore_target()
    place.check_target(overwrite)
    specs = [TensorSpec(name, tensor.type_name, tensor.shape) for name, tensor in plan.tensors.items()]
    layouts = lay_out_safetensors(specs, _METADATA, system.parse_bytes(max_shard_bytes))
    total_bytes = sum(slot.nbytes for layout in layouts for slot in layout.slots)
    done_bytes = 0

    def report(slot: Slot) -> None:
        nonlocal done_bytes
        done_bytes += slot.nbytes
        if progress is not None:
            progress(Progress(done_bytes, total_bytes, slot.name))

    if place.journal.exists():
        raise FileError(f"{place.partial}: is the unfinished work of a merge; expected it to be finished or removed")
    place.prepare(discard=True)
    try:
        for layout in layouts:
            write_layout(place.partial / layout.name, layout, plan.tensors, report)
        for file in plan.side_files:
            place.write_file(file.name, read_side_file(file), sync=True)
        if len(layouts) > 1:
            place.write_file(INDEX_NAME, index_json(layouts), sync=True)
        system.sync_directory(place.partial)
        place.publish()
    finally:
        shutil.rmtree(place.partial, ignore_errors=True)  # gone by now, unless something failed
    return total_bytes
