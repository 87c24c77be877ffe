"""Values that small hostile files have where a config, metadata or a tokenizer should have usual ones."""

from __future__ import annotations

from typing import Any

HUGE_NUMBER = 10**400
NESTED: Any = 1
for _ in range(900):
    NESTED = [NESTED]

# Keys of a config.json, with the values that readers must survive.
CONFIG_VALUES: dict[str, list[Any]] = {
    "architectures": [5, {}, [], [5], "x", [["LlamaForCausalLM"]], None],
    "model_type": [["llama"], {}, 5, "", None, "\ud800"],
    "rope_scaling": [
        3.5,
        [1],
        "x",
        {},
        {"factor": "x"},
        {"type": 5, "factor": []},
        {"type": ["linear"]},
        {"rope_type": "yarn", "factor": -1},
        {"rope_type": "llama3", "factor": HUGE_NUMBER},
        {"rope_type": "linear", "factor": 0},
        {"full_attention": 5},
        {"full_attention": {}, "sliding_attention": 7},
        {"rope_type": "longrope", "long_factor": [{}], "short_factor": "x"},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
    ],
    "rope_parameters": [3.5, [1], {"rope_theta": {}}, {"rope_theta": 10**400}],
    "layer_types": [5, {}, "x", [5], [[]], ["full_attention"] * 3],
    "num_hidden_layers": [10**9, 2**31, HUGE_NUMBER, -1, 0, 1.5, "2", [], {}, True, None],
    "num_attention_heads": [0, -4, HUGE_NUMBER, "4", 1.5, [4], 3, 10**9],
    "num_key_value_heads": ["xxx", 0, -1, HUGE_NUMBER, [2], 10**9, 1.0],
    "head_dim": [10**8, 0, -2, HUGE_NUMBER, "8", [], 7],
    "hidden_size": [0, -8, HUGE_NUMBER, "8", [8], 10**12, 1.5],
    "intermediate_size": [0, HUGE_NUMBER, "x", []],
    "vocab_size": [0, -1, HUGE_NUMBER, "x", [], 10**12],
    "max_position_embeddings": [0, -1, HUGE_NUMBER, "x", []],
    "num_local_experts": [10**9, HUGE_NUMBER, "x", -1],
    "rms_norm_eps": [HUGE_NUMBER, "x", [], -1.0, 0, float("inf")],
    "rope_theta": [HUGE_NUMBER, "x", [], 0, -5, 1e308],
    "partial_rotary_factor": [HUGE_NUMBER, "x", 0, -1, 1e300],
    "sliding_window": [HUGE_NUMBER, "x", [], -1, 0],
    "tie_word_embeddings": ["x", 5, [], {}],
    "hidden_act": [5, [], {}, "\ud800"],
    "torch_dtype": [5, [], {}, "float99", "\ud800"],
    "dtype": [5, [], {}],
    "quantization_config": [5, [], "x"],
    "quantization": [5, [], "x", {"bits": "x"}, {"bits": 4}, {"group_size": [], "bits": {}}],
    "text_config": [5, [], "x", {"hidden_size": []}],
    "bos_token_id": ["x", [], [5], HUGE_NUMBER, -1, {}],
    "eos_token_id": ["x", [], ["y"], HUGE_NUMBER, -1, {}],
    "nested": [NESTED],
    "text": ["\ud800"],
    "not_a_number": [float("nan")],
}

# Values of GGUF metadata, as Python has them.
GGUF_VALUES: list[Any] = ["x", [1, 2], ["a"], float("nan"), float("inf"), 0, -1, 2**31 - 2, 2**63 - 1, 1e-30, True]
GGUF_KEYS = (
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.freq_base",
    "llama.rope.dimension_count",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.expert_count",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix",
)
