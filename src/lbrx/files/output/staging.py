"""The staging directory of an output: beside its target, under a name that a later run finds again.

For ``models/out`` these are ``models/.out.partial``, the files; ``models/.out.partial.journal``; and, while an old
output is being replaced, ``models/.out.replaced``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from lbrx.base import atomic_write, system
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.files.formats.detect import detect_format
from lbrx.files.output.plan import digest, named_path
from lbrx.files.output.sentence_modules import is_module_folder
from lbrx.files.remote.paths import is_remote

_ASIDE = "replaced"  # a directory of old files, while those of a split model are replaced
# What lbrx and Hugging Face tools write into the directory of a model.
_WEIGHT_ENDINGS = (".safetensors", ".bin")
_MODEL_ENDINGS = (*_WEIGHT_ENDINGS, ".json", ".jinja", ".model", ".py")
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
        if target.is_symlink() and target.is_dir():
            target = target.resolve()  # the directory itself is replaced, and a link to it stays
        target = named_path(target)
        self.target = target
        name = os.fsencode(target.name)
        short = target.name if len(name) <= _LONGEST_NAME_BYTES else digest(name)
        self.partial = target.with_name(f".{short}.partial")
        self.journal = target.with_name(f".{short}.partial.journal")
        self.replaced = target.with_name(f".{short}.replaced")
        self._files = None if file_names is None else [target.with_name(name) for name in file_names]

    @property
    def is_split(self) -> bool:
        """Whether the output is several files, which cannot be renamed in one step."""
        return self._files is not None and len(self._files) > 1

    def inodes(self) -> dict[str, int]:
        """The inodes of the finished directory or files, by the names that they will have: they tell new from old."""
        if self._files is None:
            return {self.target.name: self.partial.stat().st_ino}
        return {file.name: (self.partial / file.name).stat().st_ino for file in self._files}

    @property
    def has_lost_target(self) -> bool:
        """Whether a run stopped while it replaced an old output, and moved it aside."""
        if (self.partial / _ASIDE).is_dir():
            return self._has_unpublished
        return self.replaced.exists() and not self.target.exists()

    @property
    def _has_unpublished(self) -> bool:
        return self.partial.is_dir() and any(file.name != _ASIDE for file in self.partial.iterdir())

    def undo_publishing(self, inodes: Mapping[str, int] = MappingProxyType({})) -> None:
        """Put back an old output that was moved aside, and new files that were given their names, if not all were.

        Files with these inodes are new, and so are those that have the name of an old file that was moved aside.
        """
        if self.replaced.exists() and not self.target.exists():
            system.rename(self.replaced, self.target)
        if not self._has_unpublished:
            return
        aside = self.partial / _ASIDE
        old = sorted(file.name for file in aside.iterdir()) if aside.is_dir() else []
        new = [name for name, inode in inodes.items() if self._is_new(name, inode)]
        for name in {**dict.fromkeys(old), **dict.fromkeys(new)}:
            file = self.target.with_name(name)
            if file.is_file() and not (self.partial / name).exists():
                system.rename(file, self.partial / name)
        for name in reversed(old):
            system.rename(aside / name, self.target.with_name(name))
        system.remove_tree(aside)

    def check_target(self, overwrite: bool) -> None:
        """Raise if the target exists and may not be replaced, or if one of its parents is not a directory."""
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
        system.make_directory(self.target.parent)

    def replaced_files(self) -> list[Path]:
        """The existing output that would be replaced."""
        if self._files is not None:
            return [file for file in self._files if file.exists()]
        return sorted(self.target.iterdir()) if self.target.is_dir() else []

    def check_replaced(self, inputs: Sequence[Path]) -> None:
        """Raise if replacing the target would remove inputs, or files that are not part of a model."""
        replaced = self.replaced_files()
        kept = {_identity(path): path for path in inputs if not is_remote(path)}
        for file in replaced:
            source = kept.get(_identity(file))
            if source is not None:
                raise UsageError(f"{file}: is the input {source}, which must not be replaced; expected another output")
            if self._files is not None:
                check_is_model(file)
        foreign = [file.name for file in replaced if self._files is None and not _is_of_model(file)]
        if foreign:
            listed = ", ".join(map(repr, foreign[:3])) + (" and more" if foreign[3:] else "")
            raise FileError(
                f"{self.target}: has {listed}, no part of a model; --overwrite replaces models only, "
                "expected another output"
            )
        if replaced and self._files is None and not any(file.name.endswith(_WEIGHT_ENDINGS) for file in replaced):
            raise FileError(f"{self.target}: has no weights; --overwrite replaces models only, expected another output")

    def prepare(self, discard: bool) -> None:
        """Make the directory of partial files, emptied first if ``discard``."""
        if self.partial.is_symlink():
            raise FileError(f"{self.partial}: is a symbolic link; expected a directory of lbrx, or nothing")
        if discard:
            system.remove_tree(self.partial)
        system.make_directory(self.partial)

    def discard(self) -> None:
        """Remove the partial files, after an error."""
        with suppress(FileError):
            if self.has_lost_target:
                self.undo_publishing()
            system.remove_tree(self.partial)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove files that are not part of the output: a power failure can bring removed ones back."""
        folders = {name.partition("/")[0] for name in names if "/" in name}
        children = [child for folder in folders for child in (self.partial / folder).iterdir()]
        for file in (*self.partial.iterdir(), *children):
            if file.name in folders or file.relative_to(self.partial).as_posix() in names:
                continue
            if file.is_dir() and not file.is_symlink():
                system.remove_tree(file)
            else:
                system.remove_file(file)

    def publish(self, sync: bool) -> None:
        """Give the finished directory, or files, the target's name; the old output is removed after that."""
        if self._files is not None:
            self._publish_files(self._files, sync)
        elif not self.target.exists():
            system.rename(self.partial, self.target)
        elif not system.exchange(self.partial, self.target):
            self._replace_in_steps(sync)
        if sync:
            system.sync_directory(self.target.parent)
        self.clean_up()

    def is_published(self, inodes: Mapping[str, int]) -> bool:
        """Whether everything that a run finished has its name now."""
        return all(self._is_new(name, inode) for name, inode in inodes.items())

    def _is_new(self, name: str, inode: int) -> bool:
        identity = _identity(self.target.with_name(name))
        return identity is not None and identity[1] == inode

    def clean_up(self) -> None:
        """Remove leftovers after the output is published."""
        system.remove_tree(self.partial)
        system.remove_tree(self.replaced)

    def _replace_in_steps(self, sync: bool) -> None:
        system.remove_tree(self.replaced)
        atomic_write.replace(self.target, self.replaced, sync=sync)
        try:
            system.rename(self.partial, self.target)
        except BaseException:
            self.undo_publishing()
            raise

    def _publish_files(self, files: Sequence[Path], sync: bool) -> None:
        """Rename all files, or none if that fails.

        The old files of a split model are moved aside first, so that old and new ones are never mixed. The first file
        is the first to go and the last to come: without it the others are not taken for a model.
        """
        if len(files) == 1:
            system.rename(self.partial / files[0].name, files[0])
            return
        aside, inodes = self.partial / _ASIDE, self.inodes()
        try:
            if sync:
                system.sync_directory(self.target.parent)  # the journal
            old = [file for file in files if file.exists()]
            if old:
                system.make_directory(aside)
            for file in old:
                system.rename(file, aside / file.name)
            if old and sync:
                system.sync_directory(self.partial)
                system.sync_directory(aside)
                system.sync_directory(self.target.parent)
            for file in reversed(files):
                system.rename(self.partial / file.name, file)
        except BaseException:
            self.undo_publishing(inodes)
            raise

    def write_file(self, name: str, content: bytes, sync: bool) -> None:
        """Write a small file of the output."""
        path = self.partial / name
        if path.parent != self.partial:
            system.make_directory(path.parent)
        system.write_file(path, content, sync=sync)
        if sync and path.parent != self.partial:
            system.sync_directory(path.parent)

    def open_file(self, name: str, file_bytes: int, header: bytes) -> int:
        """Open a file of the output for reading and writing, in its full size and with its header."""
        path = self.partial / name
        descriptor = system.open_write(path)
        try:
            before = bytearray(len(header))
            if os.fstat(descriptor).st_size == file_bytes:
                system.pread_into(descriptor, before, 0, path)
            if os.fstat(descriptor).st_size != file_bytes or before != header:
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
        return file.name == ".cache" or is_module_folder(file)  # of downloads from the hub, or of sentence-transformers
    return file.name in _MODEL_FILES or file.name.endswith(_MODEL_ENDINGS)


def check_is_model(file: Path) -> None:
    """Raise if a file is no model, which must not be replaced by one."""
    if not file.is_file():
        raise FileError(f"{file}: is a special file; --overwrite replaces models only, expected another output")
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
