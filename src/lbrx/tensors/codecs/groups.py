"""Codes, scales and offsets kept in storages of their own: how parts are made, and how they become values again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lbrx.errors import ShapeError
from lbrx.tensors.codecs.codec import Codec, kernel
from lbrx.tensors.codecs.decoded import DecodedStorage, drop_behind
from lbrx.tensors.shape import Shape
from lbrx.tensors.storage import Bytes, Storage

MODULE = "groups"
Floats = npt.NDArray[np.float32]


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


def decoded_groups(
    codes: Storage,
    code_bits: int,
    group_size: int,
    decoder: str,
    numbers: tuple[Callable[[int, int], Floats], ...],
    parameters: tuple[int, ...],
    module: str = MODULE,
) -> DecodedStorage:
    """The values of groups.

    ``numbers`` give the scales (and biases or zero points) of a run of groups as f32: their addresses are what the
    decoder gets after codes, values and the number of groups, and before its parameters.
    """
    group_bytes = group_size * code_bits // 8
    function = None

    def decode(first: int, groups: int, values: Bytes) -> None:
        nonlocal function
        if function is None:
            function = kernel(module, decoder, 3 + len(numbers) + len(parameters))
        window = codes.read_at(first * group_bytes, groups * group_bytes)
        arrays = [read(first, groups) for read in numbers]
        addresses = [array.ctypes.data for array in arrays]
        function(window.ctypes.data, values.ctypes.data, groups, *addresses, *parameters)
        drop_behind(codes, first * group_bytes, groups * group_bytes)

    return DecodedStorage(codes.nbytes // group_bytes, group_size, decode)


def numbers_from(storage: Storage, number_type: npt.DTypeLike) -> Callable[[int, int], Floats]:
    """Reads a run of the numbers in a storage, of any type that NumPy can turn into f32."""
    item = np.dtype(number_type)

    def read(first: int, count: int) -> Floats:
        window = storage.read_at(first * item.itemsize, count * item.itemsize)
        return np.frombuffer(window.tobytes(), item).astype(np.float32)

    return read
