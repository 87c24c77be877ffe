"""SmolLM 3: like Llama, but every fourth layer has no positions."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    TWO_NORMS,
    attention,
    decoder_defaults,
    embedding,
    final_norm_and_head,
    gated_mlp,
    in_layer,
    window_rule,
)
from lbrx.models.architectures.records import Decoder, Gguf, LayerRule, Rope

BY_INTERVAL = "1 if (layer + 1) % no_rope_layer_interval != 0 else 0"
HAS_POSITIONS = f"(no_rope_layers[layer] if no_rope_layers else {BY_INTERVAL}) != 0"

SMOLLM3 = Family(
    name="smollm3",
    model_types=("smollm3",),
    class_names=("SmolLM3ForCausalLM",),
    pre=(embedding(),),
    layer=in_layer(TWO_NORMS, attention(output_bias="attention_bias", is_paired=True), gated_mlp(bias="mlp_bias")),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        128256,
        2048,
        11008,
        36,
        16,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        rope_theta=2e6,
        mlp_bias=False,
        no_rope_layers=None,
        no_rope_layer_interval=4,
        use_sliding_window=False,
    ),
    layer_rules=(
        LayerRule("no_rope_layers", BY_INTERVAL),
        window_rule(f"use_sliding_window and not {HAS_POSITIONS}"),
    ),
    gguf=Gguf(
        "smollm3",
        rope_types=("default", "linear", "yarn", "llama3"),
        hard_coded={HAS_POSITIONS: "(layer + 1) % 4 != 0"},
    ),
    decoder=Decoder(positions=Rope(when=HAS_POSITIONS)),
)
