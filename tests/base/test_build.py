"""Which build computes: journals and kept measurements of other sources are not resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbrx.base.build import build, sources_digest
from lbrx.version import __version__


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in (("engine/fuse.py", "a + b"), ("cli/main.py", "print"), ("devices/metal/rows.metal", "x")):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "package"


def test_a_build_is_a_version_and_its_sources() -> None:
    version, sources = build().split(" (sources ")
    assert (version, len(sources)) == (__version__, 13)


@pytest.mark.parametrize("name", ["engine/fuse.py", "devices/metal/rows.metal", "engine/new.py"])
def test_sources_that_compute_change_the_digest(package: Path, name: str) -> None:
    before = sources_digest(package)
    (package / name).write_text("a - b")
    assert sources_digest(package) != before


def test_a_renamed_source_changes_the_digest(package: Path) -> None:
    before = sources_digest(package)
    (package / "engine/fuse.py").rename(package / "engine/other.py")
    assert sources_digest(package) != before


@pytest.mark.parametrize("name", ["cli/main.py", "engine/__pycache__/fuse.pyc", "plots/new.py"])
def test_other_files_do_not(package: Path, name: str) -> None:
    before = sources_digest(package)
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("another text")
    assert sources_digest(package) == before


def test_the_digest_is_the_same_everywhere(package: Path, tmp_path: Path) -> None:
    before = sources_digest(package)
    assert before == "385c08199f65"
    assert sources_digest(package.rename(tmp_path / "elsewhere")) == before
