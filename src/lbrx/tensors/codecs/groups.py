"""Codecs that keep codes, scales and offsets in storages of their own."""

from __future__ import annotations

from lbrx.errors import ShapeError
from lbrx.tensors.codecs.codec import Codec
from lbrx.tensors.shape import Shape

MODULE = "groups"


def part(name: str, group_size: int, group_bytes: int, function: str, *parameters: int) -> Codec:
    """The record of one part of a coding: what a function of the kernels writes for each group."""
    return Codec(name, group_size, group_bytes, MODULE, encoder=function, parameters=parameters)


def groups_shape(shape: Shape, group_size: int, scheme: str) -> Shape:
    """The shape of the scales of a tensor whose rows are cut into groups."""
    if not shape or shape[-1] % group_size:
        raise ShapeError(
            f"a tensor of shape {shape} cannot be coded as {scheme} in groups of {group_size}; "
            "expected rows of whole groups"
        )
    return (*shape[:-1], shape[-1] // group_size)
