"""Recipes as people publish them, with tiny models through mergekit and lbrx.

The recipes follow the examples and documentation of mergekit, model cards and issues; models are replaced by small
ones. ``32/base`` has 32 layers; other names beside it are fine-tunes of it. Each recipe is compared in f32, where both
programs compute alike. In the type that it names, lbrx rounds the same result once; mergekit also rounds in between.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.options import MergeOptions
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import lbrx
from support.transplant_models import FIRST_TEXT, SECOND_TEXT, tokenizer_of

Array = npt.NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
HIDDEN, INNER, ROWS = 16, 24, 300
_MODEL = re.compile(r"\b\d+/[\w-]+")
_ADAPTER = re.compile(r"\+(\w+)")


class Known(NamedTuple):
    """A recipe, and how far the programs may be apart: the share of elements that may differ, with the reason."""

    text: str
    different: float = 0.0
    reason: str = ""
    bound: float = 2e-6  # of the largest value of a tensor: elements that are closer are equal


TIES = "elements at the limit of the density are chosen in another order"
RECIPES: dict[str, str | Known] = {
    "frankenmerge of two models": """
        merge_method: passthrough
        dtype: float16
        slices:
          - sources: [{model: 40/base, layer_range: [0, 24]}]
          - sources: [{model: 40/chat, layer_range: [20, 40]}]
    """,
    "depth up-scaling": """
        merge_method: passthrough
        dtype: bfloat16
        slices:
          - sources: [{model: 32/base, layer_range: [0, 24]}]
          - sources: [{model: 32/base, layer_range: [8, 32]}]
    """,
    "interleaved self-merge": """
        dtype: float16
        merge_method: passthrough
        slices:
          - sources: [{layer_range: [0, 8], model: 32/chat}]
          - sources: [{layer_range: [4, 12], model: 32/chat}]
          - sources: [{layer_range: [8, 16], model: 32/chat}]
          - sources: [{layer_range: [12, 20], model: 32/chat}]
          - sources: [{layer_range: [16, 24], model: 32/chat}]
          - sources: [{layer_range: [20, 28], model: 32/chat}]
          - sources: [{layer_range: [24, 32], model: 32/chat}]
    """,
    "alternating layers of two large models": """
        merge_method: passthrough
        dtype: float16
        slices:
          - sources: [{model: 80/base, layer_range: [0, 16]}]
          - sources: [{model: 80/chat, layer_range: [8, 24]}]
          - sources: [{model: 80/base, layer_range: [17, 32]}]
          - sources: [{model: 80/chat, layer_range: [25, 40]}]
          - sources: [{model: 80/base, layer_range: [33, 48]}]
          - sources: [{model: 80/chat, layer_range: [41, 56]}]
          - sources: [{model: 80/base, layer_range: [49, 64]}]
          - sources: [{model: 80/chat, layer_range: [57, 72]}]
          - sources: [{model: 80/base, layer_range: [65, 80]}]
    """,
    "block expansion with silent layers": """
        merge_method: passthrough
        dtype: bfloat16
        slices:
          - sources: [{model: 8/base, layer_range: [0, 4]}]
          - sources:
              - model: 8/base
                layer_range: [3, 4]
                parameters:
                  scale:
                    - {filter: o_proj, value: 0.0}
                    - {filter: down_proj, value: 0.0}
                    - {value: 1.0}
          - sources: [{model: 8/base, layer_range: [4, 8]}]
    """,
    "attenuated repeated layers": """
        merge_method: passthrough
        dtype: float16
        attenuated: &attenuated
          parameters:
            scale:
              - {filter: q_proj, value: 0.7071067812}
              - {filter: k_proj, value: 0.7071067812}
              - {value: 1.0}
        slices:
          - sources: [{model: 8/base, layer_range: [0, 4]}]
          - sources: [{model: 8/base, layer_range: [2, 6], <<: *attenuated}]
          - sources: [{model: 8/base, layer_range: [4, 8]}]
    """,
    "pruned layers": """
        merge_method: passthrough
        dtype: bfloat16
        slices:
          - sources: [{model: 32/base, layer_range: [0, 21]}]
          - sources: [{model: 32/base, layer_range: [29, 32]}]
    """,
    "an adapter merged": Known(
        """
        merge_method: passthrough
        models: [{model: 8/base+adapter}]
        dtype: bfloat16
    """,
        reason="mergekit rounds the sum to the type of the base",
        bound=2**-8,
    ),
    "gradient slerp of attention and mlp": """
        slices:
          - sources:
              - {model: 32/chat, layer_range: [0, 32]}
              - {model: 32/math, layer_range: [0, 32]}
        merge_method: slerp
        base_model: 32/chat
        parameters:
          t:
            - {filter: self_attn, value: [0, 0.5, 0.3, 0.7, 1]}
            - {filter: mlp, value: [1, 0.5, 0.7, 0.3, 0]}
            - value: 0.5
        dtype: bfloat16
    """,
    "slerp of whole models": """
        models: [{model: 8/base}, {model: 8/chat}]
        merge_method: slerp
        base_model: 8/base
        parameters: {t: [0, 0.5, 1, 0.5, 0]}
        dtype: float16
    """,
    "slerp with a setting for the embedding": """
        models: [{model: 8/base}, {model: 8/chat}]
        merge_method: slerp
        base_model: 8/base
        parameters: {t: 0.6, embed_slerp: true}
        dtype: bfloat16
    """,
    "slerp with layer norms of the base": """
        slices:
          - sources: [{model: 8/chat, layer_range: [0, 8]}, {model: 8/math, layer_range: [0, 8]}]
        merge_method: slerp
        base_model: 8/chat
        parameters:
          t:
            - {filter: lm_head, value: [0.55]}
            - {filter: embed_tokens, value: [0.7]}
            - {filter: layernorm, value: 0}
            - {filter: modelnorm, value: [0]}
            - value: 0.4
        dtype: float32
    """,
    "weighted average": """
        models:
          - {model: 8/base, parameters: {weight: 1.0}}
          - {model: 8/chat, parameters: {weight: 0.3}}
          - {model: 8/math, parameters: {weight: 0.5}}
        merge_method: linear
        dtype: float16
    """,
    "average that is not normalized": """
        models:
          - {model: 8/chat, parameters: {weight: 0.6}}
          - {model: 8/math, parameters: {weight: 0.6}}
        merge_method: linear
        parameters: {normalize: false}
        dtype: bfloat16
    """,
    "average with weights by layer": """
        models:
          - {model: 8/chat, parameters: {weight: [1, 0.2, 0.2, 1]}}
          - {model: 8/math, parameters: {weight: [{filter: mlp, value: [0, 1]}, {value: 0.4}]}}
        merge_method: linear
        dtype: float32
    """,
    "layers of several models with a silent one for the head": """
        merge_method: linear
        parameters: {weight: 1.0}
        slices:
          - sources:
              - {model: 8/base, layer_range: [0, 1]}
              - {model: 8/chat, layer_range: [0, 1], parameters: {weight: 0}}
          - sources: [{model: 8/chat, layer_range: [1, 6]}]
          - sources: [{model: 8/math, layer_range: [4, 7]}]
          - sources:
              - {model: 8/chat, layer_range: [7, 8]}
              - {model: 8/base, layer_range: [7, 8], parameters: {weight: 0}}
        dtype: float16
    """,
    "ties with gradients of density and weight": Known(
        """
        models:
          - {model: 8/chat, parameters: {density: [1, 0.7, 0.1], weight: 1.0}}
          - {model: 8/math, parameters: {density: 0.5, weight: [0, 0.3, 0.7, 1]}}
          - model: 8/code
            parameters: {density: 0.33, weight: [{filter: mlp, value: 0.5}, {value: 0}]}
        merge_method: ties
        base_model: 8/base
        parameters: {normalize: true, int8_mask: true}
        dtype: float16
    """,
        0.01,
        TIES,
    ),
    "ties of two models": Known(
        """
        models:
          - model: 8/base
          - {model: 8/chat, parameters: {density: 0.5, weight: 0.5}}
          - {model: 8/math, parameters: {density: 0.5, weight: 0.3}}
        merge_method: ties
        base_model: 8/base
        parameters: {normalize: true}
        dtype: float16
    """,
        0.01,
        TIES,
    ),
    "ties without pruning": """
        models:
          - {model: 8/chat, parameters: {density: 1, weight: 1}}
          - {model: 8/math, parameters: {density: 1, weight: 1}}
        merge_method: ties
        base_model: 8/base
        parameters: {normalize: true, lambda: 0.8}
        dtype: bfloat16
    """,
    "chat vector": """
        merge_method: task_arithmetic
        base_model: 8/base
        models:
          - {model: 8/chat, parameters: {weight: 1.0}}
          - {model: 8/math, parameters: {weight: 0.8}}
        dtype: bfloat16
    """,
    "negative task vector": """
        merge_method: task_arithmetic
        base_model: 8/chat
        models: [{model: 8/math, parameters: {weight: -0.25}}]
        parameters: {lambda: 0.9, normalize: false}
        dtype: float32
    """,
    "dare ties with all elements": """
        models:
          - model: 8/base
          - {model: 8/chat, parameters: {density: 1.0, weight: 0.4}}
          - {model: 8/math, parameters: {density: 1.0, weight: 0.4}}
        merge_method: dare_ties
        base_model: 8/base
        parameters: {int8_mask: true}
        dtype: bfloat16
    """,
    "dare linear with all elements": """
        models:
          - {model: 8/chat, parameters: {density: 1.0, weight: 0.6}}
          - {model: 8/math, parameters: {density: 1.0, weight: 0.4}}
        merge_method: dare_linear
        base_model: 8/base
        parameters: {normalize: true}
        dtype: bfloat16
    """,
    "model stock": """
        models: [{model: 8/chat}, {model: 8/math}, {model: 8/code}]
        merge_method: model_stock
        base_model: 8/base
        dtype: bfloat16
    """,
    "model stock by rows": """
        models: [{model: 8/chat}, {model: 8/math}]
        merge_method: model_stock
        base_model: 8/base
        parameters: {filter_wise: true}
        dtype: float32
    """,
    "breadcrumbs": Known(
        """
        models:
          - {model: 8/chat, parameters: {weight: 0.5, density: 0.9, gamma: 0.01}}
          - {model: 8/math, parameters: {weight: 0.5, density: 0.9, gamma: 0.01}}
        merge_method: breadcrumbs
        base_model: 8/base
        dtype: bfloat16
    """,
        0.01,
        TIES,
    ),
    "breadcrumbs with ties": Known(
        """
        models:
          - {model: 8/chat, parameters: {weight: 1, density: 0.6, gamma: 0.02}}
          - {model: 8/math, parameters: {weight: 1, density: 0.6, gamma: 0.02}}
        merge_method: breadcrumbs_ties
        base_model: 8/base
        parameters: {lambda: 1.1}
        dtype: float32
    """,
        0.01,
        TIES,
    ),
    "della with all elements": """
        models:
          - {model: 8/chat, parameters: {weight: 0.5, density: 1.0, epsilon: 0.1}}
          - {model: 8/math, parameters: {weight: 0.5, density: 1.0, epsilon: 0.1}}
        merge_method: della
        base_model: 8/base
        parameters: {lambda: 1.0}
        dtype: bfloat16
    """,
    "nuslerp": """
        models:
          - {model: 8/chat, parameters: {weight: 0.4}}
          - {model: 8/math, parameters: {weight: 0.6}}
        merge_method: nuslerp
        dtype: bfloat16
    """,
    "nuslerp of task vectors": """
        models:
          - {model: 8/chat, parameters: {weight: [0, 1]}}
          - {model: 8/math, parameters: {weight: [1, 0.5]}}
        merge_method: nuslerp
        base_model: 8/base
        parameters: {nuslerp_flatten: false, nuslerp_row_wise: true}
        dtype: float32
    """,
    "multislerp": """
        models:
          - {model: 8/chat, parameters: {weight: 0.3}}
          - {model: 8/math, parameters: {weight: 0.5}}
          - {model: 8/code, parameters: {weight: 0.2}}
        merge_method: multislerp
        dtype: bfloat16
    """,
    "karcher mean": """
        models: [{model: 8/chat}, {model: 8/math}, {model: 8/code}]
        merge_method: karcher
        parameters: {max_iter: 1000}
        dtype: float32
    """,
    "nearswap": """
        slices:
          - sources: [{model: 8/base, layer_range: [0, 8]}, {model: 8/chat, layer_range: [0, 8]}]
        merge_method: nearswap
        base_model: 8/base
        parameters: {t: [0.001, 0.0001]}
        dtype: bfloat16
    """,
    "fusion of important elements": Known(
        """
        models: [{model: 8/base}, {model: 8/chat}]
        merge_method: arcee_fusion
        base_model: 8/base
        dtype: float32
    """,
        0.01,
        "elements at the limit of importance, which is a sum in f32",
    ),
    "sce": Known(
        """
        models: [{model: 8/chat}, {model: 8/math}, {model: 8/code}]
        merge_method: sce
        base_model: 8/base
        parameters: {select_topk: 0.7}
        dtype: bfloat16
    """,
        0.02,
        TIES,
    ),
    "ram": """
        models: [{model: 8/chat}, {model: 8/math}]
        merge_method: ram
        base_model: 8/base
        dtype: float32
    """,
    "union of tokenizers": """
        models:
          - {model: 4/base, parameters: {weight: 0.5}}
          - {model: 4/other, parameters: {weight: 0.5}}
        merge_method: linear
        tokenizer_source: union
        dtype: float32
    """,
    "tokenizer of the base": """
        models:
          - {model: 4/base, parameters: {weight: 0.5}}
          - {model: 4/other, parameters: {weight: 0.5}}
        merge_method: linear
        base_model: 4/base
        tokenizer: {source: base}
        dtype: bfloat16
    """,
    "tokenizer of one of the models with a token from another": """
        models:
          - {model: 4/base, parameters: {weight: 1.0}}
          - {model: 4/other, parameters: {weight: 1.0}}
        merge_method: linear
        base_model: 4/base
        tokenizer:
          source: 4/other
          tokens:
            <|end|>: {source: 4/base, force: true}
        chat_template: chatml
        dtype: float32
    """,
    "a tensor type of its own for the output": """
        models: [{model: 8/base, parameters: {weight: 0.2}}, {model: 8/chat, parameters: {weight: 0.8}}]
        merge_method: linear
        dtype: float32
        out_dtype: bfloat16
    """,
    "numbers as text and modules": """
        merge_method: linear
        modules:
          default:
            slices:
              - sources:
                  - {model: 8/base, layer_range: [0, 8], parameters: {weight: "1"}}
                  - {model: 8/chat, layer_range: [0, 8], parameters: {weight: "0.5"}}
        dtype: float32
    """,
    "a part of the layers of each model": """
        merge_method: slerp
        base_model: 8/base
        slices:
          - sources: [{model: 8/base, layer_range: [0, 4]}, {model: 8/chat, layer_range: [0, 4]}]
            parameters: {t: [0, 1]}
          - sources: [{model: 8/base, layer_range: [4, 8]}, {model: 8/math, layer_range: [4, 8]}]
            parameters: {t: [1, 0]}
        dtype: float32
    """,
}
assert len(RECIPES) >= 40


def known(name: str) -> Known:
    given = RECIPES[name]
    return given if isinstance(given, Known) else Known(given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all models of all recipes; mergekit keeps models open by their names."""
    root = tmp_path_factory.mktemp("models")
    texts = [known(name).text for name in RECIPES]
    for name in sorted({model for text in texts for model in _MODEL.findall(text)}):
        write_model(root / name)
    write_adapter(root / "adapter")
    return root


