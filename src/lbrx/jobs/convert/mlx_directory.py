"""Convert Hugging Face models to MLX: stack experts, and repack or requantize GGML blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.mlx_repack import repacked
from lbrx.jobs.convert.mlx_units import LOSSLESS
from lbrx.models.architectures.mlx_config import mlx_config, tied_embeddings
from lbrx.models.architectures.mlx_experts import stack_experts, with_separate_weights
from lbrx.models.architectures.mlx_forms import to_mlx_forms
from lbrx.models.architectures.mlx_modes import SETTING_KEYS, settings_of, weight_parts
from lbrx.ops.difference import Sums, compare
from lbrx.registry import CODECS
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.codecs.mlx import MlxMode, MlxWeight, StoredCodes, dequantize, encoded_mlx
from lbrx.tensors.coded import Blocks
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor

FORMAT_METADATA = {"format": "mlx"}
_WEIGHT = ".weight"
_BUFFERS = (".rotary_emb.inv_freq",)
_HEAD = "lm_head.weight"
_PLAIN_TYPES = {"f64": "f32", "f8_e4m3": "bf16", "f8_e5m2": "bf16"}  # what MLX's files do not have
_RECODED_VALUES = "f16"  # whose scales are f16 as well
_SAMPLED_ROWS = 64
_BITS_FOR_8, _BITS_FOR_6 = 4.5, 3.5  # types of more bits than these are coded again with 8 or 6 bits, others with 4


def hf_to_mlx(contents: Contents) -> Contents:
    """The MLX form of a model with Hugging Face names, ready to be written.

    Experts are stacked, what transformers assumes is written into config.json, and buffers are left out. Blocks of
    ggml become MLX's codes: exactly where its codings can hold them, else decoded and coded again, in which case a
    warning tells the error.
    """
    config = contents.config
    if config is not None and any(config.get(key) for key in SETTING_KEYS):
        raise UsageError(
            "config.json says that the weights are quantized in a way of their own; expected a model that is not"
        )
    is_tied = tied_embeddings(config)
    wanted = [t for t in contents.tensors if not t.name.endswith(_BUFFERS) and not (is_tied and t.name == _HEAD)]
    modes: dict[str, MlxMode] = {}
    recoded: list[PlannedTensor] = []
    tensors: list[PlannedTensor] = []
    formed, notes = to_mlx_forms(stack_experts(with_separate_weights(wanted, config), config), config)
    for tensor in formed:
        if tensor.codes is not None and tensor.name.endswith(_WEIGHT):
            modes[tensor.name.removesuffix(_WEIGHT)] = tensor.codes.mode
            tensors += weight_parts(tensor, tensor.codes.mode, partial(_stored, tensor.codes), "u8")
            continue
        if tensor.type_name not in CODECS:
            tensors.append(_plain(tensor))
            continue
        mode = coding_of(tensor)
        if mode is None or not tensor.name.endswith(_WEIGHT):
            tensors.append(_decoded(tensor))
            continue
        modes[tensor.name.removesuffix(_WEIGHT)] = mode
        if tensor.type_name in LOSSLESS:
            numbers = "f32" if mode.mode == "affine" else "u8"
            tensors += weight_parts(tensor, mode, _repacked, numbers)
        else:
            tensors += weight_parts(tensor, mode, partial(_recoded, mode=mode), _RECODED_VALUES)
            recoded.append(tensor)
    warnings = (*contents.warnings, *notes, *_recoding_warnings(recoded))
    if config is not None:
        config = mlx_config(config)
        if modes:
            config |= dict.fromkeys(SETTING_KEYS, settings_of(modes))
    return replace(
        contents, format="mlx", tensors=tuple(tensors), metadata=FORMAT_METADATA, config=config, warnings=warnings
    )


def _plain(tensor: PlannedTensor) -> PlannedTensor:
    dtype_name = _PLAIN_TYPES.get(tensor.type_name)
    if dtype_name is not None:
        return tensor.mapped(lambda values: values.to(dtype_name), type_name=dtype_name)
    return tensor if tensor.type_name in DTYPES else _decoded(tensor)


def _decoded(tensor: PlannedTensor) -> PlannedTensor:
    return tensor.mapped(lambda values: values.dequantize().to(_RECODED_VALUES), type_name=_RECODED_VALUES)


def coding_of(tensor: PlannedTensor) -> MlxMode | None:
    """The coding for a tensor in blocks of ggml: an exact one where there is one; None if its rows fit none.

    >>> import lbrx
    >>> coding_of(PlannedTensor.of("w", lbrx.full((2, 256), 1.0, "f32").quantize("q6_k")))
    MlxMode(mode='affine', bits=8, group_size=64)
    """
    if tensor.type_name in LOSSLESS:
        return LOSSLESS[tensor.type_name].mode
    source_bits = codec(tensor.type_name).bits
    bits = 8 if source_bits > _BITS_FOR_8 else 6 if source_bits > _BITS_FOR_6 else 4
    group_size = next((size for size in (64, 32) if tensor.shape[-1] % size == 0), None)
    return None if group_size is None or len(tensor.shape) < 2 else MlxMode("affine", bits, group_size)


def _stored(codes: StoredCodes, values: Tensor) -> MlxWeight:
    del values
    return codes.make()


def _repacked(values: Tensor) -> MlxWeight:
    blocks = values.encoded().expr
    assert isinstance(blocks, Blocks)
    weight = repacked(blocks)
    assert weight is not None
    return weight


def _recoded(values: Tensor, mode: MlxMode) -> MlxWeight:
    return encoded_mlx(values.dequantize().to(_RECODED_VALUES), mode)


def _recoding_warnings(tensors: list[PlannedTensor]) -> Iterator[str]:
    """One for each type and coding, with the error of a sample of rows of every tensor."""
    groups: dict[tuple[str, MlxMode], list[PlannedTensor]] = {}
    for tensor in tensors:
        mode = coding_of(tensor)
        assert mode is not None
        groups.setdefault((tensor.type_name, mode), []).append(tensor)
    for (type_name, mode), group in groups.items():
        error = sum((sampled_error(tensor, mode) for tensor in group), Sums()).relative_change
        yield (
            f"{len(group)} tensor{'s' * (len(group) != 1)} of {type_name} coded again as MLX {mode.mode} with "
            f"{mode.bits} bits in groups of {mode.group_size}: relative error {error:.2%}"
        )


def sampled_error(tensor: PlannedTensor, mode: MlxMode) -> Sums:
    """What coding again changes, summed up over some rows that are spread over the tensor."""
    values = tensor.make().dequantize()
    matrix = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
    rows = np.unique(np.linspace(0, matrix.shape[0] - 1, _SAMPLED_ROWS).round().astype(np.int64))
    sample = matrix.rows(rows).realize()
    parts = _recoded(sample, mode)
    return compare(sample, dequantize(parts.weight, parts.scales, parts.biases, mode))
