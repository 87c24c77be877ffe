"""What a merge makes of its models: names, layers, configs, types, and nothing lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lbrx.files.output.plan import output_bytes
from lbrx.jobs.merge.merge import merge, read_and_plan
from support.tiny import BF16, LINEAR, llama_shapes, make_llama, random_tensors, read_json, read_model, write_model

STACK = """
merge_method: passthrough
slices:
  - sources: [{model: a, layer_range: [0, 2]}]
  - sources: [{model: b, layer_range: [1, 2]}]
  - sources: [{model: a, layer_range: [1, 2]}]
"""


def run(recipe: str) -> dict[str, np.ndarray]:
    merge(recipe, "out", sync=False, overwrite=True)
    return read_model(Path("out"))


def test_unknown_tensors_of_inputs_are_merged_too(folder: Path) -> None:
    extra = {"model.layers.1.adapter.scale": np.ones(4, np.float32), "model.rope_note": np.ones(3, np.float32)}
    make_llama(folder / "a", 1, extra=extra)
    make_llama(folder / "b", 2, extra={name: values * 5 for name, values in extra.items()})
    found = run(LINEAR)
    assert set(found) == set(llama_shapes(2, 16)) | set(extra)
    np.testing.assert_allclose(found["model.layers.1.adapter.scale"], 2.0)
    np.testing.assert_allclose(found["model.rope_note"], 2.0)


def test_stacked_layers_are_renumbered_and_carry_their_unknown_tensors(folder: Path) -> None:
    a = make_llama(folder / "a", 1)
    b = make_llama(folder / "b", 2, extra={"model.layers.1.adapter": np.full(2, 7, np.float32)})
    found = run(STACK)
    assert read_json(folder / "out/config.json")["num_hidden_layers"] == 4
    for layer, (source, own) in enumerate(((a, 0), (a, 1), (b, 1), (a, 1))):
        name = "mlp.up_proj.weight"
        np.testing.assert_array_equal(found[f"model.layers.{layer}.{name}"], source[f"model.layers.{own}.{name}"])
    assert [name for name in found if "adapter" in name] == ["model.layers.2.adapter"]
    np.testing.assert_array_equal(found["lm_head.weight"], a["lm_head.weight"])


def test_lists_with_a_value_per_layer_follow_the_layers(folder: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        types = [f"{name}0", f"{name}1"]
        make_llama(folder / name, seed, model_type="unheard-of", architectures=None, layer_types=types)
    run(STACK)
    assert read_json(folder / "out/config.json")["layer_types"] == ["a0", "a1", "b1", "a1"]


def test_a_tied_model_supplies_its_embedding_as_the_head_of_an_untied_one(folder: Path) -> None:
    a = make_llama(folder / "a", 1)
    b = make_llama(folder / "b", 2, tied=True)
    found = run(LINEAR)
    expected = 0.75 * a["lm_head.weight"] + 0.25 * b["model.embed_tokens.weight"]
    np.testing.assert_allclose(found["lm_head.weight"], expected, rtol=1e-6)
    assert read_json(folder / "out/config.json")["tie_word_embeddings"] is False


def test_a_tied_donor_becomes_untied_by_another_models_head(folder: Path) -> None:
    make_llama(folder / "a", 1, tied=True)
    make_llama(folder / "b", 2)
    assert "lm_head.weight" in run(LINEAR)
    assert read_json(folder / "out/config.json")["tie_word_embeddings"] is False


def test_tied_models_stay_tied_and_get_no_head(folder: Path) -> None:
    make_llama(folder / "a", 1, tied=True)
    make_llama(folder / "b", 2, tied=True)
    assert "lm_head.weight" not in run(LINEAR)
    assert read_json(folder / "out/config.json")["tie_word_embeddings"] is True


def test_optional_biases_are_merged_if_the_models_have_them(folder: Path) -> None:
    names = [f"model.layers.{layer}.self_attn.{name}_proj.bias" for layer in range(2) for name in "qkvo"]
    bias = {name: (4,) if name[-11] in "kv" else (8,) for name in names}
    a, b = random_tensors(bias, 3), random_tensors(bias, 4)
    make_llama(folder / "a", 1, extra=a, attention_bias=True)
    make_llama(folder / "b", 2, extra=b, attention_bias=True)
    found = run(LINEAR)
    for name in bias:
        np.testing.assert_allclose(found[name], 0.75 * a[name] + 0.25 * b[name], rtol=1e-6, err_msg=name)


def test_automatic_mode_merges_any_checkpoints_with_equal_names(folder: Path) -> None:
    shapes = {"enc.0.w": (2, 3), "enc.1.w": (2, 3), "head.weight": (4,), "scalar": ()}
    a, b = random_tensors(shapes, 1), random_tensors(shapes, 2)
    write_model(folder / "a", a, None)
    write_model(folder / "b", b, {"model_type": "unheard-of"})
    found = run(LINEAR)
    for name in shapes:
        np.testing.assert_allclose(found[name], 0.75 * a[name] + 0.25 * b[name], rtol=1e-6, err_msg=name)
    assert not (folder / "out/config.json").exists()


def test_automatic_mode_stacks_layers_of_unknown_familys(folder: Path) -> None:
    shapes = {"tok.weight": (4, 2), "blocks.0.w": (3,), "blocks.1.w": (3,), "head.weight": (4, 2)}
    a, b = random_tensors(shapes, 1), random_tensors(shapes, 2)
    write_model(folder / "a", a, {"model_type": "unheard-of", "n_layer": 2})
    write_model(folder / "b", b, {"model_type": "unheard-of", "n_layer": 2})
    found = run(STACK)
    np.testing.assert_array_equal(found["blocks.2.w"], b["blocks.1.w"])
    np.testing.assert_array_equal(found["blocks.3.w"], a["blocks.1.w"])
    assert read_json(folder / "out/config.json")["n_layer"] == 4


def test_checkpoints_with_other_prefixes_are_merged_under_the_donors_names(folder: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 2, "vocab_size": 8, "n_positions": 6}
    shapes = {
        "wte.weight": (8, 4),
        "wpe.weight": (6, 4),
        **{f"h.0.{name}.weight": (4,) for name in ("ln_1", "ln_2")},
        **{f"h.0.{name}.bias": (4,) for name in ("ln_1", "ln_2", "attn.c_proj", "mlp.c_proj")},
        "h.0.attn.c_attn.weight": (4, 12),
        "h.0.attn.c_attn.bias": (12,),
        "h.0.attn.c_proj.weight": (4, 4),
        "h.0.mlp.c_fc.weight": (4, 16),
        "h.0.mlp.c_fc.bias": (16,),
        "h.0.mlp.c_proj.weight": (16, 4),
        "ln_f.weight": (4,),
        "ln_f.bias": (4,),
    }
    a, b = random_tensors(shapes, 1), random_tensors(shapes, 2)
    write_model(folder / "a", {f"transformer.{name}": values for name, values in a.items()}, config)
    write_model(folder / "b", b, config)
    found = run(LINEAR)
    assert set(found) == {f"transformer.{name}" for name in shapes}
    np.testing.assert_allclose(found["transformer.ln_f.bias"], 0.75 * a["ln_f.bias"] + 0.25 * b["ln_f.bias"], rtol=1e-6)


def test_buffers_and_whole_numbers_are_copied_from_the_base(folder: Path) -> None:
    for number, name in enumerate("ab"):
        ids = np.array([number, 5], np.int64)
        make_llama(folder / name, number, extra={"model.position_ids": ids})
    recipe = """
