"""Which tests execute which lines, measured once for each test file and kept in a folder.

A line is known by its function and its text, so that an edit elsewhere in a source does not make the map useless.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import queue
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants.running import WarmTests

MEASURE_SECONDS = 900.0  # of processor time that one test file may take
MEASURED = "not metal"  # tests on the emulated device compile for minutes, and run the same lines as those on the CPU


@dataclass
class CoverageMap:
    """``seconds`` by test; ``tests`` by source, line key and test."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Add what was measured of one test file."""
        self.seconds |= record["seconds"]
        for source, keys in record["keys"].items():
            by_key = self.tests.setdefault(source, {})
            for test, mask in record["masks"][source].items():
                bits = int(mask, 16)
                for number, key in enumerate(keys):
                    if bits >> number & 1:
                        by_key.setdefault(key, set()).add(test)

    def covering(self, source: str, keys: Iterable[int]) -> set[str]:
        """The tests that execute any of these lines of a source."""
        by_key = self.tests.get(source, {})
        return set().union(*(by_key.get(key, set()) for key in keys))


def line_keys(text: str) -> list[int]:
    """A number for each line of a source, from its function and its text. The first is of line 1.

    >>> before, after = line_keys("def f():\\n    return 1\\n"), line_keys("# new\\ndef f():\\n    return 1\\n")
    >>> before == after[1:]
    True
    """
    lines = text.splitlines()
    names = [""] * len(lines)

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}"
                names[child.lineno - 1 : child.end_lineno] = [name] * ((child.end_lineno or 0) - child.lineno + 1)
            visit(child, name)

    visit(ast.parse(text), "")
    return [zlib.crc32(f"{name}\n{line.strip()}".encode()) for name, line in zip(names, lines, strict=True)]


def measure(
    root: Path, folder: Path, test_files: Sequence[str], workers: int, say: Callable[[str], None] = print
) -> CoverageMap:
    """The map of these test files of a tree; only those that changed since the last time are run."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {test: folder / f"{hashlib.sha256(test.encode()).hexdigest()[:16]}.json.gz" for test in test_files}
    digests = {test: hashlib.sha256((root / test).read_bytes()).hexdigest() for test in test_files}
    stale = [test for test in test_files if _load(entries[test]).get("digest") != digests[test]]
    free: queue.Queue[WarmTests] = queue.Queue()
    for _ in range(min(workers, len(stale))):
        free.put(WarmTests(root, stale, "record"))

    def run(test: str) -> None:
        warm = free.get()
        try:
            record = _measure_file(root, folder, test, warm)
        finally:
            free.put(warm)
        entries[test].write_bytes(gzip.compress(json.dumps({"digest": digests[test], **record}).encode()))
        failed = f", {len(record['failed'])} failed" if record["failed"] else ""
        say(f"measured {test}: {len(record['seconds'])} tests, {sum(record['seconds'].values()):.0f} s{failed}")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, stale))
    while not free.empty():
        free.get().close()
    covered = CoverageMap()
    for test in test_files:
        covered.add(_load(entries[test]))
    return covered


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded


def _measure_file(root: Path, folder: Path, test: str, warm: WarmTests) -> dict[str, Any]:
    result = folder / f"{hashlib.sha256(test.encode()).hexdigest()[:16]}.tmp"
    try:
        warm.start()
        warm.run(["-k", MEASURED, test], MEASURE_SECONDS, record=result)
        return _compact(root, json.loads(result.read_text()))
    except FileNotFoundError:  # it took too long, or ended the process
        return {"seconds": {}, "keys": {}, "masks": {}, "failed": [test]}
    finally:
        result.unlink(missing_ok=True)


def _compact(root: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Line keys of each source, and for each test a bit for each of them."""
    keys: dict[str, list[int]] = {}
    masks: dict[str, dict[str, str]] = {}
    for source in sorted({source for lines in record["lines"].values() for source in lines}):
        by_line = line_keys((root / "src/lbrx" / source).read_text())
        keys[source] = list(dict.fromkeys(by_line))
        bits = {key: 1 << number for number, key in enumerate(keys[source])}
        for test, lines in record["lines"].items():
            if source in lines:
                mask = 0
                for line in lines[source]:
                    if 0 < line <= len(by_line):  # generated functions have lines of their own
                        mask |= bits[by_line[line - 1]]
                masks.setdefault(source, {})[test] = f"{mask:x}"
    return {"seconds": record["seconds"], "keys": keys, "masks": masks, "failed": record["failed"]}
