"""Malformed GGUF files. Files that claim to be large are sparse."""

from __future__ import annotations

import struct

from support.malformed_bytes import Malformed, array, file_case, gguf_file, info, pair, read_gguf, string

GIB = 1 << 30


def gguf_cases() -> list[Malformed]:
    """Everything that a GGUF header can get wrong."""
    u32 = struct.pack("<I", 7)
    token_key = "tokenizer.ggml.tokens"
    aligned = pair("general.alignment", 4, struct.pack("<I", 64))
    two_tensors = (info("a", (2,)), info("b", (2,), offset=32))
    rows: list[tuple[str, bytes, str]] = [
        ("empty", b"", "has 0 bytes, expected at least the 24"),
        ("only the magic", b"GGUF", "has 4 bytes"),
        ("another magic", gguf_file().replace(b"GGUF", b"GGML"), "begins with b'GGML', expected b'GGUF'"),
        ("version 0", gguf_file(version=0), "version 0, expected one of 2, 3"),
        ("version 1", gguf_file(version=1), "version 1, expected one of 2, 3"),
        ("version 4", gguf_file(version=4), "version 4"),
        ("big-endian version 9", gguf_file(version=9 << 24), "version 9"),
        ("negative tensor count", gguf_file(tensor_count=-1), "-1 tensors, but a file of"),
        ("huge tensor count", gguf_file(tensor_count=2**62), "4611686018427387904 tensors"),
        ("tensors that do not fit", gguf_file(tensor_count=4), "4 tensors, but a file of 96 bytes can contain 0 to 2"),
        ("negative key count", gguf_file(pair_count=-(2**63)), "-9223372036854775808 key-values"),
        ("huge key count", gguf_file(pair_count=2**40), "1099511627776 key-values"),
        ("empty key", gguf_file((pair("", 4, u32),)), "key 0 is empty"),
        ("key twice", gguf_file((pair("a", 4, u32), pair("a", 4, u32))), "key 'a' appears twice"),
        ("key not UTF-8", gguf_file((pair(b"\xff", 4, u32),)), "key 0 is b'.xff', which is not UTF-8"),
        (
            "key over 65535 bytes",
            gguf_file((pair("k" * 65536, 4, u32),)),
            "string of 65536 bytes, expected at most 65535",
        ),
        ("key past the end", gguf_file((string("k", 60000),)), "key 0 ends at byte"),
        ("key of 2^64 - 1 bytes", gguf_file((string("k", 2**64 - 1),)), "string of 18446744073709551615 bytes"),
        (
            "cut value",
            gguf_file((pair("k", 10, b"0"),), data=b"", alignment=1),
            "key 'k' ends at byte 45, but the file has 38",
        ),
        ("unknown value type", gguf_file((pair("k", 13, u32),)), "key 'k' has the unknown value type 13"),
        ("value type -1", gguf_file((pair("k", 2**32 - 1, u32),)), "unknown value type 4294967295"),
        ("bool of 2", gguf_file((pair("k", 7, b"\2"),)), "bool of value 2, expected 0 or 1"),
        ("bools of 255", gguf_file((pair("k", 9, array(7, 2, b"\1\xff")),)), "bool of value 255"),
        (
            "string past the end",
            gguf_file((pair("k", 8, string("x", 1000)),)),
            "key 'k' ends at byte 1045, but the file has",
        ),
        (
            "string wraps around",
            gguf_file((pair("k", 8, string("x", 2**64 - 8)),)),
            "string of 18446744073709551608 bytes",
        ),
        ("array of arrays", gguf_file((pair("k", 9, array(9, 1, array(4, 1, u32))),)), "array of arrays"),
        ("array of unknown type", gguf_file((pair("k", 9, array(99, 1)),)), "unknown value type 99"),
        ("array past the end", gguf_file((pair("k", 9, array(12, 1000)),)), "key 'k' ends at byte"),
        ("array wraps around", gguf_file((pair("k", 9, array(12, 2**61)),)), "array of 2305843009213693952 elements"),
        ("strings that do not fit", gguf_file((pair("k", 9, array(8, 1000)),)), "key 'k' ends at byte 8049"),
        (
            "one string of an array past the end",
            gguf_file((pair("k", 9, array(8, 2, string("a") + string("b", 99999))),)),
            "string 1 of key 'k' ends at byte",
        ),
        (
            "one string of an array wraps around",
            gguf_file((pair("k", 9, array(8, 2, string("a") + string("b", 2**64 - 9))),)),
            "string 1 of key 'k' ends at byte 18446744073709551",
        ),
        (
            "cut array of strings",
            gguf_file((pair("k", 9, array(8, 2, string(b"0123456789") + b"0")),), data=b"", alignment=1),
            "the length of string 1 of key 'k' ends at byte",
        ),
        (
            "tokens are numbers",
            gguf_file((pair(token_key, 9, array(4, 1, u32)),)),
            r"array\[u32\], expected array\[str\]",
        ),
        ("tokens are one string", gguf_file((pair(token_key, 8, string("a")),)), r"type str, expected array\[str\]"),
        (
            "scores are strings",
            gguf_file((pair("tokenizer.ggml.scores", 9, array(8, 1, string("a"))),)),
            r"array\[str\], expected array\[f32\]",
        ),
        ("architecture is a number", gguf_file((pair("general.architecture", 4, u32),)), "type u32, expected str"),
        ("alignment is u64", gguf_file((pair("general.alignment", 10, bytes(8)),)), "type u64, expected u32"),
        (
            "alignment 0",
            gguf_file((pair("general.alignment", 4, bytes(4)),)),
            "alignment is 0, expected a power of two",
        ),
        ("alignment 7", gguf_file((pair("general.alignment", 4, u32),)), "alignment is 7, expected a power of two"),
        ("name of 64 bytes", gguf_file(infos=(info("n" * 64),)), "string of 64 bytes, expected at most 63"),
        ("empty name", gguf_file(infos=(info(""),)), "tensor 0 has the name ''"),
        ("name with NUL", gguf_file(infos=(info("a\0b"),)), "expected text without NUL"),
        ("name not UTF-8", gguf_file(infos=(info(b"\xc3"),)), "the name of tensor 0 is b'.xc3', which is not UTF-8"),
        ("name twice", gguf_file(infos=(info("a"), info("a", offset=32))), "tensor 'a' appears twice"),
        ("5 dimensions", gguf_file(infos=(info(sizes=(1, 1, 1, 1, 2)),)), "has 5 dimensions, expected at most 4"),
        ("2^32 - 1 dimensions", gguf_file(infos=(string("w") + b"\xff" * 30,)), "has 4294967295 dimensions"),
        ("negative size", gguf_file(infos=(info(sizes=(-2,)),)), "negative size"),
        ("two negative sizes", gguf_file(infos=(info(sizes=(-1, -2)),)), "negative size"),
        ("elements overflow", gguf_file(infos=(info(sizes=(2**32, 2**31)),)), r"more than 2\^63 - 1 elements"),
        ("zero hides overflow", gguf_file(infos=(info(sizes=(2**62, 2**62, 0)),)), r"more than 2\^63 - 1 elements"),
        ("bytes overflow", gguf_file(infos=(info(sizes=(2**61, 2), type_id=28),)), r"bytes as f64, expected at most"),
        (
            "row is no block",
            gguf_file(infos=(info(sizes=(33, 32), type_id=2),)),
            "rows of 33 elements, expected a multiple of 32",
        ),
        (
            "scalar is no block",
            gguf_file(infos=(info(sizes=(), type_id=12),)),
            "rows of 1 elements, expected a multiple of 256",
        ),
        *(
            (f"removed type {type_id}", gguf_file(infos=(info(type_id=type_id),)), f"ggml type {type_id}, the removed")
            for type_id in (4, 5, 31, 32, 33, 36, 37, 38)
        ),
        ("unknown type", gguf_file(infos=(info(type_id=1000),)), "ggml type 1000, expected a type from 0 to 42"),
        ("type -1", gguf_file(infos=(info(type_id=2**32 - 1),)), "ggml type 4294967295, expected"),
        ("gap", gguf_file(infos=(info("a"), info("b", offset=64)), data=bytes(99)), "'b' has offset 64, expected 32"),
        ("gap at the beginning", gguf_file(infos=(info(offset=32),)), "'w' has offset 32, expected 0"),
        ("overlap", gguf_file(infos=(info("a"), info("b", offset=0))), "'b' has offset 0, expected 32"),
        ("reordered", gguf_file(infos=two_tensors[::-1]), "'b' has offset 32, expected 0"),
        ("unaligned offset", gguf_file(infos=(info("a"), info("b", offset=2))), "'b' has offset 2, expected 32"),
        (
            "offset wraps around",
            gguf_file(infos=(info("a"), info("b", offset=2**64 - 32))),
            "offset 18446744073709551584",
        ),
        ("offset of another alignment", gguf_file((aligned,), two_tensors), "'b' has offset 32, expected 64"),
        ("data past the end", gguf_file(infos=(info(sizes=(65,)),)), r"'w' ends at byte \d+, but the file has"),
        ("second tensor past the end", gguf_file(infos=two_tensors, data=bytes(33)), "'b' ends at byte"),
        ("tensor of 2^62 bytes", gguf_file(infos=(info(sizes=(2**62,)),)), r"'w' ends at byte 4611686018427\d+, but"),
        ("no data", gguf_file(infos=(info(),), data=b""), "'w' ends at byte"),
        (
            "cut info",
            gguf_file(infos=(info(sizes=(1, 1, 1, 2)),), data=b"", alignment=1)[:-9],
            "the info of .* ends at byte",
        ),
    ]
    zeros = pair("k", 9, array(8, GIB // 4))
    numbers = pair("k", 9, array(12, GIB // 4))
    return [
        *(file_case(f"gguf: {name}", content, read_gguf, message) for name, content, message in rows),
        file_case(
            "gguf: string over 1 GiB",
            gguf_file((pair("k", 8, string("", GIB + 1)),)),
            read_gguf,
            "at most 1073741824",
            3 * GIB,
        ),
        file_case(
            "gguf: string of 1 GiB",
            gguf_file((pair("k", 8, string("", GIB)),)),
            read_gguf,
            "header of at most",
            3 * GIB,
        ),
        file_case(
            "gguf: 2^30 + 1 elements",
            gguf_file((pair("k", 9, array(0, GIB + 1)),)),
            read_gguf,
            "at most 1073741824",
            3 * GIB,
        ),
        file_case("gguf: 2 GiB of numbers", gguf_file((numbers,)), read_gguf, "at most 268435456 bytes", 3 * GIB),
        file_case("gguf: 2 GiB of empty strings", gguf_file((zeros,)), read_gguf, "at most 268435456 bytes", 3 * GIB),
        file_case(
            "gguf: 2^26 tensors of zeros",
            gguf_file(tensor_count=1 << 26),
            read_gguf,
            "tensor 0 has the name ''",
            3 * GIB,
        ),
    ]
