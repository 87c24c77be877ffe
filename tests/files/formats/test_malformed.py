"""Every malformed file is rejected with the right message, and all of them within little memory."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.malformed import corpus
from support.malformed_bytes import Malformed

CORPUS = corpus()
MAX_GROWTH_BYTES = 100 << 20
ADDRESS_SPACE_BYTES = 2 << 30


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_rejected_with_message(case: Malformed, tmp_path: Path) -> None:
    path = case.build(tmp_path)
    with pytest.raises(case.error) as caught:
        case.read(path)
    assert type(caught.value) is case.error
    assert re.search(case.message, str(caught.value))
    assert str(tmp_path) in str(caught.value), "the message must say which file"
    assert len(str(caught.value)) < 1000, "what a file contains must not make its error long"


def test_corpus_has_no_repeated_names() -> None:
    names = [case.name for case in CORPUS]
    assert len(names) >= 70
    assert len(set(names)) == len(names)


def test_rejected_within_bounded_memory() -> None:
    done = subprocess.run(
        [sys.executable, __file__],
        env={"PYTHONPATH": ":".join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rejected, growth_bytes = map(int, done.stdout.split())
    assert rejected == len(CORPUS)
    assert growth_bytes < MAX_GROWTH_BYTES


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _run_corpus() -> None:
    """Print how many cases were rejected and by how many bytes the peak memory grew."""
    if sys.platform != "darwin":  # macOS does not enforce it
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    before = _peak_bytes()
    rejected = 0
    for case in CORPUS:
        with tempfile.TemporaryDirectory() as directory:
            try:
                case.read(case.build(Path(directory)))
            except case.error:
                rejected += 1
    print(rejected, _peak_bytes() - before)


if __name__ == "__main__":
    _run_corpus()
