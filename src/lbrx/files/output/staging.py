"""The staging directory of an output: beside its target, under a name that a later run finds again.

For ``models/out`` these are ``models/.out.partial``, the files; ``models/.out.partial.journal``; and, while an old
output is being replaced, ``models/.out.replaced``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from lbrx.base import atomic_write, system
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.files.formats.detect import detect_format
from lbrx.files.output.plan import digest
from lbrx.files.remote.paths import is_remote

_ASIDE = "replaced"  # a directory of old files, while those of a split model are replaced
# What lbrx and Hugging Face tools write into the directory of a model.
_MODEL_ENDINGS = (".safetensors", ".bin", ".json", ".jinja", ".model", ".py")
_MODEL_FILES = (
    "README.md",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
    "USE_POLICY.md",
    "vocab.txt",
    "merges.txt",
    "mergekit_config.yml",
    ".gitattributes",
    ".DS_Store",
)
_LONGEST_NAME_BYTES = 200  # that file systems let us add to


class Staging:
    """The paths around an output, and the moves between them: a directory, or files if their names are given.

    >>> staging = Staging(Path("models/out"))
    >>> str(staging.partial), str(staging.journal)
    ('models/.out.partial', 'models/.out.partial.journal')
    """

    def __init__(self, target: Path, file_names: Sequence[str] | None = None) -> None:
        if target.name in ("", "..", ".") or (target.is_symlink() and target.is_dir()):
            target = target.resolve()  # the directory itself is replaced, and a link to it stays
        self.target = target
        name = os.fsencode(target.name)
        short = target.name if len(name) <= _LONGEST_NAME_BYTES else digest(name)
        self.partial = target.with_name(f".{short}.partial")
        self.journal = target.with_name(f".{short}.partial.journal")
        self.replaced = target.with_name(f".{short}.replaced")
        self._files = None if file_names is None else [target.with_name(name) for name in file_names]

    @property
    def has_lost_target(self) -> bool:
        """Whether an old output was moved aside and not replaced yet."""
        return self.replaced.exists() and not self.target.exists()

    def restore_target(self) -> None:
        """Put back an old output that was moved aside."""
        if self.has_lost_target:
            atomic_write.replace(self.replaced, self.target)

    def check_target(self, overwrite: bool) -> None:
        """Raise if the target exists and may not be replaced, or if something above it is no directory."""
        parent = existing_parent(self.target)
        if not parent.is_dir():
            raise FileError(f"{parent}: is a file; expected a directory to write to")
        if self._files is not None:
            _check_files(self._files, overwrite)
            return
        if not self.target.exists() and not self.target.is_symlink():
            return
        if not self.target.is_dir():
            raise FileError(f"{self.target}: is a file; expected a directory to write to")
        if any(self.target.iterdir()) and not overwrite:
            raise FileError(f"{self.target}: exists and is not empty; --overwrite replaces it")

    def make_parent(self) -> None:
        """Make the directories above the target."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.target.parent}: cannot be made: {error.strerror}") from error

    def replaced_files(self) -> list[Path]:
        """What stands in the place of the output and would be replaced."""
        if self._files is not None:
            return [file for file in self._files if file.exists()]
        return sorted(self.target.iterdir()) if self.target.is_dir() else []

    def check_replaced(self, inputs: Sequence[Path]) -> None:
        """Raise if replacing the target would remove inputs, or files that are no part of a model."""
        replaced = self.replaced_files()
        kept = {_identity(path): path for path in inputs if not is_remote(path)}
        for file in replaced:
            source = kept.get(_identity(file))
            if source is not None:
                raise UsageError(f"{file}: is the input {source}, which must not be replaced; expected another output")
            if self._files is not None:
                _check_is_model(file)
        foreign = [file.name for file in replaced if self._files is None and not _is_of_model(file)]
        if foreign:
            listed = ", ".join(map(repr, foreign[:3])) + (" and more" if foreign[3:] else "")
            raise FileError(
                f"{self.target}: has {listed}, no part of a model; --overwrite replaces models only, "
                "expected another output"
            )

    def prepare(self, discard: bool) -> None:
        """Make the directory of partial files, emptied first if ``discard``."""
        if self.partial.is_symlink():
            raise FileError(f"{self.partial}: is a symbolic link; expected a directory of lbrx, or nothing")
        try:
            if discard and self.partial.exists():
                shutil.rmtree(self.partial)
            self.partial.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.partial}: cannot be made: {error.strerror}") from error

    def discard(self) -> None:
        """Remove the partial files."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def publish(self, sync: bool) -> None:
        """Give the finished directory, or files, the target's name; what stood there goes only now."""
        if self._files is not None:
            self._publish_files(self._files, sync)
            return
        if self.target.exists():
            self.discard_replaced()
            atomic_write.replace(self.target, self.replaced, sync=sync)
        try:
            atomic_write.replace(self.partial, self.target, sync=sync)
        except BaseException:
            self.restore_target()
            raise
        self.discard_replaced()

    def finish_publishing(self) -> bool:
        """Do what is missing of the renames of a run that wrote everything; False if it got to none of them."""
        if self._files is None:
            if self.partial.exists() or not self.target.exists():
                return False
            self.discard_replaced()
            return True
        waiting = [file for file in self._files if (self.partial / file.name).exists()]
        if any(not file.exists() for file in self._files if file not in waiting) or len(waiting) == len(self._files):
            return False
        self._publish_files(waiting, sync=True)
        return True

    def _publish_files(self, files: Sequence[Path], sync: bool) -> None:
        """Rename all files, or none if that fails: old files of a split model are moved aside first."""
        aside = self.partial / _ASIDE
        old = [file for file in files if len(files) > 1 and file.exists()]
        if old:
            aside.mkdir(exist_ok=True)
        moves = [(file, aside / file.name) for file in old]
        moves += [(self.partial / file.name, file) for file in files]
        done: list[tuple[Path, Path]] = []
        try:
            for source, target in moves:
                atomic_write.replace(source, target, sync=sync)
                done.append((source, target))
        except BaseException:
            for source, target in reversed(done):
                atomic_write.replace(target, source, sync=sync)
            raise
        if aside.exists():
            shutil.rmtree(aside)
        if self.partial.exists():
            self.partial.rmdir()

    def discard_replaced(self) -> None:
        """Remove an old output that has been replaced."""
        if self.replaced.exists():
            shutil.rmtree(self.replaced)

    def write_file(self, name: str, content: bytes, sync: bool) -> None:
        """Write a small file of the output."""
        atomic_write.write_bytes(self.partial / name, content, sync=sync)

    def open_file(self, name: str, file_bytes: int, header: bytes) -> int:
        """Open a file of the output for reading and writing, in its full size and with its header."""
        path = self.partial / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise FileError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            if os.fstat(descriptor).st_size != file_bytes or os.pread(descriptor, len(header), 0) != header:
                system.preallocate(descriptor, file_bytes, path)
                system.pwrite_all(descriptor, header, 0, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def existing_parent(path: Path) -> Path:
    """The nearest thing above a path that exists.

    >>> existing_parent(Path("/absent/model"))
    PosixPath('/')
    """
    return next(parent for parent in path.parents if parent.exists() or parent.is_symlink())


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_of_model(file: Path) -> bool:
    if file.is_dir():
        return file.name == ".cache"  # of downloads from the hub
    return file.name in _MODEL_FILES or file.name.endswith(_MODEL_ENDINGS)


def _check_is_model(file: Path) -> None:
    try:
        if file.stat().st_size:
            detect_format(file)
    except FormatError as error:
        raise FileError(f"{error}; --overwrite replaces models only, expected another output") from error


def _check_files(files: Sequence[Path], overwrite: bool) -> None:
    for file in files:
        if file.is_dir():
            raise FileError(f"{file}: is a directory; expected a file to write to")
        if (file.exists() or file.is_symlink()) and not overwrite:
            raise FileError(f"{file}: exists; --overwrite replaces it")