merge_method: task_arithmetic
base_model: b
models: [{model: a, parameters: {weight: 1}}]
"""
    assert run(recipe)["model.position_ids"].tolist() == [1, 5]
    (warning,) = read_and_plan(recipe, "elsewhere").warnings
    assert warning == (
        "1 tensors of whole numbers are copied and not merged, such as 'model.position_ids' (i64) from b"
    )


@pytest.mark.parametrize(
    ("keys", "expected"),
    [("", np.float32), ("dtype: bfloat16", BF16), ("{dtype: float32, out_dtype: bfloat16}", BF16)],
)
def test_the_type_of_the_output(folder: Path, keys: str, expected: type) -> None:
    make_llama(folder / "a", 1, dtype=np.float16)
    make_llama(folder / "b", 2, dtype=np.float32)
    lines = keys.strip("{}").replace(", ", "\n")
    found = run(f"{LINEAR}\n{lines}\n")
    assert {values.dtype for values in found.values()} == {np.dtype(expected)}
    if keys:
        assert read_json(folder / "out/config.json")["torch_dtype"] == "bfloat16"


def test_jobs_follow_the_files_of_the_donor(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    plan = read_and_plan(LINEAR, "out")
    assert [job.name for job in plan.jobs] == list(plan.models[0].tensors)
    assert output_bytes(plan) == sum(info.nbytes for info in plan.models[0].infos.values())


def test_stages_compose_without_files_and_give_what_files_between_them_would(folder: Path) -> None:
    for number, name in enumerate("abc"):
        make_llama(folder / name, number)
    first = LINEAR + "dtype: bfloat16\n"
    second = "merge_method: slerp\nbase_model: c\nparameters: {t: 0.3}\nmodels: [{model: first}]\n"
    merge(f"name: first{first}---\n{second}", "composed", sync=False)
    merge(first, "first", sync=False)
    merge(second, "stepwise", sync=False)
    composed, stepwise = read_model(folder / "composed"), read_model(folder / "stepwise")
    assert set(composed) == set(stepwise)
    for name, values in stepwise.items():
        np.testing.assert_array_equal(composed[name], values, err_msg=name)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "a",
        "b",
        "c",
        "composed",
        "first",
        "stepwise",
    ]


def test_a_stage_that_is_not_used_is_told(folder: Path) -> None:
    make_llama(folder / "a", 1)
    one = "merge_method: passthrough\nmodels: [{model: a}]\n"
    plan = read_and_plan(f"name: lost\n{one}---\n{one}", "out")
    assert plan.warnings == ("<recipe>:1: stage 'lost' is used by no other and is not computed",)


def test_tensors_of_a_model_in_the_middle_are_not_lost_without_a_word(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2, extra={"extra.bias": np.ones(2, np.float32)})
    plan = read_and_plan(STACK, "out")
    assert plan.warnings == ("1 tensors of b are in no slice and not in the output, such as 'extra.bias'",)


def test_modules_of_a_multimodal_model(folder: Path) -> None:
    shapes = llama_shapes(1, 16)
    vision = {f"vision_tower.layers.{layer}.w": (3,) for layer in range(2)}
    names = {f"language_model.{name}": shape for name, shape in shapes.items()} | vision
    a, b = random_tensors(names, 1), random_tensors(names, 2)
    for path, tensors in (("a", a), ("b", b)):
        write_model(folder / path, tensors, {"model_type": "unheard-of"})
    found = run(
        """
