"""Files and directories appear whole or not at all, and caches that cannot be written are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbrx.base.atomic_write import partial_file, remove_partial_files, replace, write_atomically, write_cache
from lbrx.errors import FileError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(KeyboardInterrupt), partial_file(tmp_path / "a"):
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_renamed_file_stays(tmp_path: Path) -> None:
    with partial_file(tmp_path / "a") as partial:
        partial.write_bytes(b"new")
        replace(partial, tmp_path / "a", sync=False)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert names(tmp_path) == ["a"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"absent/.*partial: cannot be opened: no such file"):
        write_atomically(tmp_path / "absent" / "a", b"")
    write_cache(tmp_path / "file" / "a", b"")
    write_cache(tmp_path / "absent" / "deep" / "a", b"entry")
    assert (tmp_path / "absent" / "deep" / "a").read_bytes() == b"entry"


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    kept = ["a.0123456789abcdef.partial", ".a.partial", ".a.0123456789abcde.partial", ".a.0123456789abcdef.partial.b"]
    for name in kept:
        (tmp_path / name).touch()
    with partial_file(tmp_path / "a\nb") as partial:
        partial.write_bytes(b"half")
        remove_partial_files(tmp_path)
        assert not partial.exists()
    assert names(tmp_path) == sorted(kept)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    write_atomically(tmp_path / "a", b"content")
    with partial_file(tmp_path / "a") as partial:
        replace(partial, tmp_path / "a")
    assert os.listdir("/dev/fd") == before
