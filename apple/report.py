"""The table of docs/apple_performance.md and the stored counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import llvmlite

from apple.counting import ROOT, Counted

PAGE = ROOT / "docs/apple_performance.md"
COUNTS = Path(__file__).with_name("counts.json")
START, END = "<!-- table: make apple -->", "<!-- end of the table -->"
MOST_GROWTH, MOST_LOST_VECTORS = 1.1, 0.1
# Compiled and counted in make test.
QUICK = (
    *("linear merge, 2 x bf16", "cast f32 to f8_e4m3", "exp bf16", "sum bf16", "rms_norm f32"),
    *("gemv bf16", "gemv q8_0", "gemv q4_0", "gemv q4_k", "gemv q6_k", "gemv iq4_nl", "gemv MLX 4 bit"),
    *("decode q4_k to f32", "encode f32 to q8_0"),
)


@dataclass(frozen=True)
class Mac:
    """A processor: its performance cores, their clock in GHz, and the bandwidth of its memory in GB/s."""

    name: str
    cpu: str
    cores: int
    clock: float
    bandwidth: float

    def share(self, counted: Counted) -> float:
        """The part of the bandwidth that its performance cores use, at most 1."""
        return min(self.cores * gigabytes(counted, self.clock) / self.bandwidth, 1.0)


MACS = (
    Mac("M1", "apple-m1", 4, 3.2, 68),
    Mac("M3 Max", "apple-m3", 12, 4.05, 400),
    Mac("M4", "apple-m4", 4, 4.4, 120),
)


def gigabytes(counted: Counted, clock: float = 3.2) -> float:
    """Gigabytes of memory traffic in a second of one core."""
    return counted.nbytes * clock / counted.cycles


def stored() -> dict[str, dict[str, dict[str, float]]]:
    """Instructions per element and share of vectors by processor and name, if they are of this llvmlite; else empty."""
    content = json.loads(COUNTS.read_text())
    return content["counts"] if content["llvmlite"] == llvmlite.__version__ else {}


def store(counts: Mapping[str, Iterable[Counted]]) -> None:
    """Write counts; those of other workloads stay if they are of the same llvmlite."""
    merged = stored() if COUNTS.exists() else {}
    for cpu, figures in counts.items():
        own = {each.name: {"instructions": each.instructions, "vectors": each.vector_share} for each in figures}
        merged[cpu] = dict(sorted({**merged.get(cpu, {}), **own}.items()))
    COUNTS.write_text(json.dumps({"llvmlite": llvmlite.__version__, "counts": merged}, indent=1) + "\n")


def regressions(cpu: str, figures: Iterable[Counted]) -> list[str]:
    """One line for each workload that takes more than a tenth more instructions than stored, or lost its vectors."""
    before, found = stored().get(cpu, {}), []
    for each in figures:
        old = before.get(each.name)
        if old is None:
            found.append(f"{each.name}: not in {COUNTS.name}")
        elif each.instructions > MOST_GROWTH * old["instructions"]:
            found.append(f"{each.name}: {each.instructions} instructions per element, stored {old['instructions']}")
        elif each.vector_share < old["vectors"] - MOST_LOST_VECTORS:
            found.append(f"{each.name}: {each.vector_share:.0%} vector operations, stored {old['vectors']:.0%}")
    return found


def table(counts: Mapping[str, Sequence[Counted]], ggml: Mapping[str, float]) -> str:
    """The counts as a table in Markdown; ``ggml`` has cycles per weight."""
    by_name = {cpu: {each.name: each for each in figures} for cpu, figures in counts.items()}
    lines = [
        "| operation | cycles per element | llvm-mca | vectors | GB/s per core | "
        + " | ".join(mac.name for mac in MACS)
        + " | ggml's cycles | ratio |",
        "|---|" + "---|" * (6 + len(MACS)),
    ]
    for each in counts["apple-m1"]:
        mca = "" if each.mca is None else f"{each.mca:.2f}"
        shares = [f"{mac.share(by_name[mac.cpu][each.name]):.0%}" for mac in MACS]
        cycles = ggml.get(each.ggml or "")
        compared = ["", ""] if cycles is None else [f"{cycles:.3f}", f"{each.cycles / cycles:.1f}"]
        figures = [f"{each.cycles:.3f}", mca, f"{each.vector_share:.0%}", f"{gigabytes(each):.1f}", *shares, *compared]
        lines.append(f"| {each.name} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def write_page(text: str) -> None:
    """Replace the table of the page."""
    page = PAGE.read_text()
    before, after = page.partition(START)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n{text}\n{END}{after}")
