"""What has to hold after every attempt at a job, and after the last one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

Content = dict[str, str]  # digest of each file by its path


def content(folder: Path) -> Content:
    """The files of a folder and below, without those that are hidden."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items() if not name.startswith(".")
    }


def leftovers(folder: Path) -> list[str]:
    """Hidden files of a run beside its output."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def wrong_state(folder: Path, old: Content, new: Content, is_split: bool) -> str:
    """What is wrong after a run that may have been stopped: "" if the output is the old or the new one, complete.

    An old output may also be aside, until the next run; the files of a split output are renamed one by one.
    """
    now = content(folder)
    if now in (old, new):
        return ""
    if not now and old and any(name.endswith((".replaced", ".partial")) for name in leftovers(folder)):
        return ""
    if is_split and all(digest in (old.get(name), new.get(name)) for name, digest in now.items()):
        return ""
    return f"is neither the old nor the new output: {difference(now, new)}"


def wrong_result(folder: Path, new: Content) -> str:
    """What is wrong after a run that succeeded: "" if the output is the expected one and nothing is left beside it."""
    now = content(folder)
    if now != new:
        return f"has other bytes than a run without faults: {difference(now, new)}"
    left = leftovers(folder)
    return f"has {', '.join(left)} left" if left else ""


def difference(now: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """The names of the files that differ.

    >>> difference({"a": "0", "b": "1"}, {"a": "1", "c": "1"})
    'a differs, b is new, c is missing'
    """
    states = {
        **{name: "is missing" for name in expected if name not in now},
        **{name: "differs" if name in expected else "is new" for name in now if now[name] != expected.get(name)},
    }
    return ", ".join(f"{name} {states[name]}" for name in sorted(states))
