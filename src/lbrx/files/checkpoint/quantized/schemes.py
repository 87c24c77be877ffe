"""The quantization schemes that can be decoded, a record for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.checkpoint.quantized import bitnet, bitsandbytes, compressed_tensors, fp8, gpt_oss, integer_words, nvfp4
from lbrx.files.checkpoint.quantized.parts import Parts
from lbrx.tensors.expr import Expr

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Codes:
    """Which tensors have codes: those with an ending and one of some types.

    The weight has ``plain`` instead of the ending. Types can be those of other tensors, too, so that a part must exist:
    with one of the endings ``beside``, after the name of the weight or of its module.
    """

    types: tuple[str, ...]
    ending: str = ""
    plain: str = ""
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a library stores quantized weights.

    ``methods`` are its names in ``quant_method`` of config.json, ``parts`` the endings of tensors that are parts of
    weights, after the name of the weight or of its module. ``decode`` returns the values of the tensor with the codes;
    ``unknown`` says what of the settings cannot be decoded. With ``fills_biases``, the library stores zeros as biases
    of modules that have none. ``is_original`` is true if models are trained in it or published in nothing better.
    """

    name: str
    methods: tuple[str, ...]
    codes: tuple[Codes, ...]
    parts: tuple[str, ...]
    decode: Callable[[str, Parts], Expr]
    unknown: Callable[[Settings], str | None] = lambda _settings: None
    fills_biases: bool = False
    is_original: bool = False


def _unknown_format(settings: Settings) -> str | None:
    format = settings.get("format")
    if format is not None and format not in compressed_tensors.FORMATS:
        return f"format {str(format)[:40]!r}"
    sparsity, transforms = settings.get("sparsity_config"), settings.get("transform_config")
    layout = sparsity.get("format") if isinstance(sparsity, Mapping) else None
    if layout not in (None, "dense"):
        return f"sparse weights ({str(layout)[:40]!r})"
    if isinstance(transforms, Mapping) and transforms.get("config_groups"):
        return "'transform_config': activations are transformed while it runs"
    return None


_SCALES = ("_scale_inv", "_scale")
FP8 = Scheme(
    "FP8",
    ("fp8", "mxfp8", "fbgemm_fp8"),
    (Codes(fp8.FLOATS, beside=_SCALES), Codes(("i8",), beside=("_scale_inv",))),
    _SCALES,
    fp8.decode,
    is_original=True,
)
COMPRESSED_TENSORS = Scheme(
    "compressed-tensors",
    ("compressed-tensors",),
    (Codes(("i32", "u8"), "_packed"), Codes((*fp8.FLOATS, "i8"), beside=("_scale",))),
    ("_scale", "_zero_point", "_shape", "_g_idx", "_global_scale"),
    compressed_tensors.decode,
    _unknown_format,
)
GPT_OSS = Scheme(
    "MXFP4",
    ("mxfp4",),
    (Codes(("u8",), "_blocks", beside=("_scales",)),),
    ("_scales",),
    gpt_oss.decode,
    is_original=True,
)
_WORDS, _WORD_PARTS = (Codes(("i32",), ".qweight", ".weight"),), (".qzeros", ".scales", ".g_idx")
GPTQ = Scheme(
    "GPTQ",
    ("gptq",),
    _WORDS,
    _WORD_PARTS,
    integer_words.decode_gptq,
    integer_words.unknown_gptq,
    fills_biases=True,
)
AWQ = Scheme("AWQ", ("awq",), _WORDS, _WORD_PARTS, integer_words.decode_awq, integer_words.unknown_awq)
MODELOPT = Scheme(
    "ModelOpt",
    ("modelopt", "modelopt_fp4", "modelopt_fp8"),
    (Codes(("u8",), beside=("_scale_2",)), Codes(fp8.FLOATS, beside=_SCALES)),
    (*_SCALES, "_scale_2"),
    nvfp4.decode,
    nvfp4.unknown,
)
BITNET = Scheme(
    "BitNet",
    ("bitnet",),
    (Codes(("u8",), beside=("_scale",)),),
    ("_scale",),
    bitnet.decode,
    bitnet.unknown,
    is_original=True,
)
BITSANDBYTES = Scheme(
    "bitsandbytes",
    ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"),
    (Codes(("u8",), beside=(".absmax",)), Codes(("i8",), beside=(".SCB",))),
    (
        ".absmax",
        ".quant_map",
        ".nested_absmax",
        ".nested_quant_map",
        *bitsandbytes.STATES,
        ".SCB",
        ".weight_format",
    ),
    bitsandbytes.decode,
)
SCHEMES = (FP8, COMPRESSED_TENSORS, GPT_OSS, GPTQ, AWQ, MODELOPT, BITNET, BITSANDBYTES)

AUTO_ROUND = {"auto_round:auto_gptq": GPTQ, "auto_round:auto_awq": AWQ}
"""Formats of AutoRound that are those of other libraries."""

ACTIVATIONS = (
    ".input_scale",
    ".input_scale_inv",
    ".output_scale",
    ".activation_scale",
    ".activation_scale_inv",
    "_activation_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".k_zero_point",
    ".v_zero_point",
)
"""Endings of tensors with scales of activations and of KV caches, which decoded weights do not need."""

BY_NAME: dict[str, Scheme | None] = {
    "_scale_inv": FP8,
    ".weight_scale_2": MODELOPT,
    ".weight.absmax": BITSANDBYTES,
    ".SCB": BITSANDBYTES,
    "_blocks": GPT_OSS,
}
"""Endings of tensors that reveal a scheme if no config names it."""
