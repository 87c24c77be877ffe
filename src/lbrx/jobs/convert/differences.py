"""Where llama.cpp computes something else than transformers: warnings, because a file can still be made."""

from __future__ import annotations

from collections.abc import Iterator

from lbrx.errors import UsageError
from lbrx.models.architectures.dimensions import ConfigValues, Dimensions
from lbrx.models.architectures.gguf_families import Family

# Layers of the models for which llama.cpp scales attention by the hidden size per head, not by the head's size.
_SCALED_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
_GEMMA2_CAPS = {"attn_logit_softcapping": 50, "final_logit_softcapping": 30}


def check_supported(family: Family, settings: ConfigValues) -> None:
    """Raise if llama.cpp has no form of the model at all."""
    dense = settings.get("mlp_only_layers")
    step = settings.get("decoder_sparse_step")
    if family.is_mixture and (dense or (step or 1) != 1):
        raise UsageError(
            f"{settings.where}: 'mlp_only_layers' is {dense!r} and 'decoder_sparse_step' {step!r} in config.json; "
            f"llama.cpp has {family.architecture} with experts in every layer only"
        )
    if family.is_gemma and settings.get("use_bidirectional_attention"):
        raise UsageError(f"{settings.where}: 'use_bidirectional_attention' is an embedding model; expected a decoder")


def differences(family: Family, settings: ConfigValues, sizes: Dimensions, rope: ConfigValues) -> tuple[str, ...]:
    """What llama.cpp will compute in another way than transformers, in words."""
    return tuple(f"{settings.where}: {text}" for text in _differences(family, settings, sizes, rope))


def _differences(family: Family, settings: ConfigValues, sizes: Dimensions, rope: ConfigValues) -> Iterator[str]:
    if rope.get("rope_type") == "dynamic":
        yield "rope type 'dynamic' is not in llama.cpp, which will not stretch positions beyond the trained length"
    window = settings.get("sliding_window")
    has_window = family.llama_cpp_period is None and window and settings.get("use_sliding_window") is not False
    if has_window and window < settings.count("max_position_embeddings"):
        yield f"attention has a sliding window of {window}, but llama.cpp will use full attention"
    normalizes = {"qwen2moe": False, "qwen3moe": True}.get(family.architecture)
    if normalizes is not None and bool(settings.get("norm_topk_prob")) != normalizes:
        yield f"'norm_topk_prob' is {not normalizes}, but llama.cpp computes as if it were {normalizes}"
    if family.is_gemma:
        yield from _gemma_differences(family, settings, sizes)


def _gemma_differences(family: Family, settings: ConfigValues, sizes: Dimensions) -> Iterator[str]:
    by_hidden = _SCALED_BY_HIDDEN.get(family.architecture) == sizes.layers
    expected = sizes.hidden // sizes.heads if by_hidden else sizes.head
    scalar = settings.number("query_pre_attn_scalar")
    if scalar != expected:
        yield f"'query_pre_attn_scalar' is {scalar:g}, but llama.cpp computes as if it were {expected}"
    for key, assumed in _GEMMA2_CAPS.items():
        if family.architecture == "gemma2" and settings.get(key) is None:
            yield f"{key!r} is not set, but llama.cpp computes as if it were {assumed}"
