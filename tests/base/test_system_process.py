"""Memory in use and available, processors and the cache directory, as the real system gives them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lbrx.base import system
from lbrx.base.system import process
from support.resident import resident_bytes

MIB = 1 << 20
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="checks what the Linux kernel does")


def test_anonymous_memory_is_counted() -> None:
    """In a process of its own: other tests' memory may be freed at any moment."""
    code = (
        "import numpy as np; from lbrx.base import system; before = system.anonymous_bytes()\n"
        f"block = np.ones({64 * MIB}, np.uint8); print(system.anonymous_bytes() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 48 * MIB < int(done.stdout) < 80 * MIB


@linux_only
def test_mapped_file_is_resident_but_not_anonymous(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(64 * MIB))
    fd = system.open_read(tmp_path / "big")
    result = system.map_readonly(fd, 0, 64 * MIB)
    assert result is not None
    resident, anonymous = resident_bytes(), system.anonymous_bytes()
    assert int(np.frombuffer(result, np.uint64).max()) == 0
    assert resident_bytes() - resident > 48 * MIB
    assert system.anonymous_bytes() - anonymous < 16 * MIB
    os.close(fd)


@linux_only
def test_affinity_limits_cpu_count() -> None:
    if sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(allowed)})
        try:
            assert system.cpu_count() == 1
        finally:
            os.sched_setaffinity(0, allowed)
        assert system.cpu_count() == len(allowed)


def test_container_limits(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "membership"
    outer, inner = root / "outer", root / "outer" / "inner"
    inner.mkdir(parents=True)
    membership.write_text("4:memory:/elsewhere\n0::/outer/inner\n")
    _write_group(tmp_path, limit="1", used=0)  # not a group: it lies above the root
    _write_group(outer, limit="1000", used=700, inactive_file=150)
    _write_group(inner, limit="max", used=700)
    assert process._cgroup_free_bytes(root, membership) == [450]
    _write_group(inner, limit="100", used=120)
    assert process._cgroup_free_bytes(root, membership) == [0, 450]
    assert process._cgroup_free_bytes(root, tmp_path / "absent") == []


def test_missing_field_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmRSS:\t  12 kB\n")
    assert process._kib_field(tmp_path / "status", "VmRSS") == 12 * 1024
    with pytest.raises(OSError, match="has no line 'RssAnon'"):
        process._kib_field(tmp_path / "status", "RssAnon")


@linux_only
@pytest.mark.parametrize("mode", [0o770, 0o707])
@pytest.mark.parametrize("part", ["", "kernels"])
def test_a_cache_that_others_can_write_is_not_used(
    mode: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBRX_CACHE_DIR", str(tmp_path / "cache"))
    system.make_private(tmp_path / "cache" / "kernels")
    assert system.cache_directory("kernels") == tmp_path / "cache" / "kernels"
    (tmp_path / "cache" / part).chmod(mode)
    with pytest.warns(RuntimeWarning, match="other users can write to this cache directory, so it is not used") as seen:
        used = [system.cache_directory("kernels") for _ in range(2)]
    assert len(seen) == 1
    assert used[0] == used[1]
    assert tmp_path not in used[0].parents
    assert system.is_private(used[0].parent)


def test_a_cache_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    assert system.is_private(tmp_path) == (tmp_path.stat().st_uid == 0)


def test_new_cache_directories_are_private(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        system.make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("LBRX_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert system.cache_directory() == Path("/home/me/.cache/lbrx")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert system.cache_directory() == Path("/home/me/.cache/lbrx")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert system.cache_directory() == Path("/caches/lbrx")
    monkeypatch.setenv("LBRX_CACHE_DIR", "~/mine")
    assert system.cache_directory() == Path("/home/me/mine")


def _write_group(group: Path, limit: str, used: int, inactive_file: int = 0) -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon {used}\ninactive_file {inactive_file}\n")


@pytest.mark.parametrize(("platform", "cores"), [("darwin", 10), ("linux", None)])
def test_only_a_mac_is_asked_for_the_cores_of_its_gpu(
    platform: str, cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.darwin, "gpu_cores", lambda: 10)
    monkeypatch.setattr(process.sys, "platform", platform)
    assert process.gpu_cores() == cores
