"""The operating system's calls: what both systems do, and what macOS is asked for."""

from __future__ import annotations

import ast
import ctypes
import errno
import fcntl
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbrx.base import system, threads
from lbrx.base.system import darwin, files, mapping, process
from lbrx.errors import FileError, TruncatedError, UsageError

MIB = 1 << 20
PAGE = system.page_bytes()
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="checks what the Linux kernel does")


class RecordingFcntl:
    """Stands in for ``fcntl.fcntl``: notes each call, and fails those that it is told to."""

    def __init__(self, failures: dict[int, list[int | None]] | None = None) -> None:
        self.calls: list[tuple[int, int, Any]] = []
        self.failures = failures or {}

    def __call__(self, fd: int, command: int, argument: Any = 0) -> Any:
        self.calls.append((fd, command, argument))
        planned = self.failures.get(command)
        code = planned.pop(0) if planned else None
        if code is not None:
            raise OSError(code, os.strerror(code))
        return argument


@pytest.fixture
def as_darwin(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(sys, "platform", "darwin")
    return monkeypatch


@pytest.fixture
def small_file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 1024)
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "nbytes"),
        [
            ("4GB", 4 * 10**9),
            ("512MiB", 512 << 20),
            ("512mib", 512 << 20),
            ("1.5 GiB", 3 << 29),
            ("0.1kB", 100),
            ("2G", 2 << 30),
            (" 7 ", 7),
            ("12B", 12),
            ("3TB", 3 * 10**12),
            (42, 42),
        ],
    )
    def test_parse(self, text: str | int, nbytes: int) -> None:
        assert system.parse_bytes(text) == nbytes

    @pytest.mark.parametrize("text", ["", "GB", "-1", "1 2", "4XB", "1e9", "1.GB", -1, True, None])
    def test_parse_refuses(self, text: Any) -> None:
        with pytest.raises(UsageError, match="not a number of bytes; expected"):
            system.parse_bytes(text)

    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (MIB - 1, "1 MiB"),
            (1536 * MIB, "1.5 GiB"),
            (3 << 60, "3072 PiB"),
        ],
    )
    def test_format(self, nbytes: int, text: str) -> None:
        assert system.format_bytes(nbytes) == text

    @settings(deadline=None)
    @given(st.integers(0, 1 << 59))
    def test_format_is_near_and_parses(self, nbytes: int) -> None:
        again = system.parse_bytes(system.format_bytes(nbytes))
        assert abs(again - nbytes) <= 0.05 * nbytes


