"""Power losses: the writes and changes of names of a job are recorded, and the state at each point built again.

What was not flushed may be lost. A write or a change of size is safe once its file was flushed; a change of names once
one of the directories that it concerns was flushed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reliability.calls import Call, Perform, intercepted
from reliability.jobs import Trial, WrongOutcomeError, files_of

_DATA = ("write", "truncate")
Chosen = Callable[[int], bool]


@dataclass(frozen=True)
class Event:
    """A change that a call made: of the content of a file, or of the names in directories (``holders``)."""

    call: Call
    number: int = 0  # of the file whose content changes, that is flushed, or that is new
    inode: int = 0
    holders: tuple[int, ...] = ()

    @property
    def is_content(self) -> bool:
        return self.call.function in _DATA


class Recorder:
    """A hook that performs calls and notes the changes they make, in their order."""

    def __init__(self, root: Path) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}  # inode -> number: an inode is used again after its file was removed
        self.initial = {str(path): self._number(path.stat().st_ino) for path in (root, *sorted(root.rglob("*")))}

    def __call__(self, call: Call, perform: Perform) -> Any:
        if call.function in ("read", "mmap", "thread", "allocate", "fallocate"):
            return perform()
        with self._lock:
            is_new = call.function in ("open", "mkdir") and not os.path.lexists(call.paths[0])
            holders = () if call.function in (*_DATA, "fsync") else self._holders(call)
            result = perform()
            if call.function == "open" and (not is_new or not os.path.exists(call.paths[0])):
                return result
            inode = os.stat(call.paths[0]).st_ino if call.function in ("open", "mkdir", "fsync", *_DATA) else 0
            if is_new:
                self._numbers[inode] = len(self._numbers) + len(self.events) + 1_000_000
            number = self._number(inode) if inode else 0
            self.events.append(Event(call, number, inode, holders))
            return result

    def _number(self, inode: int) -> int:
        return self._numbers.setdefault(inode, len(self._numbers))

    def _holders(self, call: Call) -> tuple[int, ...]:
        return tuple(self._number(os.stat(os.path.dirname(path)).st_ino) for path in call.paths)


@dataclass
class Node:
    """A file or a directory of a state that is built."""

    number: int
    inode: int
    content: bytearray | None = None
    children: dict[str, Node] = field(default_factory=dict)


class Disk:
    """The files below a directory after some of the events."""

    def __init__(self, root: Path, initial: dict[str, int], files: dict[str, bytes]) -> None:
        self.root = root
        self.top = Node(initial[str(root)], 0)
        self._nodes: dict[int, Node] = {}
        for path, number in initial.items():
            if path != str(root):
                name = str(Path(path).relative_to(root))
                self._add(path, number, 0, bytearray(files[name]) if name in files else None)

    def apply(self, event: Event) -> None:
        """Do what an event did; nothing if the files that it needs were lost."""
        call = event.call
        if event.is_content:
            node = self._nodes.get(event.number)
            if node is not None and node.content is not None:
                _change(node.content, call)
        elif call.function in ("open", "mkdir"):
            self._add(call.paths[0], event.number, event.inode, bytearray() if call.function == "open" else None)
        elif call.function in ("unlink", "rmdir"):
            holder, name = self._holder(call.paths[0])
            if holder is not None and name in holder.children and not holder.children[name].children:
                del holder.children[name]
        elif call.function in ("rename", "exchange"):
            self._move(call)

    def write(self) -> None:
        """Make the real directory like this one. Journals name inodes, which are others now."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        inodes: dict[int, int] = {}
        self._write(self.top, self.root, inodes)
        for journal in self.root.rglob("*.journal"):
            text = journal.read_bytes()
            journal.write_bytes(re.sub(rb'"inodes": \{[^}]*\}', lambda match: _renumbered(match[0], inodes), text))

    def _write(self, node: Node, path: Path, inodes: dict[int, int]) -> None:
        for name, child in node.children.items():
            if child.content is None:
                (path / name).mkdir()
                self._write(child, path / name, inodes)
            else:
                (path / name).write_bytes(child.content)
            if child.inode:
                inodes[child.inode] = (path / name).stat().st_ino

    def _add(self, path: str, number: int, inode: int, content: bytearray | None) -> None:
        holder, name = self._holder(path)
        if holder is not None and name not in holder.children:
            holder.children[name] = self._nodes[number] = Node(number, inode, content)

    def _move(self, call: Call) -> None:
        (source, old), (target, new) = (self._holder(path) for path in call.paths)
        if source is None or target is None or old not in source.children:
            return
        if call.function == "rename":
            target.children[new] = source.children.pop(old)
        elif new in target.children:
            source.children[old], target.children[new] = target.children[new], source.children[old]

    def _holder(self, path: str) -> tuple[Node | None, str]:
        *folders, name = Path(path).relative_to(self.root).parts
        node: Node | None = self.top
        for folder in folders:
            node = node.children.get(folder) if node is not None else None
        return (node if node is not None and node.content is None else None), name


