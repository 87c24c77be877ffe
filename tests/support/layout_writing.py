"""The simplest writer of a layout, and data to write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lbrx.files.formats.header import FileLayout


def write_layout(directory: Path, layout: FileLayout, data: Mapping[str, bytes]) -> Path:
    """Write the header, then every tensor into its slot; what lies between stays zero."""
    path = directory / layout.name
    with path.open("wb") as file:
        file.write(layout.header)
        for slot in layout.slots:
            assert len(data[slot.name]) == slot.nbytes
            file.seek(slot.offset)
            file.write(data[slot.name])
        file.truncate(layout.file_bytes)
    return path


def random_data(layout: FileLayout, seed: int = 0) -> dict[str, bytes]:
    """Bytes of 0 and 1, which are valid in every type (bool too), different for every slot."""
    generator = np.random.default_rng(seed)
    return {slot.name: generator.integers(0, 2, slot.nbytes, np.uint8).tobytes() for slot in layout.slots}
