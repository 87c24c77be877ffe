"""A directory of this process, for files that a compiler or the loader wants to see."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def scratch_directory() -> Path:
    """Made when it is first needed, removed when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="lbrx-metal-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
