"""Records of mixers other than attention: short convolutions, state spaces and linear attention.

Text fields are expressions over the config. Weights have their GGUF names; in GGUF files some values are computed
already, such as ``-exp(A_log)``.
"""

from __future__ import annotations

from typing import Any, Literal

from lbrx.base.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ShortConv:
    """LFM2: ``out(c * conv(b * x))`` with b, c and x from one matrix. Weights: ``shortconv.in_proj``, ``.conv``,
    ``.out_proj``.
    """

    taps: str = "conv_L_cache"


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba 1. Weights: ``ssm_in``, ``ssm_conv1d``, ``ssm_x``, ``ssm_dt``, ``ssm_a``, ``ssm_d``, ``ssm_out``.

    ``norms``: time steps, b and c are normalized, with weights (``ssm_dt_norm``, ``ssm_b_norm``, ``ssm_c_norm``) or
    without.
    """

    inner: str = "intermediate_size"
    size: str = "state_size"
    taps: str = "conv_kernel"
    rank: str = "time_step_rank"
    norms: Literal["none", "plain", "weights"] = "none"
    norm_epsilon: str = "layer_norm_epsilon"


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba 2. Weights: ``ssm_in``, ``ssm_conv1d``, ``ssm_dt.bias``, ``ssm_a``, ``ssm_d``, ``ssm_norm``, ``ssm_out``.

    ``norm``: a group of results is normalized after its gate, or before it; ``norm_when`` is false: it is only gated.
    ``scales`` multiply the parts of the input: gate, x, b, c and time steps.
    """

    heads: str = "num_heads"
    width: str = "head_dim"
    size: str = "state_size"
    groups: str = "n_groups"
    taps: str = "conv_kernel"
    limits: str = "time_step_limit"
    epsilon: str = "layer_norm_epsilon"
    norm_when: str = "True"
    norm_before_gate: str = "False"
    input_scale: str | None = None
    output_scale: str | None = None
    scales: str | None = None  # a list of five numbers


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with the gated delta rule, and a gated norm. Weights: ``attn_qkv``, ``attn_gate``,
    ``ssm_conv1d``, ``ssm_dt.bias``, ``ssm_a``, ``ssm_norm``, ``ssm_out``, and ``ssm_beta`` and ``ssm_alpha``, or both
    in ``ssm_ba``.

    ``tiled_in_gguf``: in GGUF files, heads of values that share a key are not next to each other.
    """

    tiled_in_gguf: bool = False


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of several mixers, each with a factor for its input and one for its result.

    >>> Sum((ShortConv(),), (("1", "2"),)).factors
    (('1', '2'),)
    """

    mixers: tuple[Any, ...]
    factors: tuple[tuple[str, str], ...]
