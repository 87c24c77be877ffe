"""Building blocks of families with other mixers than attention: convolutions and the parameters of state spaces."""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.parts import linear, norm
from lbrx.models.architectures.records import Dimension, HeadOrder, Weight

LINEAR, FULL = "linear_attention", "full_attention"


def type_of_layer(rule: str) -> str:
    """Return an expression for the type of a layer: the one that ``layer_types`` lists, or that of a rule."""
    return f"(layer_types[layer] if layer_types else ({rule}))"


def conv(
    module: str,
    channels: Dimension,
    taps: Dimension,
    gguf: str,
    *,
    bias: str | None = None,
    when: str | None = None,
    order: HeadOrder | None = None,
    bias_in_gguf: bool = True,
) -> tuple[Weight, ...]:
    """Return the weights of a convolution that does not mix channels, and a bias that is required under a condition."""
    weight = Weight(
        f"{module}.weight",
        (channels, 1, taps),
        needed_when=when,
        gguf=f"{gguf}.weight",
        gguf_shape=(channels, taps),
        is_conv=True,
        order=order,
    )
    if bias is None:
        return (weight,)
    needed = bias if when is None else f"({when}) and ({bias})"
    return weight, Weight(f"{module}.bias", (channels,), needed_when=needed, gguf=f"{gguf}.bias", in_gguf=bias_in_gguf)


def vector(
    name: str, size: Dimension, gguf: str, *, when: str | None = None, is_log: bool = False, is_column: bool = False
) -> Weight:
    """Return one number for each head, such as its decay. ``is_column``: GGUF has an axis of size 1 behind it."""
    gguf_shape = (size, 1) if is_column else None
    return Weight(name, (size,), needed_when=when, gguf=gguf, is_log=is_log, gguf_shape=gguf_shape)


def mamba(module: str, *, inner: str, size: str, taps: str, rank: str, when: str | None = None) -> tuple[Weight, ...]:
    """Return the weights of Mamba; ``use_bias`` and ``use_conv_bias`` of the config say which biases it has."""
    bias = "use_bias" if when is None else f"({when}) and use_bias"
    weights = (
        *linear(f"{module}.in_proj", f"2 * ({inner})", "hidden_size", "ssm_in", bias=bias, when=when),
        *conv(f"{module}.conv1d", inner, taps, "ssm_conv1d", bias="use_conv_bias", when=when),
        *linear(f"{module}.x_proj", f"{rank} + 2 * {size}", inner, "ssm_x", when=when),
        *linear(f"{module}.dt_proj", inner, rank, "ssm_dt", when=when, bias=when or "True"),
        Weight(f"{module}.A_log", (inner, size), needed_when=when, gguf="ssm_a", is_log=True),
        vector(f"{module}.D", inner, "ssm_d", when=when),
        *linear(f"{module}.out_proj", "hidden_size", inner, "ssm_out", bias=bias, when=when),
    )
    return without_biases_in_gguf(weights)


def without_biases_in_gguf(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    """Return weights whose matrices before and after a state space have no biases in llama.cpp."""
    return tuple(replace(each, in_gguf=each.gguf not in ("ssm_in.bias", "ssm_out.bias")) for each in weights)


def mamba2(
    module: str,
    *,
    heads: str,
    inner: str,
    size: str,
    groups: str,
    taps: str,
    bias: str,
    conv_bias: str,
    when: str | None = None,
    norm_when: str | None = None,
) -> tuple[Weight, ...]:
    """Return the weights of Mamba 2; ``bias`` and ``conv_bias`` are the conditions for biases."""
    channels = f"({inner}) + 2 * {groups} * {size}"
    bias = bias if when is None else f"({when}) and ({bias})"
    needs_norm = " and ".join(f"({each})" for each in (when, norm_when) if each is not None) or None
    (gain,) = norm(f"{module}.norm", "ssm_norm", size=inner, when=needs_norm)
    weights = (
        *linear(
            f"{module}.in_proj", f"({inner}) + {channels} + {heads}", "hidden_size", "ssm_in", bias=bias, when=when
        ),
        *conv(f"{module}.conv1d", channels, taps, "ssm_conv1d", bias=conv_bias, when=when),
        vector(f"{module}.dt_bias", heads, "ssm_dt.bias", when=when),
        vector(f"{module}.A_log", heads, "ssm_a", when=when, is_log=True, is_column=True),
        vector(f"{module}.D", heads, "ssm_d", when=when, is_column=True),
        replace(gain, gguf_shape=(groups, f"({inner}) // {groups}")),
        *linear(f"{module}.out_proj", "hidden_size", inner, "ssm_out", bias=bias, when=when),
    )
    return without_biases_in_gguf(weights)
