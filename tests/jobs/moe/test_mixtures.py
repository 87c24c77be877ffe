"""Mixtures written to disk: names, shapes, values, config and gates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import lbrx
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.output.options import Progress
from lbrx.jobs.merge.recipe import RecipeError
from lbrx.jobs.moe import MoePlan, parse_moe_recipe, plan_moe, write_moe
from lbrx.jobs.moe.moe import plan_recipe
from lbrx.models.architectures import check_names, check_shapes, find_family
from support.small_models import GOLDEN, HIDDEN, INNER, LAYERS, Array, config, golden, tensors, write_model

MIXTRAL_NAMES = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def plan_of(text: str, directory: Path = GOLDEN, seed: int = 0) -> MoePlan:
    return plan_moe(parse_moe_recipe(text), recipe_text=text, directory=directory, seed=seed)


def write(text: str, out: Path, directory: Path = GOLDEN, **options: Any) -> tuple[dict[str, Array], dict[str, Any]]:
    write_moe(plan_of(text, directory), out, **options)
    return load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())


def random_recipe(*experts: str, base: str = "base", more: str = "") -> str:
    listed = ", ".join(f"{{source_model: {expert}}}" for expert in experts)
    return f"{{base_model: {base}, gate_mode: random, experts: [{listed}]{more}}}"


def test_a_mixtral_model_of_the_golden_models(tmp_path: Path) -> None:
    written, settings = write(random_recipe("a", "b"), tmp_path / "out")
    base, experts = golden("base"), [golden("a"), golden("b")]
    expected = {name: value for name, value in base.items() if ".mlp." not in name}
    for layer in range(3):
        for number, expert in enumerate(experts):
            for dense, matrix in MIXTRAL_NAMES.items():
                name = f"model.layers.{layer}.block_sparse_moe.experts.{number}.{matrix}.weight"
                expected[name] = expert[f"model.layers.{layer}.mlp.{dense}.weight"]
    gates = {f"model.layers.{layer}.block_sparse_moe.gate.weight" for layer in range(3)}
    assert set(written) == set(expected) | gates
    for name, value in expected.items():
        assert written[name].dtype == value.dtype
        np.testing.assert_array_equal(written[name], value, err_msg=name)
    assert all(written[name].shape == (2, 32) for name in gates)
    assert len({written[name].tobytes() for name in gates}) == 3
    dense_settings = json.loads((GOLDEN / "base" / "config.json").read_text())
    assert settings == dense_settings | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }
    architecture = find_family(settings)
    shapes = {name: value.shape for name, value in written.items()}
    assert check_names(architecture, settings, shapes) == check_shapes(architecture, settings, shapes) == []


def test_noise_and_the_scale_of_what_is_written_back(tmp_path: Path) -> None:
    recipe = """
        base_model: base
        gate_mode: uniform
        experts:
          - {source_model: a, residual_scale: 0.5}
          - {source_model: b, noise_scale: 0.25}
    """
    written, _ = write(recipe, tmp_path / "out")
    a, b = golden("a"), golden("b")
    for layer in range(3):
        dense, prefix = f"model.layers.{layer}.mlp.", f"model.layers.{layer}.block_sparse_moe."
        np.testing.assert_array_equal(written[prefix + "experts.0.w2.weight"], a[dense + "down_proj.weight"] * 0.5)
        np.testing.assert_array_equal(written[prefix + "experts.0.w1.weight"], a[dense + "gate_proj.weight"])
        noise = (written[prefix + "experts.1.w3.weight"] - b[dense + "up_proj.weight"]) / 0.25
        drawn = lbrx.normal(noise.shape, 0, prefix + "experts.1.w3.weight").numpy()
        np.testing.assert_allclose(noise, drawn, atol=1e-5)
        np.testing.assert_array_equal(written[prefix + "gate.weight"], np.zeros((2, 32), np.float32))


def test_random_gates_depend_on_the_seed_alone() -> None:
    name = "model.layers.1.block_sparse_moe.gate.weight"
    first, again, other = (plan_of(random_recipe("a", "b"), seed=seed).tensors[name].numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    assert 0.5 < first.std() < 1.5


def test_uniform_random_gates_lie_within_the_bounds_of_a_new_linear_layer() -> None:
    plan = plan_of(random_recipe("a", "b", "c", "base").replace("random", "uniform_random"))
    bound = math.sqrt(1 / 32)
    gate = plan.tensors["model.layers.0.block_sparse_moe.gate.weight"].numpy()
    assert gate.shape == (4, 32)
    assert np.abs(gate).max() <= bound
    assert np.abs(gate).max() > 0.8 * bound
    assert gate.min() < 0 < gate.max()


def test_the_dtype_of_the_recipe(tmp_path: Path) -> None:
    plan = plan_of(random_recipe("a", "b", more=", dtype: bfloat16"))
    assert {tensor.dtype.name for tensor in plan.tensors.values()} == {"bf16"}
    assert plan.config["torch_dtype"] == "bfloat16"
    write_moe(plan, tmp_path / "out")
    assert lbrx.open(tmp_path / "out")["model.norm.weight"].dtype.name == "bf16"


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_qwen2_moe_model(tmp_path: Path, model_type: str) -> None:
    made = {name: tensors(seed, model_type == "qwen2") for seed, name in enumerate(("base", "a", "b", "c"))}
    for name, values in made.items():
        write_model(tmp_path / name, values, config(model_type))
    more = ", shared_experts: [{source_model: c, residual_scale: 0.5}], experts_per_token: 1"
    written, settings = write(random_recipe("a", "b", more=more), tmp_path / "out", tmp_path)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.mlp."
        for matrix in ("gate_proj", "up_proj", "down_proj"):
            for number, name in enumerate("ab"):
                expected = made[name][f"{prefix}{matrix}.weight"]
                np.testing.assert_array_equal(written[f"{prefix}experts.{number}.{matrix}.weight"], expected)
            scale = 0.5 if matrix == "down_proj" else 1
            expected = made["c"][f"{prefix}{matrix}.weight"] * np.float32(scale)
            np.testing.assert_array_equal(written[f"{prefix}shared_expert.{matrix}.weight"], expected)
        assert written[f"{prefix}gate.weight"].shape == (2, HIDDEN)
        assert written[f"{prefix}shared_expert_gate.weight"].shape == (1, HIDDEN)
        for part, rows in (("q", 8), ("k", 4), ("v", 4)):
            name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
            np.testing.assert_array_equal(written[name], made["base"].get(name, np.zeros(rows, np.float32)))
    assert settings["architectures"] == ["Qwen2MoeForCausalLM"]
    assert (settings["num_experts"], settings["num_experts_per_tok"]) == (2, 1)
    assert settings["moe_intermediate_size"] == settings["shared_expert_intermediate_size"] == INNER
    assert (settings["decoder_sparse_step"], settings["norm_topk_prob"]) == (1, True)
    architecture = find_family(settings)
    shapes = {name: value.shape for name, value in written.items()}
    assert check_names(architecture, settings, shapes) == check_shapes(architecture, settings, shapes) == []


def test_what_a_config_left_out_is_written_out(tmp_path: Path) -> None:
    settings = {key: value for key, value in config("mistral").items() if key != "torch_dtype"}
    for seed, name in enumerate("ab"):
        write_model(tmp_path / name, tensors(seed), settings | {"sliding_window": 4096})
    plan = plan_of(random_recipe("a", "b", base="a"), tmp_path)
    assert (plan.config["rope_theta"], plan.config["rms_norm_eps"]) == (10000.0, 1e-6)
    assert plan.config["max_position_embeddings"] == 131072
    assert plan.config["tie_word_embeddings"] is False
    assert plan.config["sliding_window"] is None
    assert plan.warnings == ("a attends to the last 4096 tokens only; the mixture attends to all",)


def test_gates_from_the_embeddings_of_prompts(tmp_path: Path) -> None:
    made = {name: tensors(seed) for seed, name in enumerate(("base", "a", "b"))}
    for name, values in made.items():
        write_model(tmp_path / name, values, config("llama"), has_tokenizer=name == "base")
    recipe = """
        base_model: base
        gate_mode: cheap_embed
        experts:
          - {source_model: a, positive_prompts: ["sum of two", sum]}
          - {source_model: b, positive_prompts: [poem], negative_prompts: ["sum <s>"]}
    """
    written, _ = write(recipe, tmp_path / "out", tmp_path)
    embedding = made["base"]["model.embed_tokens.weight"].astype(np.float64)

    def unit(vector: Array) -> Array:
        return np.asarray(vector / np.linalg.norm(vector))

    # Every prompt begins with <s>, which is 5; sum is 1, poem 2, of 3, two 4.
    first = unit(embedding[[5, 1, 3, 4, 5, 1]].sum(axis=0))
    second = unit(unit(embedding[[5, 2]].sum(axis=0)) - unit(embedding[[5, 1, 5]].sum(axis=0)))
    for layer in range(LAYERS):
        gate = written[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
        np.testing.assert_allclose(gate, [first, second], rtol=1e-5)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md",
        "config.json",
        "lbrx.checksums.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert recipe.rstrip("\n") in (tmp_path / "out" / "README.md").read_text()


def test_the_card_has_the_characters_of_a_recipe_from_memory() -> None:
    expert = {"source_model": GOLDEN / "a", "positive_prompts": ["größer als 五"]}
    plan = plan_recipe({"base_model": GOLDEN / "base", "gate_mode": "random", "experts": [expert, expert]})
    card = next(file for file in plan.side_files if file.name == "README.md")
    assert '"positive_prompts": ["größer als 五"]' in card.read().decode()


def test_prompts_that_are_much_alike(tmp_path: Path) -> None:
    write_model(tmp_path / "a", tensors(0), config("llama"), has_tokenizer=True)
    recipe = """
        base_model: a
        gate_mode: cheap_embed
        experts:
          - {source_model: a, positive_prompts: [sum sum sum sum]}
          - {source_model: a, positive_prompts: [sum sum sum sum sum]}
    """
    first, second = plan_of(recipe, tmp_path).warnings
    assert first.endswith("all experts are the same model, which is of use only if the mixture is trained")
    assert second.startswith("the prompts of the experts are much alike")


def test_warnings_of_a_recipe() -> None:
    recipe = "{base_model: base, gate_mode: random, experts_per_token: 1, experts: [%s]}"
    expert = "{source_model: a, positive_prompts: [x]}"
    warnings = plan_of(recipe % ", ".join([expert] * 3)).warnings
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "the prompts are not used by the gate mode 'random'",
        "all experts are the same model, which is of use only if the mixture is trained",
        "3 experts are not a power of two, which some programs require",
    ]


def test_shards_and_their_index(tmp_path: Path) -> None:
    plan = plan_of(random_recipe("a", "b"))
    reports: list[Progress] = []
    result = write_moe(plan, tmp_path / "out", max_shard_bytes=40_000, progress=reports.append)
    opened = lbrx.open(tmp_path / "out")
    assert list(opened) == list(plan.tensors)
    assert len(opened.files) > 1
    assert opened.nbytes == result.written_bytes == reports[-1].done_bytes == reports[-1].total_bytes
    assert len(reports) == len(plan.tensors)


def test_an_output_that_exists_is_replaced_only_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.safetensors").write_text("old")
    with pytest.raises(FileError, match="exists and is not empty; --overwrite replaces it"):
        write_moe(plan_of(random_recipe("a", "b")), out)
    assert [path.name for path in out.iterdir()] == ["old.safetensors"]
    write_moe(plan_of(random_recipe("a", "b")), out, overwrite=True)
    files = ["README.md", "config.json", "lbrx.checksums.json", "model.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == files
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    plan = plan_of(random_recipe("a", "b"))

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_moe(plan, tmp_path / "out", progress=interrupt)
    assert not (tmp_path / "out").exists()
    assert write_moe(plan, tmp_path / "out").resumed_tensors > 0
    write_moe(plan, tmp_path / "whole")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize("mode", ["", "gate_mode: hidden_last,", "gate_mode: hidden_avg,"])
def test_gates_from_hidden_states(mode: str, tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "a", "b")):
        write_model(tmp_path / name, tensors(seed), config("llama"), has_tokenizer=name == "base")
    first = "{source_model: a, positive_prompts: ['sum of two', poem]}"
    second = "{source_model: b, positive_prompts: [two], negative_prompts: [sum]}"
    recipe = f"{{base_model: base, {mode} experts: [{first}, {second}]}}"
    written, _ = write(recipe, tmp_path / "out", tmp_path)
    model = lbrx.open_model(tmp_path / "base")

    def states(ids: list[int]) -> list[Array]:
        # Every prompt begins with <s>, which is 5; sum is 1, poem 2, of 3, two 4.
        inputs = [values.astype(np.float64) for values in model.layer_inputs([5, *ids])]
        return [values.mean(axis=0) if "avg" in mode else values[-1] for values in inputs]

    sums = [(one + other) / 2 for one, other in zip(states([1, 3, 4]), states([2]), strict=True)]
    differences = [one - other for one, other in zip(states([4]), states([1]), strict=True)]
    for layer in range(LAYERS):
        expected = [vector / np.linalg.norm(vector) for vector in (sums[layer], differences[layer])]
        gate = written[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
        np.testing.assert_allclose(gate, expected, rtol=1e-5, atol=1e-7)


def test_hidden_states_without_a_tokenizer(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "a")):
        write_model(tmp_path / name, tensors(seed), config("llama"))
    prompted = "{source_model: a, positive_prompts: [x]}, {source_model: a, positive_prompts: [y]}"
    with pytest.raises(UsageError, match=r"base: has no tokenizer.json, which the gate mode 'hidden' needs"):
        plan_of(f"{{base_model: base, experts: [{prompted}]}}", tmp_path)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            ", architecture: phimoe",
            "unknown 'architecture' 'phimoe' of a mixture; expected one of mixtral, qwen2_moe",
        ),
        (", architecture: qwen", "no layout fits llama models and no shared experts"),
        (
            ", shared_experts: [{source_model: c}], architecture: Mixtral",
            "no layout fits llama models and 1 shared experts; expected another recipe: mixtral takes llama, mistral "
            "models and no shared experts",
        ),
        (
            ", shared_experts: [{source_model: c}, {source_model: a}]",
            "no layout fits llama models and 2 shared experts",
        ),
    ],
)
def test_layouts_that_do_not_fit(more: str, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        plan_of(random_recipe("a", "b", more=more))
    assert caught.value.problem.startswith(problem)


def _other_type(_: dict[str, Array], settings: dict[str, Any]) -> None:
    settings.update(config("mistral"))


def _fewer_layers(made: dict[str, Array], settings: dict[str, Any]) -> None:
    settings["num_hidden_layers"] = 1
    for name in [name for name in made if "layers.1." in name]:
        del made[name]


def _wider(made: dict[str, Array], settings: dict[str, Any]) -> None:
    settings["intermediate_size"] = 16
    for name in [name for name in made if ".mlp." in name]:
        shape = [16 if size == INNER else size for size in made[name].shape]
        made[name] = np.zeros(shape, np.float32)


def _missing(made: dict[str, Array], _: dict[str, Any]) -> None:
    del made["model.layers.1.mlp.up_proj.weight"]


def _with_bias(made: dict[str, Array], settings: dict[str, Any]) -> None:
    settings["mlp_bias"] = True
    for layer in range(LAYERS):
        for matrix, rows in (("gate_proj", INNER), ("up_proj", INNER), ("down_proj", HIDDEN)):
            made[f"model.layers.{layer}.mlp.{matrix}.bias"] = np.zeros(rows, np.float32)


def _of_truth_values(made: dict[str, Array], _: dict[str, Any]) -> None:
    made["model.layers.0.mlp.up_proj.weight"] = np.zeros((INNER, HIDDEN), np.bool_)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_other_type, "the architecture of b is 'mistral', but that of a is 'llama'"),
        (_fewer_layers, "b has 1 layers, but a has 2"),
        (_wider, "tensor 'model.layers.0.mlp.gate_proj.weight' has shape (16, 8) in b, but (12, 8) in a"),
        (_missing, "model.layers.1.mlp.up_proj.weight"),
        (_with_bias, "tensor 'model.layers.0.mlp.gate_proj.bias' of b has no place in a mixtral model"),
        (_of_truth_values, "tensor 'model.layers.0.mlp.up_proj.weight' of b is bool; expected a floating type"),
    ],
)
def test_experts_that_do_not_fit(tmp_path: Path, spoil: Any, problem: str) -> None:
    write_model(tmp_path / "a", tensors(0), config("llama"))
    made, settings = tensors(1), config("llama")
    spoil(made, settings)
    write_model(tmp_path / "b", made, settings)
    with pytest.raises(UsageError) as caught:
        plan_of(random_recipe("a", "b", base="a"), tmp_path)
    assert problem in str(caught.value)


def test_attention_biases_of_the_base_are_not_lost(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        made = tensors(seed, has_biases=True)
        for layer in range(LAYERS):
            made[f"model.layers.{layer}.self_attn.o_proj.bias"] = np.ones(HIDDEN, np.float32)
        write_model(tmp_path / name, made, config("llama", attention_bias=True))
    with pytest.raises(UsageError, match=r"'model\.layers\.0\.self_attn\.q_proj\.bias' of a has no place in a mixtral"):
        plan_of(random_recipe("a", "b", base="a"), tmp_path)
    with pytest.raises(UsageError, match=r"'model\.layers\.0\.self_attn\.o_proj\.bias' of a has no place in a qwen2"):
        plan_of(random_recipe("a", "b", base="a", more=", shared_experts: [{source_model: b}]"), tmp_path)


def test_prompts_need_a_tokenizer() -> None:
    prompted = "{source_model: a, positive_prompts: [x]}, {source_model: b, positive_prompts: [y]}"
    with pytest.raises(LbrxError, match=r"base: has no tokenizer\.json, which the gate mode 'cheap_embed' needs"):
        plan_of(f"{{base_model: base, gate_mode: cheap_embed, experts: [{prompted}]}}")


def qwen3_tensors(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(50 + seed)
    made = tensors(seed)
    for layer in range(LAYERS):
        for part in "qk":
            made[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = random.random(2).astype(np.float32)
    return made


def test_a_qwen3_moe_model(tmp_path: Path) -> None:
    made = {name: qwen3_tensors(seed) for seed, name in enumerate(("base", "a", "b"))}
    dense = config("qwen2", head_dim=2) | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    for name, values in made.items():
        write_model(tmp_path / name, values, dense)
    written, settings = write(random_recipe("a", "b"), tmp_path / "out", tmp_path)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for number, name in enumerate("ab"):
            expected = made[name][f"{prefix}mlp.up_proj.weight"]
            np.testing.assert_array_equal(written[f"{prefix}mlp.experts.{number}.up_proj.weight"], expected)
        norm = f"{prefix}self_attn.q_norm.weight"
        np.testing.assert_array_equal(written[norm], made["base"][norm])
        assert written[f"{prefix}mlp.gate.weight"].shape == (2, HIDDEN)
    expected_keys = {"num_experts": 2, "moe_intermediate_size": INNER, "norm_topk_prob": True, "head_dim": 2}
    expected_keys |= {"use_sliding_window": False, "mlp_only_layers": []}
    assert settings.items() >= {"model_type": "qwen3_moe", "decoder_sparse_step": 1, **expected_keys}.items()
    assert lbrx.open_model(tmp_path / "out").logits([1, 2]).shape == (2, settings["vocab_size"])


@pytest.mark.parametrize("has_shared", [False, True])
def test_a_deepseek_model(tmp_path: Path, has_shared: bool) -> None:
    made = {name: tensors(seed) for seed, name in enumerate(("base", "a", "b", "c"))}
    for name, values in made.items():
        write_model(tmp_path / name, values, config("llama"))
    shared = ", shared_experts: [{source_model: c, residual_scale: 0.5}]" if has_shared else ""
    written, settings = write(
        random_recipe("a", "b", more=f"{shared}, architecture: deepseek"), tmp_path / "out", tmp_path
    )
    names = {f"model.layers.{layer}.mlp.shared_experts.down_proj.weight" for layer in range(LAYERS)}
    assert (names <= written.keys()) is has_shared
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.mlp."
        expected = made["b"][f"{prefix}gate_proj.weight"]
        np.testing.assert_array_equal(written[f"{prefix}experts.1.gate_proj.weight"], expected)
        if has_shared:
            expected = made["c"][f"{prefix}down_proj.weight"] * np.float32(0.5)
            np.testing.assert_array_equal(written[f"{prefix}shared_experts.down_proj.weight"], expected)
    assert settings["architectures"] == ["DeepseekForCausalLM"]
    every_layer = {"first_k_dense_replace": 0, "moe_layer_freq": 1, "moe_intermediate_size": INNER}
    assert settings.items() >= {"scoring_func": "softmax", "norm_topk_prob": True, **every_layer}.items()
    assert (settings["n_routed_experts"], settings["n_shared_experts"]) == (2, 1 if has_shared else None)


def hidden_recipe(first: str) -> str:
    experts = f"{{source_model: a, positive_prompts: ['{first}']}}, {{source_model: a, positive_prompts: [poem]}}"
    return f"{{base_model: a, experts: [{experts}]}}"


def test_a_prompt_may_fill_the_context(tmp_path: Path) -> None:
    write_model(tmp_path / "a", tensors(0), config("llama", max_position_embeddings=4), has_tokenizer=True)
    assert plan_of(hidden_recipe("sum of two"), tmp_path).tensors  # and <s>
    with pytest.raises(UsageError, match="a prompt of an expert has 5 tokens; expected at most 4, the context"):
        plan_of(hidden_recipe("sum of two two"), tmp_path)


def test_a_tokenizer_that_adds_tokens_adds_none_to_prompts(tmp_path: Path) -> None:
    write_model(tmp_path / "a", tensors(0), config("llama"), has_tokenizer=True)
    name = "model.layers.0.block_sparse_moe.gate.weight"
    expected = plan_of(hidden_recipe("sum of two"), tmp_path).tensors[name].numpy()
    tokenizer = Tokenizer.from_file(str(tmp_path / "a/tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 5)])
    tokenizer.save(str(tmp_path / "a/tokenizer.json"))
    np.testing.assert_array_equal(plan_of(hidden_recipe("sum of two"), tmp_path).tensors[name].numpy(), expected)
