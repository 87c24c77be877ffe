"""Between MLX and GGUF: codes are moved where both have a coding for them, and decoded where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.gguf_metadata import DTYPE_KEY
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.mlx_repack import as_blocks, ggml_type_of
from lbrx.models.architectures.gguf_metadata import main_type
from lbrx.models.architectures.mlx_experts import separate_experts
from lbrx.models.architectures.mlx_forms import from_mlx_forms
from lbrx.models.architectures.mlx_weights import CodedWeight, as_hf, coded_weights
from lbrx.tensors.dtype import DTYPES

_DECODED_TYPE = "f16"  # of float codings, whose scales are not floats


def gguf_to_mlx(contents: Contents) -> Contents:
    """The MLX form of a GGUF model, ready to be written.

    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, IQ4_NL, MXFP4 and NVFP4 keep their values exactly. Other quantized types
    are decoded and coded again; a warning tells the error.
    """
    from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf

    # Where nothing tells what norms were before they became f32, they stay that.
    is_told = DTYPE_KEY in contents.metadata or main_type(contents.tensors) in DTYPES
    return hf_to_mlx(gguf_to_hf(contents, keep_quantized=True, type_name=None if is_told else "f32"))


def mlx_to_gguf(contents: Contents, *, tokenizer_metadata: Mapping[str, Any] | None = None) -> Contents:
    """The GGUF form of an MLX model, ready to be written.

    Weights of 2 to 5 bits become Q4_0, Q4_1, Q5_0 or Q5_1 if their scales and biases are f16 numbers, those of 8 bits
    Q8_0 if their biases are -128 scales; mxfp4 and nvfp4 stay what they are. These keep their values exactly. Others
    are decoded into the dtype of their scales, and a warning counts them. ``tokenizer_metadata`` is for ``hf_to_gguf``.
    """
    from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf

    decoded: Counter[str] = Counter()

    def moved(part: PlannedTensor | CodedWeight) -> PlannedTensor:
        if isinstance(part, PlannedTensor):
            return part
        mode = part.mode
        type_name = ggml_type_of(part.parts(), mode, part.shape[-1])
        if type_name is None:
            plain = part.decoded(part.scales.type_name if mode.mode == "affine" else _DECODED_TYPE)
            decoded[f"{mode.bits}-bit {mode.mode} weights have no exact type in GGUF: now {plain.type_name}"] += 1
            return plain
        return PlannedTensor(part.name, type_name, part.shape, lambda: as_blocks(part.parts(), mode, type_name))

    formed = from_mlx_forms([moved(part) for part in coded_weights(contents)], contents.config, contents.tensors)
    tensors = separate_experts(formed, contents.config)
    converted = hf_to_gguf(as_hf(contents, tensors), tokenizer_metadata=tokenizer_metadata)
    notes = tuple(f"{count} {what}" for what, count in decoded.items())
    return replace(converted, warnings=(*converted.warnings, *notes))
