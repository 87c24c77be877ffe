"""Mamba, FalconMamba and Mamba 2: layers of state spaces only."""

from typing import Any

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.mixer_parts import mamba, mamba2
from lbrx.models.architectures.mixer_records import Mamba, Mamba2
from lbrx.models.architectures.parts import embedding, in_layer, language_head, norm
from lbrx.models.architectures.records import Decoder, Gguf, Naming, Norm

EMBEDDING = embedding("{base}embeddings.weight")
POST = (*norm("{base}norm_f", "output_norm"), language_head("{head}lm_head.weight", EMBEDDING))
NAMINGS = (Naming("backbone."), Naming("model.backbone.", "model."), Naming(""))
NORM = Norm(epsilon="layer_norm_epsilon")
LONGEST = 1 << 20
DEFAULTS: dict[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "intermediate_size": "expand * hidden_size",
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": "'auto'",
    "num_attention_heads": 1,
    "max_position_embeddings": LONGEST,
}
NO_ATTENTION = ("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length")
RANK = "(hidden_size + 15) // 16 if time_step_rank == 'auto' else time_step_rank"
MAMBA_WEIGHTS = mamba("mixer", inner="intermediate_size", size="state_size", taps="conv_kernel", rank=f"({RANK})")
KEYS = {
    "feed_forward_length": "0",
    "attention.head_count": "0",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
}
REQUIRES = {"not use_bias": "biases of state spaces", "use_conv_bias": "convolutions without a bias"}


def mamba_gguf(is_normed: bool) -> Gguf:
    """Return how llama.cpp stores Mamba; FalconMamba normalizes time steps, b and c."""
    return Gguf(
        "mamba",
        without=(*NO_ATTENTION, "feed_forward_length"),
        when=f"{'' if is_normed else 'not '}ssm_dt_b_c_rms",
        keys={
            **KEYS,
            "ssm.inner_size": "intermediate_size",
            "ssm.time_step_rank": RANK,
            "ssm.dt_b_c_rms": str(is_normed),
        },
        config={"intermediate_size": "ssm_inner_size", "time_step_rank": "ssm_time_step_rank"},
        stored_defaults={"ssm_dt_b_c_rms": False},
        requires=REQUIRES,
    )


MAMBA = Family(
    name="mamba",
    model_types=("mamba",),
    class_names=("MambaForCausalLM", "MambaLMHeadModel"),
    pre=(EMBEDDING,),
    layer=in_layer(norm("norm", "attn_norm"), MAMBA_WEIGHTS),
    post=POST,
    tied_by_default=True,
    namings=NAMINGS,
    omitted_sizes=("intermediate_size", "num_attention_heads"),
    defaults={"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16, **DEFAULTS},
    gguf=mamba_gguf(is_normed=False),
    decoder=Decoder(mixer=Mamba(rank=RANK), mlp=None, norm=NORM, positions=None),
)

FALCON_MAMBA = Family(
    name="falcon_mamba",
    model_types=("falcon_mamba",),
    class_names=("FalconMambaForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(norm("norm", "attn_norm"), MAMBA_WEIGHTS),
    post=POST,
    tied_by_default=True,
    namings=NAMINGS,
    omitted_sizes=("intermediate_size", "num_attention_heads"),
    defaults={
        "vocab_size": 50280,
        "hidden_size": 768,
        "num_hidden_layers": 32,
        "state_size": 16,
        "mixer_rms_eps": 1e-6,
        **DEFAULTS,
    },
    gguf=mamba_gguf(is_normed=True),
    decoder=Decoder(
        mixer=Mamba(rank=RANK, norms="plain", norm_epsilon="mixer_rms_eps"), mlp=None, norm=NORM, positions=None
    ),
)

MAMBA2 = Family(
    name="mamba2",
    model_types=("mamba2",),
    class_names=("Mamba2ForCausalLM",),
    pre=(EMBEDDING,),
    layer=in_layer(
        norm("norm", "attn_norm"),
        mamba2(
            "mixer",
            heads="num_heads",
            inner="expand * hidden_size",
            size="state_size",
            groups="n_groups",
            taps="conv_kernel",
            bias="use_bias",
            conv_bias="use_conv_bias",
        ),
    ),
    post=POST,
    namings=NAMINGS,
    omitted_sizes=("intermediate_size", "num_attention_heads"),
    defaults={
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        **DEFAULTS,
    },
    needed_in_mlx=("intermediate_size",),
    gguf=Gguf(
        "mamba2",
        without=(*NO_ATTENTION, "feed_forward_length"),
        keys={
            **KEYS,
            "ssm.inner_size": "expand * hidden_size",
            "ssm.time_step_rank": "num_heads",
            "ssm.group_count": "n_groups",
        },
        config={
            "expand": "ssm_inner_size // embedding_length",
            "num_heads": "ssm_time_step_rank",
            "head_dim": "ssm_inner_size // ssm_time_step_rank",
        },
        requires=REQUIRES,
    ),
    decoder=Decoder(mixer=Mamba2(), mlp=None, norm=NORM, positions=None),
)
