"""The table of architectures against names written by hand and against llama.cpp's table of names."""

from __future__ import annotations

import pytest
from gguf import MODEL_ARCH, get_tensor_name_map

from lbrx.errors import UsageError
from lbrx.models.architectures import find_family, known_family
from lbrx.models.architectures.config import HEAD_DIM
from lbrx.models.architectures.table import all_families
from support.tiny_architectures import TINY, Tiny

every_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)


@every_tiny
def test_demanded_tensors_are_the_hand_written_names(tiny: Tiny) -> None:
    architecture = find_family(tiny.config)
    roles = architecture.tensors(tiny.config)
    assert sorted(role.name for role in roles) == sorted(tiny.names())
    parts = {part: [role.name for role in roles if role.part == part] for part in ("pre", "post")}
    assert parts == {"pre": tiny.pre, "post": tiny.post}
    assert [role.layer for role in roles if role.part == "layer"] == sorted([0, 1, 2] * len(tiny.layer))


@every_tiny
def test_a_whole_checkpoint_misses_nothing_and_leaves_nothing_unclaimed(tiny: Tiny) -> None:
    architecture = find_family(tiny.config)
    assert architecture.missing(tiny.config, tiny.names()) == []
    assert architecture.unclaimed(tiny.config, tiny.names()) == []


@every_tiny
def test_each_missing_tensor_is_named(tiny: Tiny) -> None:
    architecture = find_family(tiny.config)
    names = tiny.names()
    for name in names:
        others = [other for other in names if other != name]
        assert architecture.missing(tiny.config, others) == [name]


@every_tiny
def test_every_known_tensor_has_a_shape(tiny: Tiny) -> None:
    shapes = find_family(tiny.config).expected_shapes(tiny.config)
    assert sorted(shapes) == sorted(tiny.names())
    assert all(size > 0 for shape in shapes.values() for size in shape)


LLAMA_CPP = {"mistral": "LLAMA", "mixtral": "LLAMA"}
LLAMA_CPP_GROUPS = {
    ".experts.0.": ".experts.",
    ".experts.1.": ".experts.",
    **{f"_layernorm.norms.{head}.": "_layernorm." for head in range(4)},
}


@pytest.mark.parametrize("name", TINY)
def test_llama_cpp_knows_every_name(name: str) -> None:
    """Its table has one entry for all experts, and none for a bias of its own."""
    tiny = TINY[name]
    wanted = LLAMA_CPP.get(name, name.replace("_", "").upper())
    known = get_tensor_name_map(getattr(MODEL_ARCH, wanted), 3)
    for tensor in tiny.names():
        grouped = tensor
        for own, theirs in LLAMA_CPP_GROUPS.items():
            grouped = grouped.replace(own, theirs)
        assert known.get_name(grouped, try_suffixes=(".weight", ".bias")) is not None, grouped


SHAPES = {
    ("llama", "model.layers.2.self_attn.q_proj.weight"): (32, 32),
    ("llama", "model.layers.2.self_attn.k_proj.weight"): (16, 32),
    ("llama", "model.layers.2.mlp.down_proj.weight"): (32, 48),
    ("llama", "lm_head.weight"): (64, 32),
    ("mixtral", "model.layers.0.block_sparse_moe.experts.1.w2.weight"): (32, 48),
    ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"): (2, 32),
    ("qwen2", "model.layers.0.self_attn.k_proj.bias"): (16,),
    ("qwen2_moe", "model.layers.0.mlp.shared_expert.gate_proj.weight"): (40, 32),
    ("qwen2_moe", "model.layers.0.mlp.shared_expert_gate.weight"): (1, 32),
    ("qwen3_moe", "model.layers.0.mlp.experts.0.down_proj.weight"): (32, 24),
    ("qwen3", "model.layers.0.self_attn.q_norm.weight"): (8,),
    ("phi3", "model.layers.0.self_attn.qkv_proj.weight"): (32 + 16 + 16, 32),
    ("phi3", "model.layers.0.mlp.gate_up_proj.weight"): (96, 32),
    ("gpt2", "transformer.wpe.weight"): (16, 32),
    ("gpt2", "transformer.h.0.attn.c_attn.weight"): (32, 96),
    ("gpt2", "transformer.h.0.mlp.c_proj.weight"): (128, 32),
    ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight"): (96, 32),
    ("stablelm", "model.layers.0.self_attn.q_layernorm.norms.3.weight"): (8,),
    ("falcon", "transformer.h.0.self_attention.query_key_value.weight"): ((2 * 2 + 4) * 8, 32),
    ("falcon", "transformer.h.0.mlp.dense_h_to_4h.weight"): (128, 32),
}


@pytest.mark.parametrize(("model", "tensor"), SHAPES)
def test_shape_by_hand(model: str, tensor: str) -> None:
    config = TINY[model].config
    assert find_family(config).expected_shapes(config)[tensor] == SHAPES[model, tensor]


def test_head_dimension_is_independent_of_the_hidden_size_when_the_config_says_so() -> None:
    config = {**TINY["llama"].config, "head_dim": 16}
    shapes = find_family(config).expected_shapes(config)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (32, 64)
    assert find_family(config).defaults["head_dim"] == HEAD_DIM


