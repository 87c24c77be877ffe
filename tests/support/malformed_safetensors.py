"""Malformed SafeTensors files."""

from __future__ import annotations

import json
import struct
from typing import Any

from support.malformed_bytes import Malformed, file_case, read_safetensors, safetensors_file, tensor


def safetensors_cases() -> list[Malformed]:
    """Everything that a SafeTensors header can get wrong."""
    two = b"\0\0"
    packed = {"w": {"dtype": "i4", "shape": [4]}}

    def with_packed(value: Any) -> bytes:
        metadata = {"lbrx.packed": value if isinstance(value, str) else json.dumps(value)}
        return safetensors_file({"__metadata__": metadata, "w": tensor()}, two)

    rows: list[tuple[str, bytes, str]] = [
        ("empty", b"", "has 0 bytes, expected at least the 8"),
        ("seven bytes", bytes(7), "has 7 bytes"),
        ("no header", bytes(8), "begins with b'', expected"),
        ("header past the end", safetensors_file({}, length=1000), "header ends at byte 1008, but the file has 10"),
        ("length of 2^64 - 1", safetensors_file({}, length=2**64 - 1), "header of 18446744073709551615 bytes"),
        ("length over the limit", safetensors_file({}, length=100_000_001), "at most 100000000"),
        ("leading space", safetensors_file(b" {}"), "begins with b' {}'"),
        ("UTF-8 byte order mark", safetensors_file(b"\xef\xbb\xbf{}"), "begins with"),
        ("not UTF-8", safetensors_file(b'{"\xff":1}'), "not valid UTF-8 at byte 2"),
        ("UTF-16", safetensors_file('{"a":1}'.encode("utf-16-le")), "not valid JSON"),
        ("cut JSON", safetensors_file(b'{"a":'), "not valid JSON"),
        ("trailing NUL", safetensors_file(b"{}\0\0"), "not valid JSON"),
        ("two objects", safetensors_file(b"{}{}"), "not valid JSON"),
        ("nested deeply", safetensors_file(b'{"a":' + b"[" * 200_000), "nested too deeply"),
        (
            "nested deeply and closed",
            safetensors_file(b'{"a":' + b"[" * 9000 + b"]" * 9000 + b"}"),
            "nested too deeply",
        ),
        (
            "too many containers",
            safetensors_file(b'{"a":[' + b"[]," * 2_000_001 + b"0]}"),
            "JSON brackets, expected at most",
        ),
        ("integer of 5000 digits", safetensors_file(b'{"a":' + b"9" * 5000 + b"}"), "not valid JSON"),
        (
            "name twice",
            safetensors_file(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2), two),
            "key 'a' appears twice",
        ),
        ("dtype twice", safetensors_file(b'{"a":{"dtype":"U8","dtype":"F32"}}'), "key 'dtype' appears twice"),
        ("lone surrogate", safetensors_file({"\ud800": tensor()}, two), "lone surrogate"),
        ("lone surrogate in metadata", safetensors_file({"__metadata__": {"a": "\udfff"}}), "lone surrogate"),
        ("metadata list", safetensors_file({"__metadata__": []}), "__metadata__ is a JSON list"),
        (
            "metadata number",
            safetensors_file({"__metadata__": {"a": 1}}),
            "__metadata__ 'a' is a JSON int, expected a string",
        ),
        ("metadata object", safetensors_file({"__metadata__": {"a": {}}}), "'a' is a JSON dict"),
        ("tensor is null", safetensors_file({"w": None}), "tensor 'w' is not an object with"),
        ("tensor is a list", safetensors_file({"w": [1, 2, 3]}), "tensor 'w' is not an object with"),
        ("no dtype", safetensors_file({"w": {"shape": [], "data_offsets": [0, 1]}}, b"0"), "is not an object with"),
        ("no shape", safetensors_file({"w": {"dtype": "U8", "data_offsets": [0, 1]}}, b"0"), "is not an object with"),
        ("no offsets", safetensors_file({"w": {"dtype": "U8", "shape": []}}), "is not an object with"),
        ("three offsets", safetensors_file({"w": tensor(offsets=[0, 1, 2])}, two), "is not an object with"),
        ("unknown dtype", safetensors_file({"w": tensor("F128")}, two), "has dtype 'F128', expected one of F64"),
        ("dtype is a list", safetensors_file({"w": tensor(["U8"])}, two), r"has dtype \['U8'\]"),
        ("shape is a number", safetensors_file({"w": tensor(shape=2)}, two), "has shape 2, expected a list"),
        ("shape of floats", safetensors_file({"w": tensor(shape=[2.0])}, two), r"has shape \[2.0\]"),
        ("shape of bools", safetensors_file({"w": tensor(shape=[True, 2])}, two), r"has shape \[True, 2\]"),
        ("shape of strings", safetensors_file({"w": tensor(shape=["2"])}, two), r"has shape \['2'\]"),
        ("negative sizes", safetensors_file({"w": tensor(shape=[-1, -2])}, two), "expected sizes of at least 0"),
        ("65 dimensions", safetensors_file({"w": tensor(shape=[1] * 64 + [2])}, two), "at most 64 sizes"),
        (
            "elements overflow",
            safetensors_file({"w": tensor(shape=[2**32, 2**32])}, two),
            r"more than 2\^63 - 1 elements",
        ),
        ("elements wrap to 2", safetensors_file({"w": tensor(shape=[2**63 + 1, 2])}, two), r"more than 2\^63 - 1"),
        (
            "zero hides overflow",
            safetensors_file({"w": tensor(shape=[2**62, 4, 0], offsets=[0, 0])}),
            r"more than 2\^63 - 1",
        ),
        ("zero beside 2^62", safetensors_file({"w": tensor(shape=[0, 2**62], offsets=[0, 0])}), r"more than 2\^63 - 1"),
        ("size of 4000 digits", safetensors_file({"w": tensor(shape=[10**4000])}, two), r"more than 2\^63 - 1"),
        ("negative offset", safetensors_file({"w": tensor(offsets=[-2, 0])}, two), r"data_offsets \[-2, 0\]"),
        ("descending offsets", safetensors_file({"w": tensor(offsets=[2, 0])}, two), r"data_offsets \[2, 0\]"),
        ("offset of a float", safetensors_file({"w": tensor(offsets=[0, 2.0])}, two), "data_offsets"),
        ("offset over 63 bits", safetensors_file({"w": tensor(offsets=[2**63, 2**63 + 2])}, two), "data_offsets"),
        (
            "size and shape differ",
            safetensors_file({"w": tensor("F32")}, two),
            r"2 bytes of data, expected 8 for F32 \[2\]",
        ),
        ("half a byte", safetensors_file({"w": tensor("F4", [3])}, two), "expected 1.5 for F4"),
        ("gap at the beginning", safetensors_file({"w": tensor(offsets=[1, 3])}, bytes(3)), "leaves a gap"),
        (
            "gap between",
            safetensors_file({"a": tensor(), "b": tensor(offsets=[3, 5])}, bytes(5)),
            "tensor 'b' begins .* leaves a gap",
        ),
        (
            "overlap",
            safetensors_file({"a": tensor(), "b": tensor(offsets=[1, 3])}, bytes(3)),
            "tensor 'b' .* overlaps",
        ),
        ("shared bytes", safetensors_file({"a": tensor(), "b": tensor()}, two), "tensor 'b' .* overlaps"),
        (
            "data past the end",
            safetensors_file({"w": tensor()}, b"0"),
            r"tensor 'w' ends at byte \d+, but the file has",
        ),
        ("bytes after the data", safetensors_file({"w": tensor()}, bytes(9)), "has 7 bytes after the last tensor"),
        ("bytes without tensors", safetensors_file({}, b"0"), "has 1 bytes after the last tensor"),
        ("packed is not JSON", with_packed("{"), "metadata 'lbrx.packed': is not valid JSON"),
        ("packed is a list", with_packed([]), "is a JSON list, expected an object"),
        ("packed names nothing", with_packed({**packed, "x": {}}), "names tensor 'x', which is missing"),
        ("packed null", with_packed({"w": None}), "expected an object with 'dtype' and 'shape'"),
        ("packed f32", with_packed({"w": {"dtype": "f32", "shape": [4]}}), "dtype is 'f32', expected one of i4, i2"),
        ("packed shape of text", with_packed({"w": {"dtype": "i4", "shape": ["4"]}}), r"shape is \['4'\]"),
        ("packed shape overflow", with_packed({"w": {"dtype": "i4", "shape": [2**62, 4]}}), "expected a list of sizes"),
        (
            "packed too large",
            with_packed({"w": {"dtype": "i4", "shape": [5]}}),
            r"stored as u8 \[2\], expected u8 \[3\]",
        ),
    ]
    sparse = struct.pack("<Q", 2 << 30) + b"{"
    return [
        *(file_case(f"safetensors: {name}", content, read_safetensors, message) for name, content, message in rows),
        file_case("safetensors: huge header in a huge file", sparse, read_safetensors, "at most 100000000", 3 << 30),
    ]
