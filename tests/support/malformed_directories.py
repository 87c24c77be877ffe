"""Malformed directories and split models, and files that are something else."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import FileError, FormatError
from lbrx.files.formats.detect import detect_format
from lbrx.files.formats.directory import read_directory, read_file
from support.malformed_bytes import Malformed, file_case, gguf_file, info, pair, safetensors_file, tensor, tree


def directory_cases() -> list[Malformed]:
    """Everything that a model of several files can get wrong."""
    whole = safetensors_file({"w": tensor()}, b"\0\0")
    other = safetensors_file({"v": tensor()}, b"\0\0")

    def index(weight_map: Any) -> dict[str, bytes]:
        return {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(), "a.safetensors": whole}

    def shard(number: int, count: int, total: int, name: str) -> bytes:
        keys = (pair("split.no", 2, struct.pack("<H", number)), pair("split.count", 2, struct.pack("<H", count)))
        return gguf_file((*keys, pair("split.tensors.count", 5, struct.pack("<i", total))), (info(name),))

    first, second = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
    unsafe = (
        "../a.safetensors",
        "/etc/a.safetensors",
        "x/a.safetensors",
        "..\\a.safetensors",
        "a.safetensors\0",
        ".safetensors",
    )
    good_first = shard(0, 2, 2, "a")
    rows: list[tuple[str, Mapping[str, bytes], str, type[FileError], str]] = [
        ("nothing inside", {}, "", FileError, "holds no .safetensors or .gguf files"),
        (
            "only pickles",
            {"consolidated.00.pth": b"PK\3\4"},
            "",
            FileError,
            "but consolidated.00.pth; expected its",
        ),
        (
            "several GGUF models",
            {"a.gguf": b"", "b.gguf": b""},
            "",
            FileError,
            "holds 2 GGUF files, expected the path of one",
        ),
        ("index is not JSON", {"model.safetensors.index.json": b"{"}, "", FormatError, "index.json: is not valid JSON"),
        ("index is a list", {"model.safetensors.index.json": b"[]"}, "", FormatError, "is a JSON list"),
        ("index without weights", {"model.safetensors.index.json": b"{}"}, "", FormatError, "'weight_map' is None"),
        (
            "two other indices",
            {"a.safetensors.index.json": b"", "b.safetensors.index.json": b""},
            "",
            FileError,
            "holds 2 indices",
        ),
        ("file name is a number", index({"w": 1}), "", FormatError, "listed in 1, expected the plain name"),
        ("file name too long", index({"w": "a" * 300 + ".safetensors"}), "", FormatError, "expected the plain name"),
        *(
            (
                f"file name {name!r}",
                index({"w": name}),
                "",
                FormatError,
                "expected the plain name of a .safetensors file",
            )
            for name in unsafe
        ),
        (
            "missing shard",
            index({"w": "b.safetensors"}),
            "",
            FileError,
            "names the shard 'b.safetensors', which is missing",
        ),
        (
            "weight not in its shard",
            index({"w": "a.safetensors", "v": "a.safetensors"}),
            "",
            FormatError,
            "'v' is not in its shard",
        ),
        (
            "shard is an LFS pointer",
            {
                **index({"w": "a.safetensors"}),
                "a.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            },
            "",
            FormatError,
            "a.safetensors: is a Git LFS pointer.* git lfs pull",
        ),
        ("shard is GGUF", {"model.safetensors": gguf_file()}, "", FormatError, "is a gguf file, expected SafeTensors"),
        (
            "tensor in two files",
            {"a.safetensors": whole, "b.safetensors": whole},
            "",
            FormatError,
            "'w' is in both a.safe.* and b.safe",
        ),
        (
            "config is not JSON",
            {"a.safetensors": whole, "config.json": b"{'a'"},
            "",
            FormatError,
            "config.json: is not valid JSON",
        ),
        (
            "config is a list",
            {"a.safetensors": other, "config.json": b"[]"},
            "",
            FormatError,
            "config.json: is a JSON list",
        ),
        ("GGUF shard is missing", {first: good_first}, first, FileError, f"{second}: is missing"),
        ("GGUF shard is missing in a directory", {first: good_first}, "", FileError, f"{second}: is missing"),
        ("first GGUF shard is missing", {second: good_first}, "", FileError, "the first shard is missing"),
        ("second GGUF shard opened", {second: shard(1, 2, 2, "b")}, second, FileError, "is not the first shard"),
        (
            "GGUF shard without split keys",
            {first: gguf_file(), second: b""},
            first,
            FormatError,
            "split.no is None, expected 0",
        ),
        ("GGUF split.count", {first: shard(0, 3, 2, "a")}, first, FormatError, "split.count is 3, expected 2"),
        (
            "GGUF split.no",
            {first: good_first, second: shard(2, 2, 2, "b")},
            first,
            FormatError,
            "split.no is 2, expected 1",
        ),
        (
            "GGUF total",
            {first: good_first, second: shard(1, 2, 3, "b")},
            first,
            FormatError,
            "count is 3, but the shards hold 2",
        ),
        (
            "GGUF tensor in two shards",
            {first: good_first, second: shard(1, 2, 2, "a")},
            first,
            FormatError,
            "'a' is in both",
        ),
        ("GGUF shard is SafeTensors", {first: whole}, "", FormatError, "is a safetensors file, expected GGUF"),
        ("a single file", {"m.gguf": gguf_file()}, "m.gguf", FileError, "is a single gguf file, expected a directory"),
    ]
    renamed = Malformed(
        "directory: renamed GGUF shard",
        tree({"m.gguf": good_first}, "m.gguf"),
        read_file,
        FormatError,
        "is one of 2 shards",
    )
    return [renamed] + [
        Malformed(f"directory: {name}", tree(files, opened), read_directory, error, message)
        for name, files, opened, error, message in rows
    ]


def foreign_cases() -> list[Malformed]:
    """Paths that hold neither SafeTensors nor GGUF."""
    rows = [
        ("empty file", b"", "is empty"),
        ("pickle", b"\x80\x04\x95 torch", "bare Python pickle"),
        ("HTML", b"\n<!DOCTYPE html><html>", "HTML page"),
        ("LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "run git lfs pull"),
        ("JSON", b'{"a": "a longer text than eight bytes"}', "is JSON text"),
        ("GGML", b"lmgg\0\0\0\0\0\0\0\0", "older than GGUF"),
        ("gzip", b"\x1f\x8b\x08", "compressed with gzip"),
        ("zeros", bytes(4096), "begins with zeros"),
        ("text", b"The quick brown fox", "begins with b'The quick br'"),
        ("short SafeTensors", b"\x02\0\0", "begins with b'.x02.x00.x00'"),
    ]

    def pipe(directory: Path) -> Path:
        os.mkfifo(directory / "pipe")
        return directory / "pipe"

    return [
        *(file_case(f"foreign: {name}", content, detect_format, message) for name, content, message in rows),
        Malformed("foreign: pipe", pipe, detect_format, FileError, "is a special file, expected a regular file"),
        Malformed(
            "foreign: missing", lambda path: path / "no", detect_format, FileError, "cannot be opened: No such file"
        ),
        Malformed(
            "foreign: NUL in the path",
            lambda path: path / "a\0",
            detect_format,
            FileError,
            "cannot be opened: embedded null",
        ),
    ]
