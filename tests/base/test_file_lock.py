"""Locks exclude threads and processes, end with them, and survive the removal of their file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lbrx.base import file_lock as file_lock_module
from lbrx.base.file_lock import file_lock, open_locked
from lbrx.errors import FileError


def test_lock_excludes_threads(tmp_path: Path) -> None:
    inside: list[int] = []
    most_inside: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with file_lock(tmp_path / "made" / "lock"):
                inside.append(number)
                most_inside.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_inside == [1] * 200


def test_lock_excludes_processes_and_ends_with_one(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from lbrx.base.file_lock import file_lock\n"
            "with file_lock(sys.argv[1]):\n"
            "    print('held', flush=True)\n"
            "    time.sleep(60)\n",
            str(tmp_path / "lock"),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    acquired = threading.Event()

    def acquire() -> None:
        with file_lock(tmp_path / "lock"):
            acquired.set()

    waiter = threading.Thread(target=acquire, daemon=True)
    waiter.start()
    assert not acquired.wait(0.2)
    holder.kill()
    holder.communicate()
    assert acquired.wait(30)


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"file: cannot be made: file exists"), file_lock(tmp_path / "file" / "a"):
        pass


def test_a_held_lock_is_given_up_after_a_while(tmp_path: Path) -> None:
    held = open_locked(tmp_path / "lock")
    assert held is not None
    assert open_locked(tmp_path / "lock", wait_seconds=0.1) is None
    os.close(held)


def test_a_removed_file_guards_nothing(tmp_path: Path) -> None:
    held = open_locked(tmp_path / "lock")
    assert held is not None
    (tmp_path / "lock").unlink()
    again = open_locked(tmp_path / "lock")
    assert again is not None
    assert (tmp_path / "lock").exists()
    os.close(held)
    os.close(again)


def test_a_file_that_is_removed_before_it_is_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    lock_once = file_lock_module._try_lock
    calls: list[int] = []

    def lock_after_removal(descriptor: int) -> bool:
        calls.append(descriptor)
        if len(calls) == 1:
            path.unlink()
        return lock_once(descriptor)

    monkeypatch.setattr(file_lock_module, "_try_lock", lock_after_removal)
    held = open_locked(path)
    assert held is not None
    assert len(calls) == 2
    assert os.path.samestat(path.stat(), os.fstat(held))
    os.close(held)