def _change(content: bytearray, call: Call) -> None:
    if call.function == "truncate":
        del content[call.offset :]
        content.extend(bytes(call.offset - len(content)))
        return
    content.extend(bytes(max(0, call.offset - len(content))))
    content[call.offset : call.offset + len(call.data)] = call.data


def _renumbered(text: bytes, inodes: dict[int, int]) -> bytes:
    return re.sub(rb": (\d+)", lambda match: b": %d" % inodes.get(int(match[1]), 0), text)


class PowerLoss:
    """The recorded changes of a job, and the states that a power loss can leave."""

    def __init__(self, trial: Trial) -> None:
        trial.reset()
        self.trial = trial
        recorder = Recorder(trial.out)
        with intercepted(trial.out, recorder):
            trial.job.perform(trial)
        self.events, self._initial = recorder.events, recorder.initial
        self._build(len(self.events), lambda _: True).write()
        if files_of(trial.out) != trial.new:
            raise WrongOutcomeError(f"{trial.job.name}: the recorded changes do not give the output")

    def states(self, seeds: int) -> Iterator[tuple[int, str]]:
        """All crash points, each with the ways in which what was not flushed may be lost."""
        for point in range(len(self.events) + 1):
            for way in ("all kept", "all lost", "contents lost", *(f"seed {seed}" for seed in range(seeds))):
                yield point, way

    def try_state(self, point: int, way: str) -> None:
        """Build a state and check it."""
        self._build(point, self._chosen(point, way)).write()
        self.trial.check(f"{self.trial.job.name}: power loss after change {point} of {len(self.events)}, {way}")

    def _build(self, point: int, is_kept: Chosen) -> Disk:
        disk = Disk(self.trial.out, self._initial, self.trial.old)
        for index, event in enumerate(self.events[:point]):
            if is_kept(index):
                disk.apply(event)
        return disk

    def _chosen(self, point: int, way: str) -> Chosen:
        flushed = [self._is_flushed(index, point) for index in range(point)]
        if way == "all kept":
            return lambda _: True
        if way == "all lost":
            return lambda index: flushed[index]
        if way == "contents lost":
            return lambda index: flushed[index] or not self.events[index].is_content
        dice = random.Random(f"{point} {way}")
        # Changes of names reach the disk in their order on file systems with a journal; contents in any.
        last_name = dice.randint(0, point)
        kept = [
            dice.random() < 0.5 if event.is_content else index < last_name
            for index, event in enumerate(self.events[:point])
        ]
        return lambda index: flushed[index] or kept[index]

    def _is_flushed(self, index: int, point: int) -> bool:
        event = self.events[index]
        wanted = (event.number,) if event.is_content else event.holders
        return any(
            later.call.function == "fsync" and later.number in wanted for later in self.events[index + 1 : point]
        )
