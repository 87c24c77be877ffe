"""Paths of remote files. They can be inspected and read like local paths."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import Self

from lbrx.errors import FileError

_PASSWORD = re.compile(r"(https?://)[^/\s]*@")
_QUERY = re.compile(r"(https?://[^\s?]*)\?[^\s:'\")]*")
SCHEMES = ("s3", "gs", "hf", "http", "https", "memory")


def without_secrets(text: str) -> str:
    """Remove passwords and queries, which may contain signatures, from the URLs in a text.

    >>> without_secrets("https://user:secret@host/a.gguf?key=secret: not found")
    'https://***@host/a.gguf?***: not found'
    """
    return _QUERY.sub(r"\1?***", _PASSWORD.sub(r"\1***@", text))


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a remote URL. A ``Path`` built from a URL, which lost a slash, counts too.

    >>> is_remote("s3://bucket/model"), is_remote(Path("s3://bucket/model")), is_remote("models/a")
    (True, True, False)
    """
    if isinstance(path, RemotePath):
        return True
    if isinstance(path, Path):
        return len(path.parts) > 1 and path.parts[0].removesuffix(":") in SCHEMES and path.parts[0][-1] == ":"
    scheme, separator, _ = os.fspath(path).partition("://")
    return bool(separator) and scheme in SCHEMES


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a ``RemotePath`` for a remote URL, else a ``Path``.

    >>> as_path("s3://bucket/model"), as_path("a/b")
    (RemotePath('s3://bucket/model'), PosixPath('a/b'))
    """
    if isinstance(path, RemotePath):
        return path
    return RemotePath(path) if is_remote(path) else Path(path)


class RangedSource(io.RawIOBase):
    """A file that is read by ranges and has no file descriptor; see ``lbrx.files.formats.source``."""

    nbytes: int

    def read_range(self, offset: int, count: int) -> bytes:
        """Read exactly these bytes."""
        raise NotImplementedError


class RemotePath(PosixPath):
    """A URL as a path: names, parents and children work as usual; file system queries ask the remote service.

    >>> path = RemotePath("s3://bucket/models/a.gguf")
    >>> path.name, str(path.parent), str(path.parent / "b.gguf")
    ('a.gguf', 's3://bucket/models', 's3://bucket/models/b.gguf')
    """

    __slots__ = ()

    @property
    def scheme(self) -> str:
        return self.parts[0][:-1]

    @property
    def url(self) -> str:
        """The URL with its secrets, only for requests."""
        return f"{self.scheme}://{'/'.join(self.parts[1:])}"

    def __str__(self) -> str:
        """Return the URL for messages and journals: without password and query, which may contain a signature."""
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def as_posix(self) -> str:
        return str(self)

    def __fspath__(self) -> str:
        raise FileError(f"{self}: is a remote file; expected a local file")

    def resolve(self, strict: bool = False) -> Self:
        del strict  # a URL has no links to follow
        return self

    def expanduser(self) -> Self:
        return self

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        del follow_symlinks
        return self._file_type() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        del follow_symlinks
        return self._file_type() == "file"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        del follow_symlinks
        return self._file_type() == "directory"

    def is_symlink(self) -> bool:
        return False

    def _file_type(self) -> str | None:
        from lbrx.files.remote.filesystem import file_type_of

        return file_type_of(self)

    def forget_listing(self) -> None:
        """Drop the cached listing of this directory, so that the service is asked again."""
        from lbrx.files.remote.filesystem import forget_listings

        forget_listings(self)

    def iterdir(self) -> Generator[Self, None, None]:
        from lbrx.files.remote.filesystem import child_names

        return (self / name for name in child_names(self))

    def glob(self, pattern: str, **_: object) -> Generator[Self, None, None]:
        """Yield the children whose names match; patterns have one level."""
        return (child for child in self.iterdir() if fnmatchcase(child.name, pattern))

    def read_bytes(self) -> bytes:
        from lbrx.files.remote.reading import RemoteFile

        file = RemoteFile(self)
        return file.fetch(0, file.file_bytes)

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        text = self.read_bytes().decode(encoding or "utf-8", errors or "strict")
        return text if newline == "" else text.replace("\r\n", "\n")
