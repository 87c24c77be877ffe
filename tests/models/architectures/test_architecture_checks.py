"""Problems that are found before a run, word by word."""

from __future__ import annotations

import pytest

from lbrx.errors import UsageError
from lbrx.models.architectures import ModelHeader, automatic, check_models, check_names, check_shapes, find_family
from support.tiny_architectures import TINY, Tiny

every_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)


def _header(label: str, tiny: Tiny) -> ModelHeader:
    return ModelHeader(label, tiny.config, find_family(tiny.config).expected_shapes(tiny.config))


@every_tiny
def test_a_sound_model_has_no_problems(tiny: Tiny) -> None:
    architecture = find_family(tiny.config)
    a, b = _header("a", tiny), _header("b", tiny)
    assert check_names(architecture, tiny.config, tiny.names()) == []
    assert check_shapes(architecture, tiny.config, a.shapes) == []
    assert check_models(architecture, [a, b]) == []


def test_shape_problem_names_tensor_found_and_expected() -> None:
    tiny = TINY["llama"]
    name = "model.layers.1.self_attn.k_proj.weight"
    shapes = {**_header("a", tiny).shapes, name: (32, 32)}
    assert check_shapes(find_family(tiny.config), tiny.config, shapes) == [
        f"tensor '{name}' has shape (32, 32), expected (16, 32) "
        "from config.json's (num_key_value_heads * head_dim, hidden_size)"
    ]


def test_vocabulary_that_the_config_does_not_tell_is_a_shape_problem() -> None:
    tiny = TINY["gpt2"]
    shapes = {**_header("a", tiny).shapes, "transformer.wte.weight": (70, 32)}
    assert check_shapes(find_family(tiny.config), tiny.config, shapes) == [
        "tensor 'transformer.wte.weight' has shape (70, 32), expected (64, 32) "
        "from config.json's (vocab_size, hidden_size)"
    ]


def test_unknown_tensors_have_no_expected_shape() -> None:
    tiny = TINY["llama"]
    assert check_shapes(find_family(tiny.config), tiny.config, {"model.layers.0.a": (3,)}) == []


def test_missing_tensors_and_layers_beyond_the_config() -> None:
    tiny = TINY["qwen2"]
    names = [name for name in tiny.names() if name != "model.layers.2.self_attn.q_proj.bias"]
    problems = check_names(find_family(tiny.config), tiny.config, [*names, "model.layers.3.mlp.up_proj.weight"])
    assert problems == [
        "tensor 'model.layers.2.self_attn.q_proj.bias' is missing; the architecture 'qwen2' needs it",
        "tensor 'model.layers.3.mlp.up_proj.weight' is in layer 3, but config.json says that there are 3 layers",
    ]


def test_other_architecture() -> None:
    llama, mistral = _header("a", TINY["llama"]), _header("b", TINY["mistral"])
    architecture = find_family(llama.config)
    assert check_models(architecture, [llama, mistral]) == [
        "the architecture of b is 'mistral', but that of a is 'llama'"
    ]
    stranger = ModelHeader("c", {"model_type": "zamba2"}, llama.shapes)
    assert check_models(architecture, [llama, stranger]) == [
        "the architecture of c is unknown (model_type: 'zamba2'), but that of a is 'llama'"
    ]


def test_vocabularies_that_differ() -> None:
    tiny = TINY["llama"]
    a = _header("a", tiny)
    larger = {"model.embed_tokens.weight": (70, 32), "lm_head.weight": (70, 32)}
    b = ModelHeader("b", {**tiny.config, "vocab_size": 70}, {**a.shapes, **larger})
    assert check_models(find_family(tiny.config), [a, b]) == [
        f"the vocabularies differ: '{name}' has 70 rows in b, but 64 in a; "
        "name a tokenizer source to merge them by token"
        for name in ("lm_head.weight", "model.embed_tokens.weight")
    ]


def test_other_hidden_size_is_not_taken_for_a_vocabulary() -> None:
    tiny = TINY["llama"]
    a = _header("a", tiny)
    b = ModelHeader("b", tiny.config, {**a.shapes, "lm_head.weight": (64, 40)})
    assert check_models(find_family(tiny.config), [a, b]) == [
        "tensor 'lm_head.weight' has shape (64, 40) in b, but (64, 32) in a"
    ]


def test_tensors_that_only_one_model_has() -> None:
    tiny = TINY["llama"]
    a = _header("a", tiny)
    b = ModelHeader("b", tiny.config, {**a.shapes, "model.layers.0.new": (1,)})
    c = ModelHeader("c", tiny.config, {name: shape for name, shape in a.shapes.items() if name != "model.norm.weight"})
    architecture = find_family(tiny.config)
    assert check_models(architecture, [a, b]) == ["tensor 'model.layers.0.new' is in b, but not in a"]
    assert check_models(architecture, [a, c]) == ["tensor 'model.norm.weight' is in a, but not in c"]


def test_buffers_tied_heads_and_prefixes_are_no_problem() -> None:
    tiny = TINY["gpt2"]
    a = _header("a", tiny)
    bare = {name.removeprefix("transformer."): shape for name, shape in a.shapes.items()}
    b = ModelHeader("b", tiny.config, {**bare, "h.0.attn.masked_bias": (), "lm_head.weight": (64, 32)})
    assert check_models(find_family(tiny.config), [a, b]) == []
    assert check_models(find_family(tiny.config), [b, a]) == []


def test_automatic_mode_demands_equal_names_and_shapes() -> None:
    a = ModelHeader("a", {"model_type": "x"}, {"h.0.w": (2, 3), "h.1.w": (2, 3)})
    b = ModelHeader("b", {"model_type": "y"}, {"h.0.w": (2, 3), "h.1.w": (3, 3), "h.2.w": (2, 3)})
    assert check_models(automatic(a.shapes), [a, b]) == [
        "tensor 'h.2.w' is in b, but not in a",
        "tensor 'h.1.w' has shape (3, 3) in b, but (2, 3) in a",
    ]


def test_config_values_that_make_no_sense() -> None:
    tiny = TINY["llama"]
    architecture = find_family(tiny.config)
    with pytest.raises(UsageError, match="'num_hidden_layers' is -1; expected a whole number"):
        architecture.tensors({**tiny.config, "num_hidden_layers": -1})
    with pytest.raises(UsageError, match=r"cannot compute 'num_attention_heads \* head_dim'"):
        architecture.tensors({**tiny.config, "num_attention_heads": {}})
    with pytest.raises(UsageError, match="'hidden_size' is '32'; expected a whole number"):
        architecture.tensors({**tiny.config, "hidden_size": "32"})