def write_model(directory: Path) -> None:
    layers, tuning = int(directory.parent.name), directory.name
    tokenizer = tokenizer_of(SECOND_TEXT if tuning == "other" else FIRST_TEXT, 300)
    base, rows = np.random.default_rng(layers), tokenizer.get_vocab_size()
    change = np.random.default_rng([layers, *tuning.encode()])
    tensors = {}
    for name, shape in shapes(layers, rows).items():
        value = base.standard_normal((300, HIDDEN) if shape[0] == rows else shape)[: shape[0]] * 0.1 + ("norm" in name)
        if tuning != "base":
            value = value + 0.02 * change.standard_normal(shape)
        tensors[name] = value.astype(BF16)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": rows,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))


def shapes(layers: int, rows: int) -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, HIDDEN)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for part, size in (("q", HIDDEN), ("k", HIDDEN // 2), ("v", HIDDEN // 2), ("o", HIDDEN)):
            made[f"{prefix}self_attn.{part}_proj.weight"] = (size, HIDDEN)
        made |= {f"{prefix}mlp.{part}_proj.weight": (INNER, HIDDEN) for part in ("gate", "up")}
        made[f"{prefix}mlp.down_proj.weight"] = (HIDDEN, INNER)
        made |= {f"{prefix}{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
    return made | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (rows, HIDDEN)}


def write_adapter(directory: Path) -> None:
    random, factors = np.random.default_rng(9), {}
    for layer in range(8):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        factors[f"{name}A.weight"] = (0.1 * random.standard_normal((2, HIDDEN))).astype(np.float32)
        factors[f"{name}B.weight"] = (0.1 * random.standard_normal((HIDDEN, 2))).astype(np.float32)
    directory.mkdir()
    save_file(factors, directory / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def by_mergekit(text: str, out: Path) -> dict[str, Array]:
    options = MergeOptions(write_model_card=False, lora_merge_cache=str(out.parent / "merged adapters"))
    run_merge(MergeConfiguration.model_validate(yaml.safe_load(text)), str(out), options)
    return read(out)


def read(directory: Path) -> dict[str, Array]:
    with safe_open(directory / "model.safetensors", "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a file is no mapping


def by_tokens(tensors: dict[str, Array], directory: Path) -> dict[str, Array]:
    """The rows of embedding and head in the order of the texts of their tokens."""
    ids = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab(with_added_tokens=True)
    order = [ids[token] for token in sorted(ids)]
    names = ("model.embed_tokens.weight", "lm_head.weight")
    return {name: value[order] if name in names else value for name, value in tensors.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_what_mergekit_gives(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = known(name)
    wide = re.sub(r"(out_)?dtype: \w+", lambda found: "" if found[1] else "dtype: float32", given.text)
    theirs = by_mergekit(wide, tmp_path / "theirs")
    lbrx.merge(wide, tmp_path / "ours")
    ours = read(tmp_path / "ours")
    if "tokenizer" in given.text:
        theirs, ours = by_tokens(theirs, tmp_path / "theirs"), by_tokens(ours, tmp_path / "ours")
    assert ours.keys() == theirs.keys()
    different = elements = 0
    for tensor, expected in theirs.items():
        assert ours[tensor].shape == expected.shape
        wrong = ~(np.abs(ours[tensor] - expected) <= given.bound * np.abs(expected).max() + 1e-9)
        different, elements = different + int(wrong.sum()), elements + wrong.size
    assert different <= given.different * elements, f"{different} of {elements} elements differ"
    configs = [json.loads((tmp_path / program / "config.json").read_text()) for program in ("theirs", "ours")]
    assert configs[0]["num_hidden_layers"] == configs[1]["num_hidden_layers"]
    assert configs[0]["vocab_size"] == configs[1]["vocab_size"]


@pytest.mark.parametrize("name", [name for name in RECIPES if "float16" in known(name).text])
def test_a_result_is_rounded_once(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = known(name).text
    lbrx.merge(
        re.sub(r"(out_)?dtype: \w+", lambda found: "" if found[1] else "dtype: float32", text), tmp_path / "wide"
    )
    lbrx.merge(text, tmp_path / "own")
    narrow = np.float16 if "dtype: float16" in text else BF16
    for tensor, value in read(tmp_path / "wide").items():
        np.testing.assert_array_equal(read_one(tmp_path / "own", tensor), value.astype(narrow), err_msg=tensor)


def read_one(directory: Path, name: str) -> Array:
    return lbrx.open(directory)[name].numpy()
