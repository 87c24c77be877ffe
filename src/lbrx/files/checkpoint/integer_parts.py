"""Integer codings in SafeTensors files: codes, scales and zero points are separate tensors, joined by metadata.

The metadata `lbrx.quantization` is a JSON object of tensor names:
`{"w": {"scheme": "int4", "scales": "w.scales", "zero_points": "w.zero_points"}}`, without zero points if symmetric.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.header import QUANTIZATION_KEY, quoted
from lbrx.files.formats.strict_json import parse_object
from lbrx.tensors.codecs.integers import join_integers
from lbrx.tensors.coded import SCHEMES, Blocks, Encode
from lbrx.tensors.expr import Source
from lbrx.tensors.tensor import Tensor

Coding = Mapping[str, str]


def separate_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], format: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split integer-coded tensors into their parts; return the tensors to write and the metadata."""
    separated: dict[str, Tensor] = {}
    codings: dict[str, Coding] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.type_name not in SCHEMES:
            separated[name] = tensor
            continue
        if format != "safetensors":
            raise UsageError(
                f"tensor {name!r} is coded as {tensor.type_name}, which {format} files do not support; "
                "quantize it as one of their types, such as q4_k"
            )
        parts = _parts_of(name, tensor)
        codings[name] = _description(tensor.type_name, list(parts))
        separated |= parts
    clashes = [part for name in codings for part in _part_names(codings[name]) if part in tensors]
    if clashes:
        raise UsageError(f"{clashes[0]!r} names both a tensor and a part of a quantized tensor; rename the tensor")
    described = {key: value for key, value in metadata.items() if key != QUANTIZATION_KEY}
    if codings:
        described[QUANTIZATION_KEY] = json.dumps(codings, ensure_ascii=False, separators=(",", ":"))
    return separated, described


def _parts_of(name: str, tensor: Tensor) -> dict[str, Tensor]:
    blocks, info = tensor.expr, tensor.quantization
    assert isinstance(blocks, (Blocks, Encode))
    if info is None or info.scales is None:
        raise UsageError(f"tensor {name!r} is coded as {blocks.codec}, but its scales are not known")
    codes = (
        Encode(blocks.encoding, 0)
        if isinstance(blocks, Encode)
        else Blocks(blocks.storage, f"i{SCHEMES[blocks.codec]}", blocks.shape)
    )
    parts = {name: Tensor(codes), f"{name}.scales": info.scales}
    return parts if info.zero_points is None else {**parts, f"{name}.zero_points": info.zero_points}


def _description(scheme: str, names: list[str]) -> Coding:
    return dict(zip(("scheme", "scales", "zero_points"), (scheme, *names[1:]), strict=False))


def _part_names(coding: Coding) -> list[str]:
    return [coding[part] for part in ("scales", "zero_points") if part in coding]


def read_codings(path: Path, metadata: Mapping[str, Any]) -> dict[str, Coding]:
    """Return the integer codings that the metadata of a file describes.

    >>> read_codings(Path("a"), {QUANTIZATION_KEY: '{"w":{"scheme":"int4","scales":"w.scales"}}'})["w"]["scales"]
    'w.scales'
    """
    text = metadata.get(QUANTIZATION_KEY)
    if text is None:
        return {}
    where = f"{path}: metadata {QUANTIZATION_KEY!r}"
    if not isinstance(text, str):
        raise FormatError(f"{where} is not text")
    codings = parse_object(text, where)
    for name, coding in codings.items():
        if (
            not isinstance(coding, dict)
            or not {"scheme", "scales"} <= coding.keys() <= {"scheme", "scales", "zero_points"}
            or not all(isinstance(value, str) for value in coding.values())
            or coding["scheme"] not in SCHEMES
        ):
            raise FormatError(
                f"{where} of tensor {quoted(name)}: expected a 'scheme' of {', '.join(SCHEMES)} and names of 'scales' "
                "and optionally 'zero_points'"
            )
    return codings


def parts_of_codings(codings: Mapping[str, Coding]) -> frozenset[str]:
    """Return the names of tensors that are only parts of other tensors."""
    return frozenset(part for coding in codings.values() for part in _part_names(coding))


def join_parts(
    path: Path, name: str, coding: Coding, has_tensor: Callable[[str], bool], stored: Callable[[str], Tensor]
) -> Blocks:
    """Build the coding of a tensor from its parts; raise FormatError if they do not match."""
    for part in (name, *_part_names(coding)):
        if not has_tensor(part):
            raise FormatError(f"{path}: tensor {quoted(name)} is coded with {quoted(part)}, which is missing")
    scheme = coding["scheme"]
    codes = _source(path, stored(name), f"i{SCHEMES[scheme]}")
    scales = _source(path, stored(coding["scales"]), "f32")
    zero_points = _source(path, stored(coding["zero_points"]), "i8") if "zero_points" in coding else None
    rows, columns = codes.shape[:-1], codes.shape[-1] if codes.shape else 0
    groups = scales.shape[-1] if scales.shape else 0
    is_empty = codes.shape[-1:] == scales.shape[-1:] == (0,)
    fits = is_empty or (groups > 0 and columns % groups == 0 and columns // groups % 8 == 0)
    fits = fits and scales.shape[:-1] == rows
    if not fits or (zero_points is not None and zero_points.shape != scales.shape):
        raise FormatError(
            f"{path}: tensor {quoted(name)} of shape {codes.shape} has scales of shape {scales.shape}"
            + (f" and zero points of shape {zero_points.shape}" if zero_points is not None else "")
            + "; expected one for each group of a multiple of 8 columns"
        )
    return join_integers(scheme, codes.shape, codes.storage, scales, zero_points)


def _source(path: Path, tensor: Tensor, type_name: str) -> Source:
    if not isinstance(tensor.expr, Source) or tensor.type_name != type_name:
        raise FormatError(
            f"{path}: tensor {quoted(tensor.name)} is {tensor.type_name}, expected {type_name} as a part of a coding"
        )
    return tensor.expr
