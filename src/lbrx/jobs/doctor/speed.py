"""How fast the GPU moves memory, relative to what its chip can do."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.jobs.bench.measure import measure
from lbrx.jobs.doctor.bandwidth import stated_bandwidth

CASES = ("copy", "merge of two, bf16", "sum, bf16", "matrix-vector f16", "matrix-vector q4_k", "matrix-vector q8_0")
"""Cases of `lbrx bench` whose speed is that of the memory."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """A case of `lbrx bench`: how long the GPU works and how long a caller waits, and the share of the bandwidth.

    ``share`` is of what the chip can do according to Apple; None if the chip is not in the table.
    """

    name: str
    gpu_seconds: float
    wall_seconds: float
    gigabytes_per_second: float
    share: float | None


def measured_speed(
    context: MetalContext, size: str = "large", progress: Callable[[int, int, str], None] | None = None
) -> tuple[SpeedRow, ...]:
    """Run the cases, the best of several runs each."""
    stated = stated_bandwidth(context.info.name, context.info.cores)
    rows = []
    for number, name in enumerate(CASES):
        if progress is not None:
            progress(number, len(CASES), f"speed: {name}")
        for row in measure(context, size, only=name, repeats=5).rows:
            if row.name == name:
                speed = row.gigabytes_per_second
                share = None if stated is None else speed / stated
                rows.append(SpeedRow(name, row.gpu_seconds, row.metal_seconds, speed, share))
    return tuple(rows)
