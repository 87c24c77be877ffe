"""Codings whose parts are made together: the same bytes as each part made alone, in memory and in files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.codecs.encode import BlockDestination
from lbrx.engine.destination import ArrayDestination, EncodeTarget
from lbrx.engine.device import recorded_passes
from lbrx.engine.evaluate import evaluate_tensors
from lbrx.files.output.file_writer import FileDestination, FileWriter
from lbrx.tensors.codecs.mlx import MlxMode, encoded_mlx
from lbrx.tensors.coded import Encode
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor

MODES = [MlxMode(bits=bits, group_size=size) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64, 128)]


def _parts(values: Tensor, mode: MlxMode) -> list[Tensor]:
    coded = encoded_mlx(values, mode)
    assert coded.biases is not None
    return [coded.weight, coded.scales, coded.biases]


def _bytes(tensor: Tensor) -> bytes:
    raw: bytes = tensor.raw().numpy().tobytes()
    return raw


def _alone(values: Tensor, mode: MlxMode) -> list[bytes]:
    """Every part from a coding of its own."""
    return [_bytes(_parts(values, mode)[number]) for number in range(3)]


def _stored(parts: list[Tensor]) -> list[bytes]:
    """All parts of a coding, made at once."""
    targets = [ArrayDestination(DTYPES["u8"], part.nbytes) for part in parts]
    with recorded_passes() as passes:
        evaluate_tensors([(part.expr, target) for part, target in zip(parts, targets, strict=True)])
    assert len(passes) == 1
    return [target.whole.tobytes() for target in targets]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: f"{mode.bits}_{mode.group_size}")
def test_parts_together_are_the_parts_alone(mode: MlxMode) -> None:
    values = lbrx.normal((37, 384), 1, "w")
    assert _stored(_parts(values, mode)) == _alone(values, mode)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_files_get_the_same_bytes_from_any_threads(tmp_path: Path, threads: int) -> None:
    mode = MlxMode(bits=3)
    values = lbrx.normal((300, 4096), 2, "w").to("bf16")
    expected = _alone(values, mode)
    path = tmp_path / "parts"
    path.write_bytes(bytes(sum(map(len, expected))))
    descriptor = os.open(path, os.O_RDWR)
    with lbrx.using(threads=threads, chunk_elements=1 << 16):
        parts = _parts(values, mode)
        starts = np.cumsum([0, *(part.nbytes for part in parts)])
        file = FileWriter(descriptor, path)
        stores = [
            (part.expr, FileDestination(file, int(start), part.dtype if number else DTYPES["u8"]))
            for number, (part, start) in enumerate(zip(parts, starts, strict=False))
        ]
        evaluate_tensors(stores)
    os.close(descriptor)
    assert path.read_bytes() == b"".join(expected)


def test_values_that_come_in_pieces() -> None:
    """The way of passes that cannot be run tile by tile."""
    mode = MlxMode(bits=5)
    values = lbrx.normal((8, 128), 3, "w")
    parts = _parts(values, mode)
    targets = [ArrayDestination(DTYPES["u8"], part.nbytes) for part in parts]
    assert isinstance(parts[0].expr, Encode)
    destination = BlockDestination(EncodeTarget(parts[0].expr.encoding, list(targets)))
    raw = values.numpy().reshape(-1).view(np.uint8)
    for start in (512, 0, 256, 768):
        destination.write(start, raw[4 * start : 4 * (start + 256)])
    assert [target.whole.tobytes() for target in targets] == _alone(values, mode)


def test_nothing_to_code() -> None:
    parts = _parts(lbrx.full((0, 64), 0.0, "f32"), MlxMode())
    assert [part.raw().nbytes for part in parts] == [0, 0, 0]
