"""Outputs in a bucket: each shard is made on this machine, uploaded when it is complete, and removed; the index last.

At most two shards lie on this machine at a time: one that is made, one that is uploaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from lbrx.base import system
from lbrx.errors import FileError
from lbrx.files.formats.header import FileLayout
from lbrx.files.output.plan import OutputPlan, digest
from lbrx.files.output.run import Run
from lbrx.files.output.staging import Staging
from lbrx.files.remote.filesystem import RemoteState, fresh_state_of
from lbrx.files.remote.paths import RemotePath, as_path
from lbrx.files.remote.settings import work_directory
from lbrx.files.remote.uploading import check_apart, check_writable, remove, upload

_RECORD_NAME = ".uploaded.json"
_INDEX_SUFFIX = ".index.json"


class RemoteStaging(Staging):
    """The local staging directory of an output in a bucket, ``remote``, and what of it is uploaded."""

    def __init__(self, plan: OutputPlan, file_names: Sequence[str] | None) -> None:
        target = as_path(plan.out)
        assert isinstance(target, RemotePath)
        check_writable(target)
        self.remote = target if file_names is None else target.parent
        check_apart(self.remote, [header.path for header in plan.sources if isinstance(header.path, RemotePath)])
        directory = work_directory()
        system.make_directory(directory)
        super().__init__(directory / f"{target.name}-{digest(str(target).encode())}")
        self._file_names = None if file_names is None else [*file_names]
        self.uploaded: dict[str, RemoteState] = self._read_record()

    def check_target(self, overwrite: bool) -> None:
        """Raise if there is something in the bucket that this output did not put there."""
        if overwrite or not self.remote.exists():
            return
        names = [child.name for child in self.remote.iterdir() if child.name not in self.uploaded]
        if self._file_names is not None:
            names = [name for name in names if name in self._file_names]
        if names:
            raise FileError(f"{self.remote}: exists and holds {names[0]}; --overwrite replaces it")

    def prepare(self, discard: bool) -> None:
        super().prepare(discard)
        self.uploaded = self._read_record()

    def upload(self, name: str) -> None:
        """Upload a file that is complete, note it down, and remove it from this machine."""
        self.begin_uploads()
        self.note_uploaded(name, upload(self.partial / name, self.remote / name))
        system.remove_file(self.partial / name)

    def begin_uploads(self) -> None:
        """Before the first upload, so that no reader sees an index of other shards."""
        if not self.uploaded and self._file_names is None and self.remote.exists():
            for child in list(self.remote.iterdir()):
                if child.name.endswith(_INDEX_SUFFIX):
                    remove(child)

    def note_uploaded(self, name: str, state: RemoteState) -> None:
        """Record that a file is in the bucket, with its properties there."""
        self.uploaded[name] = state
        record = {name: [state.nbytes, state.version] for name, state in self.uploaded.items()}
        self.write_file(_RECORD_NAME, json.dumps(record).encode(), sync=True)

    def is_uploaded(self, name: str) -> bool:
        """Whether a file is in the bucket as it was uploaded."""
        state = self.uploaded.get(name)
        if state is None:
            return False
        path = self.remote / name
        return path.exists() and fresh_state_of(path) == state

    def publish(self, sync: bool) -> None:
        """Upload the small files, the index last, and remove old shards that the output does not have."""
        del sync  # uploaded bytes are already on a disk
        files = [file.relative_to(self.partial).as_posix() for file in self.partial.rglob("*") if file.is_file()]
        waiting = sorted(name for name in files if name != _RECORD_NAME)
        for name in sorted(waiting, key=lambda name: name.endswith(_INDEX_SUFFIX)):
            self.upload(name)
        if self._file_names is None:
            for child in list(self.remote.iterdir()):
                if child.suffix == ".safetensors" and child.name not in self.uploaded:
                    remove(child)
        self.clean_up()

    def is_published(self, inodes: Mapping[str, int]) -> bool:
        """Whether an earlier run uploaded everything; what it did not is found by looking at the bucket again."""
        del inodes
        return not self.partial.exists()

    def keep_only(self, names: Collection[str]) -> None:
        super().keep_only([*names, _RECORD_NAME])

    def _read_record(self) -> dict[str, RemoteState]:
        path: Path = self.partial / _RECORD_NAME
        try:
            return {name: RemoteState(*state) for name, state in json.loads(path.read_bytes()).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):  # none, or an incomplete one: upload again
            return {}


class UploadingRun(Run):
    """A run whose files are uploaded one after the other, each while the next is made."""

    staging: RemoteStaging

    def run(self) -> None:
        before: Future[None] | None = None
        with ThreadPoolExecutor(1, "lbrx-upload") as uploader:
            for layout in self.plan.layouts:
                if uploaded_before(self, self.staging, layout):
                    continue
                with self.opened(layout) as descriptor:
                    self.check_finished(layout, descriptor)
                    self.write_layout(layout, descriptor)
                if before is not None:
                    before.result()
                before = uploader.submit(self.staging.upload, layout.name)
            if before is not None:
                before.result()


def uploaded_before(run: Run, staging: RemoteStaging, layout: FileLayout) -> bool:
    """Whether an earlier run uploaded the file; if it is not there any more, its tensors are made again."""
    entries = [run.journal.entries.get(slot.name) for slot in layout.slots]
    is_uploaded = None not in entries and staging.is_uploaded(layout.name)
    for slot, entry in zip(layout.slots, entries, strict=True):
        if entry is not None and is_uploaded:
            run.count_resumed(slot, entry)
        elif entry is not None and layout.name in staging.uploaded:
            del run.journal.entries[slot.name]
    return is_uploaded
