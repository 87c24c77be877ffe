"""Compiled things on disk: checksummed entries that are replaced atomically and never trusted unseen."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lbrx.base import system
from lbrx.base.atomic_write import write_cache

_MAGIC = b"lbrx metal artifact 1\n"
_DIGEST_BYTES = 32


class ArtifactStore:
    """Entries by key in a directory that several processes may use at once.

    An entry carries its key and a checksum, so that a damaged or foreign one is None, as if it were not there. Where
    the directory cannot be written nothing is kept.

    >>> import tempfile
    >>> store = ArtifactStore(Path(tempfile.mkdtemp()))
    >>> store.write("key", b"compiled")
    >>> store.read("key"), store.read("other")
    (b'compiled', None)
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    @property
    def directory(self) -> Path:
        """Where entries are: as given, or the user's cache directory."""
        return self._directory or system.cache_directory("metal")

    def path(self, key: str) -> Path:
        """The file of an entry, which may not exist."""
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.bin"

    def read(self, key: str) -> bytes | None:
        """The entry, or None if there is none that is whole."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if not data.startswith(_MAGIC) or _digest(key, body) != data[len(_MAGIC) : start]:
            return None
        return body

    def write(self, key: str, body: bytes) -> None:
        """Keep an entry for the next start."""
        write_cache(self.path(key), _MAGIC + _digest(key, body) + body)


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + body).digest()
