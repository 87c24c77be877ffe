"""What a model can be quantized to: a GGUF file type, a coding of MLX or of libraries for transformers, or integers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.jobs.convert.file_types import ALIASES, FILE_TYPES, FLOAT_TYPES, FileType, find_file_type
from lbrx.jobs.quantize.hf_types import HF_TYPES, HfType, find_hf_type
from lbrx.registry import CODECS
from lbrx.tensors.codecs.mlx import AFFINE_BITS, FLOAT_MODES, MlxMode
from lbrx.tensors.coded import DEFAULT_GROUP_SIZE, SCHEMES

MLX_PREFIX = "mlx_"
MIXED_BITS = {"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)}  # low and high
MLX_GROUP_SIZE = 64
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_FLOAT_SUFFIX = re.compile(rf"[-_.]({'|'.join(FLOAT_TYPES)})$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MlxTarget:
    """A model for MLX: one coding for all layers, or, for a mixed recipe, another one for those that matter more."""

    mode: MlxMode
    high_mode: MlxMode | None = None


@dataclass(frozen=True, slots=True)
class IntegerTarget:
    """A SafeTensors model whose weights are integers of lbrx: ``"int8"``, ``"int4"`` or ``"int2"``."""

    scheme: str
    group_size: int


@dataclass(frozen=True, slots=True)
class HfTarget:
    """A SafeTensors model for transformers and vLLM."""

    type: HfType

    def type_of(self, name: str) -> HfType | None:
        """The type of a name, with the group size of the target where it has one; None for types of plain weights."""
        if name == self.type.name:
            return self.type
        found = find_hf_type(name)
        if found is not None and found.is_packed and self.type.is_packed:
            return find_hf_type(name, self.type.group_size)
        return found


def uses_importances(target: Target) -> bool:
    """Whether importances of columns change the output.

    >>> uses_importances(find_target("mlx_4")), uses_importances(find_target("ct_fp8"))
    (True, False)
    """
    if isinstance(target, MlxTarget):
        return target.mode.mode == "affine"
    return isinstance(target, FileType) or (isinstance(target, HfTarget) and target.type.is_packed)


Target: TypeAlias = FileType | MlxTarget | HfTarget | IntegerTarget


def target_names() -> list[str]:
    """Everything that a model can be quantized to, by name.

    >>> {"q4_k_m", "mlx_4", "mlx_nvfp4", "mixed_3_6", "ct_int4", "int4"} <= set(target_names())
    True
    """
    modes = [*(f"{MLX_PREFIX}{bits}" for bits in AFFINE_BITS), *(MLX_PREFIX + mode for mode in FLOAT_MODES)]
    return [*FILE_TYPES, *modes, *MIXED_BITS, *HF_TYPES, *SCHEMES]


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """A name to quantize to, the output it makes, and what it is."""

    name: str
    output: str
    summary: str


def target_summaries() -> list[TargetSummary]:
    """Everything that a model can be quantized to, with a line about each.

    >>> [row.name for row in target_summaries()] == target_names()
    True
    """
    rows = [TargetSummary(row.name, "GGUF file", row.summary) for row in FILE_TYPES.values()]
    for name in target_names()[len(rows) :]:
        target = find_target(name)
        if isinstance(target, MlxTarget):
            low, high = target.mode, target.high_mode
            mix = "" if high is None else f", {high.bits} for layers that matter more"
            text = f"{low.bits} bits in groups of {low.group_size}{mix}"
            rows.append(TargetSummary(name, "MLX directory", text))
        elif isinstance(target, HfTarget):
            groups = f" in groups of {target.type.group_size}" if target.type.is_packed else ""
            rows.append(TargetSummary(name, f"{target.type.library} directory", target.type.summary + groups))
        elif isinstance(target, IntegerTarget):
            text = f"{target.scheme.removeprefix('int')} bits in groups of {target.group_size}"
            rows.append(TargetSummary(name, "SafeTensors", text))
    return rows


def find_target(name: str, group_size: int | None = None) -> Target:
    """The target of a name; ``group_size`` is for the affine codings of MLX and for integers in groups.

    >>> find_target("mlx_6").mode
    MlxMode(mode='affine', bits=6, group_size=64)
    """
    lowered = name.lower()
    if lowered in MIXED_BITS:
        low, high = (MlxMode(bits=bits, group_size=group_size or MLX_GROUP_SIZE) for bits in MIXED_BITS[lowered])
        return MlxTarget(low, high)
    if lowered in SCHEMES:
        return IntegerTarget(lowered, group_size or DEFAULT_GROUP_SIZE)
    mode = find_mlx_mode(lowered, group_size)
    if mode is not None:
        return MlxTarget(mode)
    hf_type = find_hf_type(lowered, group_size)
    if hf_type is not None:
        return HfTarget(hf_type)
    file_type = find_file_type(lowered)
    if file_type is None:
        raise UsageError(_unknown(name))
    if group_size is not None:
        raise UsageError(
            f"{file_type.name} has blocks of a fixed size; a group size is for integers, such as mlx_4 and ct_int4"
        )
    return file_type


def _unknown(name: str) -> str:
    lowered, known = name.lower(), target_names()
    if lowered in CODECS:
        return f"{name!r} is a tensor type, not a file type; expected one of {', '.join(known)}"
    hint = nearest(lowered, [*known, *ALIASES]) or f"; expected one of {', '.join(known)}"
    return f"unknown quantization {name!r}{hint} ('lbrx types' lists all)"


def find_mlx_mode(name: str, group_size: int | None = None) -> MlxMode | None:
    """The coding that a name such as ``"mlx_4"`` or ``"mlx_mxfp4"`` means; None if it is none.

    >>> find_mlx_mode("mlx_nvfp4")
    MlxMode(mode='nvfp4', bits=4, group_size=16)
    """
    mode_name = name.removeprefix(MLX_PREFIX)
    if mode_name == name:
        return None
    if mode_name in FLOAT_MODES:
        bits, size = FLOAT_MODES[mode_name]
        return MlxMode(mode_name, bits, group_size or size)
    if mode_name in map(str, AFFINE_BITS):
        return MlxMode(bits=int(mode_name), group_size=group_size or MLX_GROUP_SIZE)
    return None


def mlx_name(mode: MlxMode) -> str:
    """The name of a coding.

    >>> mlx_name(MlxMode()), mlx_name(MlxMode("mxfp8", 8, 32))
    ('mlx_4', 'mlx_mxfp8')
    """
    return MLX_PREFIX + (str(mode.bits) if mode.mode == "affine" else mode.mode)


def model_name(source: Path) -> str:
    """The name of a model, without the endings of its file.

    >>> model_name(Path("a/Llama-3.2-1B.BF16.gguf")), model_name(Path("a/m-f16-00001-of-00002.gguf"))
    ('Llama-3.2-1B', 'm')
    """
    name = (source if source.name else source.resolve()).name
    for ending in (".gguf", ".safetensors"):
        name = name.removesuffix(ending)
    return _FLOAT_SUFFIX.sub("", _SHARD.sub("", name)) or "model"