def test_falcon_7b_has_one_norm_and_one_key_for_all_heads() -> None:
    config = {**TINY["falcon"].config, "new_decoder_architecture": False, "multi_query": True}
    names = {role.name.removeprefix("transformer.h.0.") for role in find_family(config).tensors(config)}
    assert {"input_layernorm.weight", "input_layernorm.bias"} <= names
    assert not {name for name in names if name.startswith(("ln_attn", "ln_mlp", "post_attention"))}
    shapes = find_family(config).expected_shapes(config)
    assert shapes["transformer.h.0.self_attention.query_key_value.weight"] == (32 + 2 * 8, 32)


def test_falcon_rw_has_biases_two_norms_in_a_row_and_a_key_per_head() -> None:
    config = {
        **TINY["falcon"].config,
        "new_decoder_architecture": False,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    }
    shapes = find_family(config).expected_shapes(config)
    assert shapes["transformer.h.1.self_attention.query_key_value.weight"] == (96, 32)
    assert shapes["transformer.h.1.self_attention.query_key_value.bias"] == (96,)
    assert shapes["transformer.h.1.post_attention_layernorm.weight"] == (32,)


def test_qwen_moe_layers_are_dense_where_the_config_says_so() -> None:
    config = {**TINY["qwen3_moe"].config, "mlp_only_layers": [0], "decoder_sparse_step": 2}
    names = {role.name for role in find_family(config).tensors(config)}
    gates = {f"model.layers.{layer}.mlp.gate.weight" in names for layer in (0, 2)}
    assert gates == {False}
    assert "model.layers.1.mlp.gate.weight" in names
    assert "model.layers.1.mlp.up_proj.weight" not in names
    assert {f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 2)} <= names


def test_experts_stored_in_one_tensor_replace_single_ones() -> None:
    tiny = TINY["qwen3_moe"]
    architecture = find_family(tiny.config)
    fused = {
        "model.layers.{}.mlp.experts.gate_up_proj": (2, 48, 32),
        "model.layers.{}.mlp.experts.down_proj": (2, 32, 24),
    }
    names = [name for name in tiny.names() if ".experts." not in name]
    names += [name.format(layer) for name in fused for layer in range(3)]
    assert architecture.missing(tiny.config, names) == []
    assert architecture.unclaimed(tiny.config, names) == []
    shapes = architecture.expected_shapes(tiny.config, names)
    assert all(shapes[name.format(2)] == shape for name, shape in fused.items())


def test_llama_biases_are_demanded_only_by_the_config() -> None:
    config = {**TINY["llama"].config, "attention_bias": True, "mlp_bias": True}
    missing = find_family(config).missing(config, TINY["llama"].names())
    assert "model.layers.0.self_attn.o_proj.bias" in missing
    assert "model.layers.2.mlp.down_proj.bias" in missing
    assert len(missing) == 3 * 7


def test_buffers_are_known_but_not_demanded() -> None:
    tiny = TINY["gpt2"]
    buffer = "transformer.h.1.attn.bias"
    architecture = find_family(tiny.config)
    roles = {role.name: role for role in architecture.tensors(tiny.config, [*tiny.names(), buffer])}
    assert roles[buffer].is_buffer
    assert roles[buffer].shape == (1, 1, 16, 16)
    assert (roles[buffer].layer, roles[buffer].is_known) == (1, True)
    assert "transformer.h.0.attn.bias" not in roles


def test_a_model_without_a_language_head_needs_none() -> None:
    config = {**TINY["mistral"].config, "architectures": ["MistralModel"]}
    architecture = find_family(config)
    names = [name.removeprefix("model.") for name in TINY["mistral"].names() if name != "lm_head.weight"]
    assert architecture.name == "mistral"
    assert architecture.missing(config, names) == []
    assert architecture.unclaimed(config, names) == []


def test_class_counts_before_model_type() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "mistral"}
    assert find_family(config).name == "llama"
    assert find_family({"model_type": "RefinedWeb"}).name == "falcon"


def test_multi_modal_config_is_found_by_its_language_model() -> None:
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "mistral"}}
    assert find_family(config).name == "mistral"


def test_unknown_family_says_what_is_known_and_what_else_there_is() -> None:
    config = {"architectures": ["QwenXForCausalLM"], "model_type": "qwen33"}
    assert known_family(config) is None
    with pytest.raises(UsageError) as caught:
        find_family(config)
    message = str(caught.value)
    assert "'qwen33'" in message
    assert "QwenXForCausalLM" in message
    assert "llama, mistral, mixtral" in message
    assert "did you mean 'qwen3'?" in message
    assert "automatic" in message


def test_class_names_and_model_types_belong_to_one_architecture_each() -> None:
    for names in ("class_names", "model_types"):
        variants = {name for family in all_families() for name in family.variants}
        families = [family for family in all_families() if family.name not in variants]
        listed = [name for architecture in families for name in getattr(architecture, names)]
        assert len(listed) == len(set(listed))
