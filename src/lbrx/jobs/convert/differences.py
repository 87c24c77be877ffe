"""Where llama.cpp computes something else than transformers: warnings, because a file can still be made."""

from __future__ import annotations

from collections.abc import Iterator

from lbrx.errors import UsageError
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.gguf_config import assumed_scalar
from lbrx.models.architectures.gguf_metadata import gguf_of


def check_supported(family: Family, config: Config) -> None:
    """Raise if llama.cpp cannot represent the model."""
    dense, step = config.get("mlp_only_layers"), config.get("decoder_sparse_step")
    if family.expert_count is not None and (dense or (step or 1) != 1):
        raise UsageError(
            f"{config.where}: 'mlp_only_layers' is {dense!r} and 'decoder_sparse_step' {step!r}; "
            f"llama.cpp has {gguf_of(family).name} with experts in every layer only"
        )
    for condition, text in gguf_of(family).requires.items():
        if not config.evaluate(condition):
            raise UsageError(f"{config.where}: {text}; llama.cpp has no {gguf_of(family).name} of that kind")
    if "use_bidirectional_attention" in family.defaults and config.get("use_bidirectional_attention"):
        raise UsageError(f"{config.where}: 'use_bidirectional_attention' is an embedding model; expected a decoder")


def differences(family: Family, config: Config, rope: Config) -> tuple[str, ...]:
    """What llama.cpp will compute in another way than transformers, in words."""
    return tuple(f"{config.where}: {text}" for text in _differences(family, config, rope))


def _differences(family: Family, config: Config, rope: Config) -> Iterator[str]:
    gguf = gguf_of(family)
    if rope.get("rope_type") == "dynamic" and rope.get("alpha") is None:
        yield "rope type 'dynamic' is not in llama.cpp, which will not stretch positions beyond the trained length"
    yield from (text for condition, text in gguf.differs.items() if config.evaluate(condition))
    window = config.get("sliding_window")
    has_layers = gguf.full_attention_period is not None or (gguf.lists_windows and config.evaluate(gguf.windows_when))
    has_window = not has_layers and window and config.get("use_sliding_window") is not False
    if has_window and config.count("sliding_window") < config.count("max_position_embeddings"):
        yield f"attention has a sliding window of {window}, but llama.cpp will use full attention"
    layers = range(config.count("num_hidden_layers"))
    for expression, usual in gguf.hard_coded.items():
        if any(config.evaluate(expression, layer=layer) != config.evaluate(usual, layer=layer) for layer in layers):
            yield f"{expression!r} is not {usual!r}, as which llama.cpp computes"
    for key, value in gguf.fixed.items():
        if config.get(key) != value:
            yield f"{key!r} is {config.get(key)}, but llama.cpp computes as if it were {value}"
    if "query_pre_attn_scalar" in family.defaults:
        sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim")
        expected = assumed_scalar(gguf, *(config.count(key) for key in sizes))
        scalar = config.number("query_pre_attn_scalar")
        if scalar != expected:
            yield f"'query_pre_attn_scalar' is {scalar:g}, but llama.cpp computes as if it were {expected}"
    for key, assumed in gguf.assumed.items():
        if config.get(key) is None:
            yield f"{key!r} is not set, but llama.cpp computes as if it were {assumed}"