merge_method: linear
modules:
  default: {models: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]}
  vision_tower: {models: [{model: b, parameters: {weight: 1}}]}
"""
    )
    name = "language_model.model.layers.0.mlp.up_proj.weight"
    np.testing.assert_allclose(found[name], (a[name] + b[name]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(found["vision_tower.layers.1.w"], b["vision_tower.layers.1.w"])


def test_an_adapter_is_applied_while_its_model_is_merged(folder: Path) -> None:
    a, b = make_llama(folder / "a", 1), make_llama(folder / "b", 2)
    module = "model.layers.1.mlp.up_proj"
    factors = random_tensors({"A": (2, 8), "B": (12, 2)}, 3)
    (folder / "lora").mkdir()
    (folder / "lora/adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 6}')
    named = {f"base_model.model.{module}.lora_{part}.weight": values for part, values in factors.items()}
    save_file(named, folder / "lora/adapter_model.safetensors")
    found = run(LINEAR.replace("b,", "b+lora,"))
    patched = b[f"{module}.weight"] + 3 * factors["B"] @ factors["A"]
    expected = 0.75 * a[f"{module}.weight"] + 0.25 * patched
    np.testing.assert_allclose(found[f"{module}.weight"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found["model.norm.weight"], 0.75 * a["model.norm.weight"] + 0.25 * b["model.norm.weight"]
    )


def test_files_of_tokenizer_and_generation_are_copied(folder: Path) -> None:
    for name in "ab":
        make_llama(folder / name, 1)
        (folder / name / "tokenizer.json").write_text(f'{{"of": "{name}"}}')
        (folder / name / "generation_config.json").write_text(f'{{"of": "{name}"}}')
    run(LINEAR)
    assert read_json(folder / "out/tokenizer.json") == {"of": "a"}
    assert read_json(folder / "out/generation_config.json") == {"of": "a"}
    run(LINEAR + "chat_template: '{{ messages }} and more'\n")
    assert (folder / "out/chat_template.jinja").read_text() == "{{ messages }} and more"


def test_the_card_carries_the_recipe(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    run(LINEAR)
    card = (folder / "out/README.md").read_text()
    assert f"```yaml{LINEAR}```\n" in card
    assert "base_model" not in card  # both are local


@pytest.mark.parametrize("name", ["llama", "LlamaForCausalLM"])
def test_an_architecture_is_named_by_its_type_or_its_class(folder: Path, name: str) -> None:
    make_llama(folder / "a", 1, architectures=["Unknown"], model_type="unknown")
    recipe = f"merge_method: passthrough\nmodels: [{{model: {{model: a, override_architecture: {name}}}}}]\n"
    merge(recipe, "out")
    assert read_model(folder / "out").keys() == read_model(folder / "a").keys()
