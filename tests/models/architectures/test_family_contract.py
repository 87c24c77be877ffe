"""What every family of the registry promises. ``test_golden_families.py`` compares the families with other programs.

Some checks make a tiny random model from the record, with a config that omits most keys.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures import Family, find_family
from lbrx.models.architectures.table import all_families, family_of_gguf, load_family
from lbrx.models.inference import open_model
from lbrx.registry import FAMILIES
from support.tiny_architectures import TINY

Arrays = dict[str, npt.NDArray[np.float32]]

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "query_pre_attn_scalar": 8,
    "torch_dtype": "float32",
}
EXPERTS = {
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
}
NEXTN = ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")
every_family = pytest.mark.parametrize("family", list(all_families()), ids=lambda family: family.name)
every_known_convertible = pytest.mark.parametrize(
    "family",
    [family for family in all_families() if family.gguf is not None and family.name in TINY],
    ids=lambda family: family.name,
)
every_known_decoder = pytest.mark.parametrize(
    "family",
    [family for family in all_families() if family.decoder is not None and family.name in TINY],
    ids=lambda family: family.name,
)
every_convertible = pytest.mark.parametrize(
    "family", [family for family in all_families() if family.gguf is not None], ids=lambda family: family.name
)


def tiny_config(family: Family) -> dict[str, Any]:
    experts = {} if family.expert_count is None else {family.expert_count: 4, **EXPERTS}
    return {"architectures": [family.class_names[0]], "model_type": family.model_type, **SMALL, **experts}


def tiny_arrays(family: Family, seed: int = 0) -> Arrays:
    """Random weights of a size at which every tensor matters."""
    random = np.random.default_rng(seed)
    shapes = family.expected_shapes(tiny_config(family))
    return {
        name: (random.standard_normal(shape) * (0.3 if len(shape) == 1 else 2 / np.sqrt(shape[-1]))).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_tiny(folder: Path, family: Family, arrays: Arrays) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(family)))
    lbrx.save(folder / "model.safetensors", {name: lbrx.tensor(array) for name, array in arrays.items()})
    return folder


def write_gguf(folder: Path) -> Path:
    contents = hf_to_gguf(read_contents(folder), tokenizer_metadata={"tokenizer.ggml.model": "none"})
    path = folder.with_suffix(".gguf")
    lbrx.save(path, {each.name: each.make() for each in contents.tensors}, contents.metadata)
    return path


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_by_its_names(name: str) -> None:
    family = load_family(name)
    assert family.name == name
    if any(name in other.variants for other in all_families()):
        return  # found by a condition on the config, which golden files test
    for class_name in family.class_names:
        assert find_family({"architectures": [class_name]}) is family
    for model_type in family.model_types:
        assert find_family({"model_type": model_type}) is family


@every_family
def test_names_are_unique(family: Family) -> None:
    names = [weight.name for weight in family.weights]
    stored = [weight.gguf for weight in family.weights if weight.gguf is not None and weight.needed_when is None]
    assert len(set(names)) == len(names)
    assert len(set(stored)) == len(stored)


@every_family
def test_templates_have_the_numbers_that_they_need(family: Family) -> None:
    for weight in family.weights:
        is_layer = weight in (*family.layer, *family.prediction)
        assert ("{layer}" in weight.name) == is_layer
        assert ("{item}" in weight.name) == (weight.items is not None)
        assert weight.gguf is None or ("{layer}" in weight.gguf) == is_layer
        assert weight.tied_to is None or weight.tied_to in [each.name for each in family.weights]


@every_family
def test_defaults_are_enough_for_every_shape_and_condition(family: Family) -> None:
    config = family.config({})
    for weight in family.weights:
        if weight.shape is not None and family.needs_by_default(weight):
            assert all(size > 0 for size in config.shape(weight.shape, layer=0))
        if weight.needed_when is not None:
            assert config.evaluate(weight.needed_when, layer=0) in (True, False)
    for rule in family.layer_rules:
        config.evaluate(rule.value, layer=1)
    assert all(size > 0 for shape in family.expected_shapes(tiny_config(family)).values() for size in shape)


@every_convertible
def test_llama_cpp_knows_the_names(family: Family) -> None:
    assert family.gguf is not None
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.gguf.name)
    known = {gguf.TENSOR_NAMES[tensor].replace("{bid}", "{layer}") for tensor in gguf.MODEL_TENSORS[architecture]}
    known |= {f"blk.{{layer}}.nextn.{part}" for part in NEXTN if family.prediction}
    known |= {"output"} if family.gguf.never_has_output else set()
    for weight in family.weights:
        if weight.gguf is not None and weight.in_gguf:
            name = re.sub(r"blk\.(0|{item})\.", "blk.{layer}.", weight.gguf)
            assert name in known or name.rpartition(".")[0] in known


# -- models of the families in tiny_architectures.py -------------------------------------------------------------------


@every_known_convertible
def test_converting_both_ways_gives_the_same_bytes(family: Family, tmp_path: Path) -> None:
    arrays = tiny_arrays(family)
    path = write_gguf(write_tiny(tmp_path / "hf", family, arrays))
    contents = read_contents(path)
    stored = family_of_gguf(contents.metadata)
    assert stored is not None
    assert stored is family or family.name == "mistral"  # which is llama in GGUF
    back = gguf_to_hf(contents)
    assert back.config == tiny_config(family)
    assert set(back.by_name) == set(arrays)
    for name, array in arrays.items():
        assert back.by_name[name].make().numpy().tobytes() == array.tobytes(), name


@every_known_decoder
def test_every_tensor_changes_the_logits(family: Family, tmp_path: Path) -> None:
    arrays = tiny_arrays(family)
    expected = open_model(write_tiny(tmp_path / "hf", family, arrays)).logits(IDS)
    for number, name in enumerate(arrays):
        if ".layers.1." not in name:
            changed = {**arrays, name: arrays[name] + np.float32(0.5) * np.roll(arrays[name], 1)}
            folder = write_tiny(tmp_path / str(number), family, changed)
            assert not np.array_equal(open_model(folder).logits(IDS), expected), name
