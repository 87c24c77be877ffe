"""The numbers of a comparison as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict

from lbrx.jobs.bench.measure import BenchResult

EMULATED_NOTE = "The device is emulated on the CPU: its times say nothing about any GPU."


def as_json(result: BenchResult) -> str:
    """Device and rows."""
    rows = [{**asdict(row), "speedup": row.speedup, "agrees": row.agrees} for row in result.rows]
    fields = {"device": result.device, "emulated": result.emulated, "size": result.size, "cases": rows}
    return json.dumps(fields, indent=2)


def as_markdown(result: BenchResult) -> str:
    """The page; its pictures are in the same directory."""
    lines = [f"# CPU and Metal: {result.device}", ""]
    if result.emulated:
        lines += [f"> {EMULATED_NOTE}", ""]
    lines += [
        f"Size: {result.size}. Times are the best of several runs. 'Metal' is what a caller waits, with launch; "
        "'GPU' is what the GPU works, by its own time stamps. Rates are those of the GPU.",
        "",
        "| work | CPU ms | Metal ms | GPU ms | times faster | GB/s | GFLOP/s | difference |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result.rows:
        mark = "" if row.agrees else f" (more than {row.bound:g})"
        times = f"{row.cpu_seconds * 1e3:.3f} | {row.metal_seconds * 1e3:.3f} | {row.gpu_seconds * 1e3:.3f}"
        lines.append(
            f"| {row.name} | {times} | {row.speedup:.2f} | {row.gigabytes_per_second:.1f} | {row.gigaflops:.1f} "
            f"| {row.error:.1e}{mark} |"
        )
    lines += ["", "![times](times.png)", "", "![throughput](throughput.png)", ""]
    lines += ["## Kernels", "", "```", result.profile.table(), "```", ""]
    lines.append("`trace.json` has every dispatch on a time line: open it in chrome://tracing or Perfetto.")
    return "\n".join(lines) + "\n"
