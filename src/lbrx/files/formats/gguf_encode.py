"""Encode Python values as GGUF key-values: choose their types and produce their bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lbrx.errors import UsageError
from lbrx.files.formats.gguf_values import (
    ARRAY_ID,
    NUMPY_TYPES,
    SCALAR_IDS,
    STRING_ID,
    STRUCT_CODES,
    GgufMetadata,
    StringArray,
    Typed,
)

MAX_KEY_BYTES = 65535
_INT_RANGES = {
    name: (int(np.iinfo(NUMPY_TYPES[name]).min), int(np.iinfo(NUMPY_TYPES[name]).max))
    for name in SCALAR_IDS
    if name[0] in "iu"
}
_NAMES_BY_NUMPY = {row: name for name, row in NUMPY_TYPES.items()}


def typed_metadata(metadata: Mapping[str, Any]) -> dict[str, Typed]:
    """Pair every value with the type it will be written as; values of a `GgufMetadata` keep their types.

    >>> {key: typed.type for key, typed in typed_metadata({"a": 1, "b": -1, "c": [1, 2], "d": Typed(1, "u8")}).items()}
    {'a': 'u32', 'b': 'i32', 'c': 'array[i32]', 'd': 'u8'}
    """
    if isinstance(metadata, GgufMetadata):
        return metadata.typed()
    return {key: value if isinstance(value, Typed) else infer_type(key, value) for key, value in metadata.items()}


def infer_type(key: str, value: Any) -> Typed:
    """Choose the type of a plain value: an integer gets the first of u32, i32, u64, i64 that can represent it, in an
    array the first of i32, u32, i64, u64 (as llama.cpp expects), a float gets f32; NumPy values keep their type.

    >>> infer_type("k", 2**40).type, infer_type("k", [0.5]).type, infer_type("k", np.uint16(1)).type
    ('u64', 'array[f32]', 'u16')
    """
    if isinstance(value, str | StringArray):
        return Typed(value, "str" if isinstance(value, str) else "array[str]")
    if isinstance(value, np.generic | np.ndarray):
        return _numpy_type(key, value)
    if isinstance(value, list | tuple):
        return Typed(value, f"array[{_element_type(key, value)}]")
    return Typed(value, _number_type(key, [value], ("u32", "i32", "u64", "i64")))


def _numpy_type(key: str, value: np.generic | np.ndarray[Any, Any]) -> Typed:
    name = _NAMES_BY_NUMPY.get(value.dtype.newbyteorder("="))
    if name is None or value.ndim > 1:
        raise UsageError(f"key {key!r}: NumPy {value.dtype} of {value.ndim} dimensions has no GGUF type")
    return Typed(value, f"array[{name}]") if value.ndim else Typed(value.item(), name)


def _element_type(key: str, values: Sequence[Any]) -> str:
    if not values:
        raise UsageError(f"key {key!r}: an empty list has no element type; expected Typed([], 'array[...]')")
    if all(isinstance(value, str) for value in values):
        return "str"
    return _number_type(key, values, ("i32", "u32", "i64", "u64"))


def _number_type(key: str, values: Sequence[Any], integer_types: Sequence[str]) -> str:
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise UsageError(f"key {key!r}: {values!r:.100} has no GGUF type; expected all bool, numbers or strings")
    if any(isinstance(value, float) for value in values):
        return "f32"
    for name in integer_types:
        low, high = _INT_RANGES[name]
        if low <= min(values) and max(values) <= high:
            return name
    raise UsageError(f"key {key!r}: {values!r:.100} does not fit into a 64-bit integer")


def encode_pair(key: str, typed: Typed) -> bytes:
    """Encode a key and its value as a little-endian file stores them.

    >>> encode_pair("k", Typed(1, "u8")).hex(" ")
    '01 00 00 00 00 00 00 00 6b 00 00 00 00 01'
    """
    raw_key = encode_string(key)
    if not 0 < len(raw_key) - 8 <= MAX_KEY_BYTES:
        raise UsageError(f"key {key!r:.100} has {len(raw_key) - 8} bytes, expected 1 to {MAX_KEY_BYTES}")
    try:
        return raw_key + _encode_value(typed)
    except (struct.error, OverflowError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"key {key!r}: {typed.value!r:.100} cannot be written as {typed.type}: {error}") from error


def encode_string(text: str) -> bytes:
    """Encode a string as a little-endian file stores it: u64 length, then UTF-8.

    >>> encode_string("é").hex(" ")
    '02 00 00 00 00 00 00 00 c3 a9'
    """
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"{text!r:.100} is not text: {error}") from error
    return struct.pack("<Q", len(raw)) + raw


def _encode_value(typed: Typed) -> bytes:
    element = typed.element_type
    if element is None:
        return struct.pack("<I", STRING_ID if typed.type == "str" else SCALAR_IDS[typed.type]) + _encode_scalar(typed)
    head = struct.pack("<IIQ", ARRAY_ID, STRING_ID if element == "str" else SCALAR_IDS[element], len(typed.value))
    if element == "str":
        strings = typed.value
        return head + (strings if isinstance(strings, StringArray) else StringArray.of(strings)).little_endian_bytes()
    return head + _encode_numbers(typed.value, element)


def _encode_scalar(typed: Typed) -> bytes:
    if typed.type == "str":
        return encode_string(typed.value)
    if typed.type == "bool" and not isinstance(typed.value, bool):
        raise TypeError("expected True or False")
    return struct.pack("<" + STRUCT_CODES[typed.type], typed.value)


def _encode_numbers(values: Any, element: str) -> bytes:
    target = NUMPY_TYPES[element]
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.newbyteorder("=") == target:
        return values.astype(target.newbyteorder("<"), copy=False).tobytes()
    if element == "bool" and not all(isinstance(value, bool) for value in values):
        raise TypeError("expected True or False")
    return struct.pack(f"<{len(values)}{STRUCT_CODES[element]}", *values)
