"""Repack weights between GGML blocks and MLX codes, scales and biases, if that is lossless, while they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.mlx_units import LOSSLESS, PACKERS, Numbers, unpack_bits
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.codecs.mlx import WORD_BITS, MlxMode, MlxWeight, StoredCodes
from lbrx.tensors.coded import Blocks
from lbrx.tensors.creation import evaluate
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import Source
from lbrx.tensors.shape import Layout
from lbrx.tensors.storage import Bytes, ReadStorage, Storage, drop_behind
from lbrx.tensors.tensor import Tensor

_VALUES_AT_ONCE = 1 << 16  # codes that are unpacked in one go: they stay in the processor's cache
# What a bias is, in scales, if a type of ggml has none.
_CENTRED = {4: ("q4_0", 8), 5: ("q5_0", 16), 8: ("q8_0", 128)}
_FREE = {2: "q4_1", 3: "q4_1", 4: "q4_1", 5: "q5_1"}


@dataclass(frozen=True, slots=True)
class UnitStorage(ReadStorage):
    """Units that are computed when they are read: ``make(first, count)`` returns one row of bytes per unit.

    >>> storage = UnitStorage(3, 2, lambda first, count: np.arange(2 * first, 2 * (first + count), dtype=np.uint8))
    >>> storage.read_at(1, 4).tolist()
    [1, 2, 3, 4]
    """

    units: int
    unit_bytes: int
    make: Callable[[int, int], Bytes]
    units_at_once: int = 1

    @property
    def nbytes(self) -> int:
        return self.units * self.unit_bytes

    def read_into(self, offset: int, buffer: Bytes) -> None:
        done = 0
        while done < buffer.size:
            first, skipped = divmod(offset + done, self.unit_bytes)
            needed = -(-(buffer.size - done + skipped) // self.unit_bytes)
            produced = self.make(first, min(needed, self.units_at_once)).reshape(-1)[skipped:]
            taken = min(produced.size, buffer.size - done)
            buffer[done : done + taken] = produced[:taken]
            done += taken


def repacked(blocks: Blocks) -> MlxWeight | None:
    """The same values in the form of MLX, or None if its codings cannot represent them exactly.

    >>> import lbrx
    >>> weight = lbrx.full((2, 64), 0.5, "f32").quantize("q4_0").realize()
    >>> parts = repacked(weight.expr)
    >>> parts.weight.shape, parts.scales.shape, parts.biases.numpy().tolist()
    ((2, 8), (2, 2), [[0.5, 0.5], [0.5, 0.5]])
    """
    coding = LOSSLESS.get(blocks.codec)
    if coding is None:
        return None
    source_codec, mode, storage = codec(blocks.codec), coding.mode, blocks.storage
    groups = source_codec.block_elements // mode.group_size
    count = storage.nbytes // source_codec.block_bytes

    def raw(first: int, blocks_wanted: int) -> Bytes:
        start, length = first * source_codec.block_bytes, blocks_wanted * source_codec.block_bytes
        window = storage.read_at(start, length).reshape(-1, source_codec.block_bytes)
        drop_behind(storage, start, length)
        return window

    def codes(first: int, wanted: int) -> Bytes:
        return coding.stream(raw(first, wanted))

    def numbers(part: int) -> Callable[[int, int], Bytes]:
        def part_bytes(first: int, wanted: int) -> Bytes:
            with np.errstate(invalid="ignore"):  # a scale that is not a number stays one
                values = coding.scales_and_biases(raw(first, wanted))[part]
            assert isinstance(values, np.ndarray)
            return np.ascontiguousarray(values).view(np.uint8)

        return part_bytes

    at_once = max(_VALUES_AT_ONCE // source_codec.block_elements, 1)
    rows = blocks.shape[:-1]
    words = UnitStorage(count, groups * mode.group_bytes, codes, at_once)
    weight = Tensor(Blocks(words, "u32", (*rows, blocks.shape[-1] * mode.bits // WORD_BITS)))
    scale_dtype = DTYPES["f32" if mode.mode == "affine" else "u8"]
    layout = Layout.contiguous((*rows, blocks.shape[-1] // mode.group_size))
    scales, biases = (
        Tensor(Source(UnitStorage(count, groups * scale_dtype.itemsize, numbers(part), at_once), scale_dtype, layout))
        for part in (0, 1)
    )
    return MlxWeight(weight, scales, biases if mode.mode == "affine" else None)


def ggml_type_of(parts: MlxWeight, mode: MlxMode, columns: int) -> str | None:
    """The type of ggml that holds a weight of MLX exactly, or None. Scales are read unless they are f16."""
    if mode.mode in ("mxfp4", "nvfp4"):
        return mode.mode if columns % codec(mode.mode).block_elements == 0 else None
    if parts.biases is None:
        return None
    scales, biases = parts.scales.to("f32"), parts.biases.to("f32")
    centred = _CENTRED.get(mode.bits)
    is_centred = [] if centred is None else [(biases + scales * centred[1] == 0).sum()]
    fits = [(number.to("f16").to("f32") == number).sum() for number in (scales, biases)]
    scales_fit, biases_fit, *equal = (int(count) == scales.size for count in evaluate(*fits, *is_centred))
    if centred is not None and scales_fit and equal[0]:
        return centred[0]
    return _FREE.get(mode.bits) if scales_fit and biases_fit else None


def as_blocks(parts: MlxWeight, mode: MlxMode, type_name: str) -> Tensor:
    """A weight of MLX as blocks of the type that ``ggml_type_of`` named for it."""
    target_codec, pack = codec(type_name), PACKERS[type_name]
    columns = parts.weight.shape[-1] * WORD_BITS // mode.bits
    shape = (*parts.weight.shape[:-1], columns)
    blocks_in_group = max(mode.group_size // target_codec.block_elements, 1)
    groups_in_block = max(target_codec.block_elements // mode.group_size, 1)
    words, read_scales, read_biases = _stored(parts.weight), _reader(parts.scales), _reader(parts.biases)
    code_bytes = target_codec.block_elements * mode.bits // 8

    def numbers(read: Callable[[int, int], Numbers], first: int, wanted: int) -> Numbers:
        """The numbers of a run of blocks, a row for each."""
        if blocks_in_group == 1:
            return read(first * groups_in_block, wanted * groups_in_block).reshape(wanted, groups_in_block)
        low, high = first // blocks_in_group, -(-(first + wanted) // blocks_in_group)
        of_blocks = np.repeat(read(low, high - low), blocks_in_group)
        return of_blocks[first - low * blocks_in_group :][:wanted].reshape(wanted, 1)

    def make_blocks(first: int, wanted: int) -> Bytes:
        start, length = first * code_bytes, wanted * code_bytes
        stream = words.read_at(start, length).reshape(wanted, code_bytes)
        codes = unpack_bits(stream, mode.bits)
        drop_behind(words, start, length)
        return pack(codes, numbers(read_scales, first, wanted), numbers(read_biases, first, wanted))

    count = int(np.prod(shape, dtype=np.int64)) // target_codec.block_elements
    at_once = max(_VALUES_AT_ONCE // target_codec.block_elements, 1)
    return Tensor(Blocks(UnitStorage(count, target_codec.block_bytes, make_blocks, at_once), target_codec.name, shape))


def with_blocks(contents: Contents) -> Contents:
    """Return a model whose weights are blocks of ggml if their stored codes are those of a type of ggml."""
    return replace(contents, tensors=tuple(map(_with_blocks, contents.tensors)))


def _with_blocks(planned: PlannedTensor) -> PlannedTensor:
    codes = planned.codes
    if codes is None or codes.mode.mode not in LOSSLESS:
        return planned
    type_name = codes.mode.mode
    if codes.is_swapped:
        return _with_swapped_blocks(planned, codes)
    if planned.shape[-1] % codec(type_name).block_elements:
        return planned
    make = codes.make
    return PlannedTensor(
        planned.name, type_name, planned.shape, lambda: as_blocks(make(), codes.mode, type_name), planned.unit
    )


def _with_swapped_blocks(planned: PlannedTensor, codes: StoredCodes) -> PlannedTensor:
    shape, type_name = (*planned.shape[:-2], planned.shape[-1], planned.shape[-2]), codes.mode.mode
    if shape[-1] % codec(type_name).block_elements:
        return replace(planned, codes=None)
    make = cache(lambda: as_blocks(codes.make(), codes.mode, type_name))  # scales are checked once
    return replace(planned, codes=None, blocks=PlannedTensor(planned.name, type_name, shape, make))


def _reader(tensor: Tensor | None) -> Callable[[int, int], Numbers]:
    """Reads a run of numbers as they are."""
    if tensor is None:
        return lambda _, count: np.zeros(count, np.float32)
    storage, item = _stored(tensor), np.dtype(tensor.dtype.numpy)

    def read(first: int, count: int) -> Numbers:
        window = storage.read_at(first * item.itemsize, count * item.itemsize)
        numbers = np.frombuffer(window.tobytes(), item)
        return numbers if item.itemsize == 1 else numbers.astype(np.float32)

    return read


def _stored(tensor: Tensor) -> Storage:
    storage = tensor.storage
    if storage is None or (isinstance(tensor.expr, Source) and not _is_whole(tensor.expr)):
        storage = tensor.realize().storage
    assert storage is not None
    return storage


def _is_whole(source: Source) -> bool:
    return source.rows is None and source.layout == Layout.contiguous(source.shape)
