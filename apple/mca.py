"""Cycles by llvm-mca, if it is installed. LLVM has no model of the M1 and takes that of an older, narrower core."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

from apple.machine import Count, words_of

_ITERATIONS = 100
_TRIPLE = "-triple=arm64-apple-macosx14"
_BRANCH = re.compile(r"\s+(b|bl|blr|br|ret|cbn?z|tbn?z|b\.\w+)\b")


@cache
def _tool(name: str) -> str | None:
    return next((path for each in (f"{name}-19", name) if (path := shutil.which(each))), None)


def cycles_of(count: Count, cpu: str) -> float | None:
    """Cycles for all that was counted, from its hottest blocks; None without llvm-mca."""
    if _tool("llvm-mca") is None or _tool("llvm-mc") is None:
        return None
    hot = count.hottest()
    cycles = sum(_block_cycles(words_of(*block), cpu) * times for block, times in hot)
    covered = sum(size * times for (_, size), times in hot)
    whole = sum(size * times for (_, size), times in count.blocks.items())
    return cycles * whole / covered


@cache
def _block_cycles(words: tuple[int, ...], cpu: str) -> float:
    octets = " ".join(f"0x{octet:02x}" for word in words for octet in word.to_bytes(4, "little"))
    disassemble = [_tool("llvm-mc") or "", "--disassemble", _TRIPLE, f"-mcpu={cpu}"]
    listing = subprocess.run(disassemble, input=octets, capture_output=True, text=True, check=True).stdout
    text = "\n".join(line for line in listing.splitlines() if not _BRANCH.match(line))
    simulate = [_tool("llvm-mca") or "", f"-m{_TRIPLE[1:]}", f"-mcpu={cpu}", f"-iterations={_ITERATIONS}"]
    done = subprocess.run([*simulate, "-"], input=text + "\n", capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(total[1]) / _ITERATIONS if total else 0.0
