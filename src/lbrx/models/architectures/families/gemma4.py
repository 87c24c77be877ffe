"""Gemma 4: larger heads in layers with full attention, keys that layers share, and inputs for every layer."""

from lbrx.models.architectures.family import Family
from lbrx.models.architectures.parts import (
    decoder_defaults,
    embedding,
    final_norm_and_head,
    in_layer,
    linear,
    norm,
    window_rule,
)
from lbrx.models.architectures.records import (
    Decoder,
    GatedMlp,
    Gguf,
    GroupedAttention,
    LayerInputs,
    Norm,
    Rope,
    Weight,
)

IS_WINDOW = "(layer + 1) % 6 != 0 and layer + 1 != num_hidden_layers"
IS_FULL = f"(layer_types[layer] == 'full_attention' if layer_types else not ({IS_WINDOW}))"
HEAD = f"(global_head_dim if {IS_FULL} else head_dim)"
KEY_HEADS = (
    f"(num_global_key_value_heads if attention_k_eq_v and num_global_key_value_heads and {IS_FULL} "
    "else num_key_value_heads)"
)
SHARES_KEYS = "layer >= num_hidden_layers - num_kv_shared_layers"
KEYS_ARE_VALUES = f"attention_k_eq_v and {IS_FULL}"
INNER = f"intermediate_size * (2 if use_double_wide_mlp and {SHARES_KEYS} else 1)"
HAS_INPUTS = "hidden_size_per_layer_input > 0"
INPUTS = "num_hidden_layers * hidden_size_per_layer_input"

GEMMA4 = Family(
    name="gemma4",
    model_types=("gemma4_text", "gemma4"),
    class_names=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    pre=(
        embedding(),
        Weight(
            "{base}embed_tokens_per_layer.weight",
            ("vocab_size_per_layer_input", INPUTS),
            needed_when=HAS_INPUTS,
            is_vocabulary=True,
            gguf="per_layer_token_embd.weight",
        ),
        *linear("{base}per_layer_model_projection", INPUTS, "hidden_size", "per_layer_model_proj", when=HAS_INPUTS),
        *norm(
            "{base}per_layer_projection_norm",
            "per_layer_proj_norm",
            size="hidden_size_per_layer_input",
            when=HAS_INPUTS,
        ),
    ),
    layer=in_layer(
        norm("input_layernorm", "attn_norm"),
        norm("post_attention_layernorm", "post_attention_norm"),
        norm("pre_feedforward_layernorm", "ffn_norm"),
        norm("post_feedforward_layernorm", "post_ffw_norm"),
        linear("self_attn.q_proj", f"num_attention_heads * {HEAD}", "hidden_size", "attn_q"),
        linear("self_attn.k_proj", f"{KEY_HEADS} * {HEAD}", "hidden_size", "attn_k", when=f"not ({SHARES_KEYS})"),
        linear(
            "self_attn.v_proj",
            f"{KEY_HEADS} * {HEAD}",
            "hidden_size",
            "attn_v",
            when=f"not ({SHARES_KEYS} or {KEYS_ARE_VALUES})",
        ),
        linear("self_attn.o_proj", "hidden_size", f"num_attention_heads * {HEAD}", "attn_output"),
        norm("self_attn.q_norm", "attn_q_norm", size=HEAD),
        norm("self_attn.k_norm", "attn_k_norm", size=HEAD, when=f"not ({SHARES_KEYS})"),
        linear("mlp.gate_proj", INNER, "hidden_size", "ffn_gate"),
        linear("mlp.up_proj", INNER, "hidden_size", "ffn_up"),
        linear("mlp.down_proj", "hidden_size", INNER, "ffn_down"),
        linear("per_layer_input_gate", "hidden_size_per_layer_input", "hidden_size", "inp_gate", when=HAS_INPUTS),
        linear("per_layer_projection", "hidden_size", "hidden_size_per_layer_input", "proj", when=HAS_INPUTS),
        norm("post_per_layer_input_norm", "post_norm", when=HAS_INPUTS),
        (Weight("layer_scalar", (1,), gguf="layer_output_scale.weight"),),
    ),
    post=final_norm_and_head(),
    tied_by_default=True,
    defaults=decoder_defaults(
        262144,
        2304,
        9216,
        30,
        8,
        num_key_value_heads=4,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=None,
        max_position_embeddings=131072,
        sliding_window=512,
        layer_types=None,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        final_logit_softcapping=None,
        vocab_size_per_layer_input=262144,
        hidden_size_per_layer_input=256,
        num_kv_shared_layers=0,
        attention_k_eq_v=False,
        use_double_wide_mlp=False,
        enable_moe_block=False,
    ),
    layer_rules=(window_rule(IS_WINDOW),),
    layer_settings={"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"},
    gguf=Gguf(
        "gemma4",
        rope_types=("proportional",),
        never_has_output=True,
        lists_windows=True,
        without=(
            "feed_forward_length",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.value_length",
            "rope.dimension_count",
        ),
        keys={
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "attention.key_length": "global_head_dim",
            "attention.value_length": "global_head_dim",
            "rope.dimension_count": "global_head_dim",
            "attention.key_length_swa": "head_dim",
            "attention.value_length_swa": "head_dim",
            "rope.dimension_count_swa": "head_dim",
        },
        layer_keys={"feed_forward_length": INNER, "attention.head_count_kv": KEY_HEADS},
        merges_equal=True,
        layer_config={"_inner": "feed_forward_length[layer]", "_key_heads": "attention_head_count_kv[layer]"},
        derived={
            "intermediate_size": "_inner[0]",
            "use_double_wide_mlp": "_inner[0] != _inner[num_hidden_layers - 1]",
            "num_key_value_heads": "_key_heads[0]",
            "num_global_key_value_heads": "_key_heads[num_hidden_layers - 1]",
            "attention_k_eq_v": "_key_heads[0] != _key_heads[num_hidden_layers - 1]",
            "vocab_size_per_layer_input": "vocab_size",
        },
        requires={"not enable_moe_block": "experts next to an MLP"},
    ),
    decoder=Decoder(
        GroupedAttention(
            qk_norm="head",
            key_heads=KEY_HEADS,
            head_size=HEAD,
            scale="1",
            normalizes_values=True,
            shares_keys=SHARES_KEYS,
            keys_are_values=KEYS_ARE_VALUES,
        ),
        GatedMlp("gelu_tanh"),
        Norm("both"),
        Rope(size=HEAD),
        after=LayerInputs("gelu_tanh"),
        embedding_scale="hidden_size ** 0.5",
        requires=("not enable_moe_block",),
    ),
)