class TestOpenAndTransfer:
    def test_open_read_gives_a_descriptor_that_children_do_not_inherit(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"abc")
        fd = system.open_read(tmp_path / "a")
        try:
            assert os.pread(fd, 10, 0) == b"abc"
            assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        finally:
            os.close(fd)

    def test_open_read_says_where_and_why(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"absent: cannot open: no such file"):
            system.open_read(tmp_path / "absent")
        with pytest.raises(FileError, match=r"is a directory; expected a file"):
            system.open_read(tmp_path)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
    def test_open_read_without_permission(self, tmp_path: Path) -> None:
        (tmp_path / "secret").touch(mode=0)
        with pytest.raises(FileError, match=r"secret: cannot open: permission denied"):
            system.open_read(tmp_path / "secret")

    def test_open_read_names_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError(errno.EACCES, "refused")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(FileError, match=r"^secret: cannot open: permission denied$"):
            system.open_read("secret")

    def test_write_then_read_back_in_short_transfers(self, small_file: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "_MAX_TRANSFER_BYTES", 1000)
        written = np.arange(5000, dtype=np.float32)
        system.pwrite_all(small_file, written, 12345)
        read = np.zeros_like(written)
        system.pread_into(small_file, read, 12345)
        np.testing.assert_array_equal(read, written)
        assert os.pread(small_file, 1, 12344) == bytes([12344 % 256])

    def test_arrays_that_are_no_buffers(self, small_file: int) -> None:
        halves = np.arange(12, dtype=ml_dtypes.bfloat16).reshape(3, 4)
        system.pwrite_all(small_file, halves, 7)
        read = np.zeros_like(halves)
        system.pread_into(small_file, read, 7)
        np.testing.assert_array_equal(read, halves)
        with pytest.raises(UsageError, match="has gaps; expected a contiguous one"):
            system.pread_into(small_file, read.T, 7)

    def test_empty_buffers_are_nothing(self, small_file: int) -> None:
        system.pread_into(small_file, np.empty(0, np.uint8), 1 << 40)
        system.pwrite_all(small_file, b"", 1 << 40)
        assert os.fstat(small_file).st_size == 256 * 1024

    def test_short_read_is_truncation(self, small_file: int) -> None:
        message = r"^model\.bin: ends at byte 262144, but bytes 262100 to 262200 were expected$"
        with pytest.raises(TruncatedError, match=message):
            system.pread_into(small_file, bytearray(100), 262_100, "model.bin")

    def test_errors_without_a_path_name_the_descriptor(self, tmp_path: Path) -> None:
        fd = os.open(tmp_path / "new", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(FileError, match=rf"file descriptor {fd}: cannot read at byte 3"):
            system.pread_into(fd, bytearray(1), 3)
        os.close(fd)


class TestPreallocate:
    @pytest.mark.parametrize("nbytes", [0, 1, 3 * MIB + 1])
    def test_size_is_exact(self, small_file: int, nbytes: int) -> None:
        system.preallocate(small_file, nbytes)
        assert os.fstat(small_file).st_size == nbytes
        assert os.pread(small_file, 4, 0) == bytes(range(4))[:nbytes]

    @linux_only
    def test_blocks_are_there(self, small_file: int) -> None:
        system.preallocate(small_file, 3 * MIB)
        assert os.fstat(small_file).st_blocks * 512 >= 3 * MIB

    def test_sparse_where_the_file_system_cannot_allocate(
        self, small_file: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def cannot(*_: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "not supported")

        monkeypatch.setattr(files, "_allocate", cannot)
        system.preallocate(small_file, 64 * MIB)
        status = os.fstat(small_file)
        assert status.st_size == 64 * MIB
        assert status.st_blocks * 512 < MIB

    def test_process_limit(self, small_file: int) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, limits[1]))
        try:
            with pytest.raises(FileError, match=r"out\.bin: cannot .*: file too large"):
                system.preallocate(small_file, 9 * MIB, "out.bin")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    @linux_only
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
    def test_full_disk_needs_mount(self, small_disk: Path) -> None:
        with (small_disk / "out").open("wb") as file:
            with pytest.raises(FileError, match=r"^out: disk full: needs 2 MiB, has 1 MiB free$"):
                system.preallocate(file.fileno(), 2 * MIB, "out")
            system.preallocate(file.fileno(), MIB // 2, "out")
            with pytest.raises(FileError, match=r"^out: disk full: needs 1 MiB, has 0 B free$"):
                system.pwrite_all(file.fileno(), bytes(2 * MIB), 0, "out")


class TestDarwinCalls:
    """The arguments that macOS gets, as its headers lay them out."""

    def test_read_ahead_passes_radvisory(self, as_darwin: pytest.MonkeyPatch) -> None:
        recorded = RecordingFcntl()
        as_darwin.setattr(fcntl, "fcntl", recorded)
        assert system.read_ahead(7, 1 << 33, (1 << 30) + 5)
        commands = [(fd, command) for fd, command, _ in recorded.calls]
        assert commands == [(7, 44), (7, 44)]
        assert [argument for _, _, argument in recorded.calls] == [
            struct.pack("<q", 1 << 33) + struct.pack("<i", 1 << 30) + bytes(4),
            struct.pack("<q", (1 << 33) + (1 << 30)) + struct.pack("<i", 5) + bytes(4),
        ]

    def test_access_turns_read_ahead_off_and_on(self, as_darwin: pytest.MonkeyPatch) -> None:
        recorded = RecordingFcntl()
        as_darwin.setattr(fcntl, "fcntl", recorded)
        assert [system.expect_access(7, access, 0, 10) for access in ("random", "sequential")] == [True, True]
        assert recorded.calls == [(7, 45, 0), (7, 45, 1)]

    @pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EBADF])  # by a file system; for a pipe
    def test_read_ahead_that_is_refused(self, small_file: int, as_darwin: pytest.MonkeyPatch, code: int) -> None:
        as_darwin.setattr(fcntl, "fcntl", RecordingFcntl({44: [code]}))
        assert not system.read_ahead(small_file, 0, 5)

    def test_preallocate_passes_fstore_contiguous_first(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        present_bytes = os.fstat(small_file).st_blocks * 512
        recorded = RecordingFcntl({42: [errno.ENOSPC, None]})
        as_darwin.setattr(fcntl, "fcntl", recorded)
        system.preallocate(small_file, 5 * MIB)
        assert os.fstat(small_file).st_size == 5 * MIB
        flags_and_mode = [struct.unpack_from("<Ii", argument) for _, _, argument in recorded.calls]
        assert flags_and_mode == [(0x2 | 0x4, 3), (0x4, 3)]
        for _, command, argument in recorded.calls:
            assert command == 42
            assert len(argument) == 32
            assert struct.unpack_from("<qqq", argument, 8) == (0, 5 * MIB - present_bytes, 0)

    def test_preallocate_asks_for_nothing_that_is_there(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        os.fsync(small_file)
        recorded = RecordingFcntl()
        as_darwin.setattr(fcntl, "fcntl", recorded)
        system.preallocate(small_file, 1000)
        assert recorded.calls == []
        assert os.fstat(small_file).st_size == 1000

    def test_preallocate_on_a_full_disk(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        as_darwin.setattr(fcntl, "fcntl", RecordingFcntl({42: [errno.ENOSPC, errno.ENOSPC]}))
        with pytest.raises(FileError, match=r"^out: disk full: needs \S+ MiB, has .* free$"):
            system.preallocate(small_file, 5 * MIB, "out")
        assert os.fstat(small_file).st_size == 256 * 1024

    def test_preallocate_where_it_is_not_supported(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        as_darwin.setattr(fcntl, "fcntl", RecordingFcntl({42: [errno.ENOTSUP, errno.ENOTSUP]}))
        system.preallocate(small_file, 5 * MIB)
        assert os.fstat(small_file).st_size == 5 * MIB

    def test_flush_is_a_full_one(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        recorded = RecordingFcntl()
        as_darwin.setattr(fcntl, "fcntl", recorded)
        as_darwin.setattr(os, "fsync", lambda _: pytest.fail("fsync is not enough"))
        system.flush_to_disk(small_file)
        assert recorded.calls == [(small_file, 51, 0)]

    def test_flush_falls_back_to_fsync(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        synced: list[int] = []
        as_darwin.setattr(fcntl, "fcntl", RecordingFcntl({51: [errno.ENOTSUP, errno.EIO]}))
        as_darwin.setattr(os, "fsync", synced.append)
        system.flush_to_disk(small_file)
        assert synced == [small_file]
        with pytest.raises(FileError, match=r"^out: cannot flush to disk: input/output error$"):
            system.flush_to_disk(small_file, "out")

    def test_constants_agree_with_python_where_it_has_them(self) -> None:
        for name in ("F_FULLFSYNC", "F_PREALLOCATE", "F_RDADVISE"):
            assert getattr(fcntl, name, getattr(darwin, name)) == getattr(darwin, name)

    def test_advice_on_mappings(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        advised: list[tuple[int, int]] = []

        def record(_address: int, length: int, advice: int) -> int:
            advised.append((length, advice))
            return 0

        as_darwin.setattr(mapping, "_madvise", record)
        mapped = system.map_readonly(small_file, 0, 4 * PAGE)
        assert mapped is not None
        pin = system.PinnedMapping(mapped)
        assert pin.will_need(0, PAGE)
        assert pin.dont_need(0, 2 * PAGE)
        assert not pin.huge_pages()
        assert advised == [(PAGE, 3), (2 * PAGE, 4)]

    def test_what_macos_does_not_have(self, small_file: int, as_darwin: pytest.MonkeyPatch) -> None:
        as_darwin.setattr(fcntl, "fcntl", RecordingFcntl())
        assert not system.seems_cached(small_file, 0, 100)

    def test_process_numbers(self, as_darwin: pytest.MonkeyPatch) -> None:
        as_darwin.setattr(os, "cpu_count", lambda: 10)
        assert 0 < system.anonymous_bytes() <= psutil.Process().memory_info().rss + 64 * MIB
        assert 0 < system.available_bytes() <= psutil.virtual_memory().total
        if sys.version_info < (3, 13):
            assert system.cpu_count() == 10

    @pytest.mark.parametrize(("answer", "expected"), [(0, 4), (-1, 10)])
    def test_performance_cores_are_counted(self, as_darwin: pytest.MonkeyPatch, answer: int, expected: int) -> None:
        def sysctlbyname(name: bytes, value: Any, size: Any, _new: None, _new_size: object) -> int:
            assert (name, size._obj.value) == (b"hw.perflevel0.logicalcpu", 4)
            value._obj.value = 4
            return answer

        as_darwin.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(sysctlbyname=sysctlbyname))
        as_darwin.setattr(process, "cpu_count", lambda: 10)
        darwin.performance_cpu_count.cache_clear()
        assert system.performance_cpu_count() == expected
        darwin.performance_cpu_count.cache_clear()

    def test_workers_ask_for_performance_cores(self, as_darwin: pytest.MonkeyPatch) -> None:
        asked: list[tuple[int, int]] = []

        def set_class(thread_class: Any, priority: Any) -> int:
            asked.append((thread_class.value, priority.value))
            return 0

        as_darwin.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(pthread_set_qos_class_self_np=set_class))
        threads._pool.cache_clear()
        threads._pool(1).submit(int).result()
        threads._pool.cache_clear()
        assert asked == [(0x19, 0)]

    def test_cache_directory(self, as_darwin: pytest.MonkeyPatch) -> None:
        as_darwin.delenv("LBRX_CACHE_DIR", raising=False)
        as_darwin.setenv("HOME", "/Users/me")
        assert system.cache_directory() == Path("/Users/me/Library/Caches/lbrx")


def test_the_limit_of_open_files_is_raised_when_it_is_reached(tmp_path: Path) -> None:
    """In a process of its own: 300 shards, and macOS starts with a soft limit of 256."""
    path = tmp_path / "weights"
    path.write_bytes(b"weights")
    code = (
        "import resource, sys; from lbrx.base import system\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "print(len([system.open_read(sys.argv[1]) for _ in range(300)]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "system.open_write(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout == "300\n"
    assert done.stderr.splitlines()[-1].endswith("weights: cannot be opened: too many open files in this process")


def test_files_are_not_mapped_by_python() -> None:
    """On macOS that flushes the drive's cache for every file, and all threads wait."""
    source = Path(system.__file__).parents[2]
    calls = [
        (path.name, ast.unparse(node.args[0]))
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "mmap.mmap"
    ]
    assert {name for name, _ in calls} >= {"mapping.py", "arena.py"}
    assert {descriptor for _, descriptor in calls} == {"-1"}


def test_a_file_system_without_writes_past_the_cache() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has such writes")
    assert system.open_past_cache("/proc/self/comm") is None


def test_public_names_are_found_once() -> None:
    import lbrx.memory

    vars(lbrx.memory).pop("ReadAhead", None)
    found = lbrx.memory.ReadAhead
    assert vars(lbrx.memory)["ReadAhead"] is found
