"""Models and recipes that do not fit together: each is refused before the run, and the message says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import LbrxError
from lbrx.jobs.merge.merge import merge, read_and_plan
from support.tiny import LINEAR, make_llama, random_tensors, write_model

UP = "model.layers.1.mlp.up_proj.weight"
BOTH = "<recipe>: the models cannot be merged: "
STACK = "merge_method: passthrough\nslices: [{sources: [{model: a, layer_range: [0, 3]}]}]\n"


def llamas(a: dict[str, object] | None = None, b: dict[str, object] | None = None) -> Callable[[Path], None]:
    """Two llamas, each with what makes it different."""

    def make(folder: Path) -> None:
        make_llama(folder / "a", 1, **(a or {}))  # type: ignore[arg-type]
        make_llama(folder / "b", 2, **(b or {}))  # type: ignore[arg-type]

    return make


def with_tensor(name: str, shape: tuple[int, ...], dtype: object = np.float32) -> dict[str, object]:
    return {"extra": {name: np.ones(shape, dtype)}}


def one_layer_in_the_config(folder: Path) -> None:
    llamas()(folder)
    config = json.loads((folder / "b/config.json").read_text()) | {"num_hidden_layers": 1}
    (folder / "b/config.json").write_text(json.dumps(config))


def a_gguf_of_blocks(folder: Path) -> None:
    blocks = lbrx.tensor(np.zeros(34, np.uint8))
    write_model(folder / "a", {"w": np.ones(32, np.float32)}, None)
    from lbrx.files.formats import gguf
    from lbrx.files.formats.header import TensorSpec

    layout = gguf.lay_out("b.gguf", [TensorSpec("w", "q8_0", (32,))], {"general.architecture": "llama"})
    (folder / "b.gguf").write_bytes(layout.header + blocks.numpy().tobytes())


def only_a(folder: Path) -> None:
    make_llama(folder / "a", 1)


def other_names(folder: Path) -> None:
    write_model(folder / "a", random_tensors({"w": (2,), "x": (2,)}, 1), None)
    write_model(folder / "b", random_tensors({"w": (2,), "y": (2,)}, 2), None)


def truncated(folder: Path) -> None:
    llamas()(folder)
    file = folder / "b/model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def empty(folder: Path) -> None:
    only_a(folder)
    write_model(folder / "b", {}, None)


def different_heads(folder: Path) -> None:
    llamas(b={"vocabulary": 24})(folder)


CASES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "shape": (
        llamas(b=with_tensor("model.extra", (3,)), a=with_tensor("model.extra", (4,))),
        LINEAR,
        BOTH + "tensor 'model.extra' has shape (3,) in b, but (4,) in a",
    ),
    "shape against the config": (
        llamas(b=with_tensor(UP, (12, 7))),
        LINEAR,
        BOTH + f"b: tensor '{UP}' has shape (12, 7), expected (12, 8) from config.json's "
        "(intermediate_size, hidden_size)",
    ),
    "missing tensor": (
        llamas(b={"without": (UP,)}),
        LINEAR,
        BOTH + f"b: tensor '{UP}' is missing; the architecture 'llama' needs it",
    ),
    "tensor in one model only": (
        llamas(a=with_tensor("model.extra", (3,))),
        LINEAR,
        BOTH + "tensor 'model.extra' is in a, but not in b",
    ),
    "layer beyond the config": (
        one_layer_in_the_config,
        LINEAR,
        BOTH + "b: tensor 'model.layers.1.input_layernorm.weight' is in layer 1, but config.json says that there are "
        "1 layers; b: tensor 'model.layers.1.mlp.down_proj.weight' is in layer 1, but config.json says that there are "
        "1 layers; b: tensor 'model.layers.1.mlp.gate_proj.weight' is in layer 1, but config.json says that there are "
        "1 layers; and 6 more",
    ),
    "numbers of layers": (
        llamas(b={"layers": 3}),
        LINEAR,
        BOTH + "b has 3 layers, but a has 2",
    ),
    "layer range": (
        only_a,
        STACK,
        "<recipe>:2: 'layer_range' [0, 3] ends beyond the 2 layers of model 'a'",
    ),
    "architectures": (
        llamas(b={"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}),
        LINEAR,
        BOTH + "the architecture of b is 'gpt2', but that of a is 'llama'",
    ),
    "unknown architecture beside a known one": (
        llamas(b={"model_type": "mamba9", "architectures": ["Mamba9"]}),
        LINEAR,
        BOTH + "the architecture of b is unknown (model_type: 'mamba9'), but that of a is 'llama'",
    ),
    "vocabularies": (
        llamas(b={"vocabulary": 24}),
        LINEAR,
        BOTH
        + "the vocabularies differ: 'model.embed_tokens.weight' has 24 rows in b, but 16 in a; expected models with "
        "one vocabulary; the vocabularies differ: 'lm_head.weight' has 24 rows in b, but 16 in a; expected models with "
        "one vocabulary",
    ),
    "vocabularies of stacked models": (
        different_heads,
        "merge_method: passthrough\nslices:\n- sources: [{model: a, layer_range: [0, 1]}]\n"
        "- sources: [{model: b, layer_range: [1, 2]}]\n",
        BOTH + "the vocabularies of the first and the last slice differ: 'model.embed_tokens.weight' has 16 rows in a "
        "and 24 rows in b; the vocabularies of the first and the last slice differ: 'lm_head.weight' has 16 rows in a "
        "and 24 rows in b",
    ),
    "numbers against whole numbers": (
        llamas(a=with_tensor("model.extra", (3,)), b=with_tensor("model.extra", (3,), np.int32)),
        LINEAR,
        BOTH + "tensor 'model.extra' is i32 in b, but f32 in a",
    ),
    "quantization_config": (
        llamas(b={"quantization_config": {"quant_method": "hqq"}}),
        LINEAR,
        "b: is quantized with the method 'hqq' ('quantization_config' of config.json), which lbrx cannot decode; "
        "expected plain, GGUF or MLX weights (--raw takes the stored codes as values)",
    ),
    "quantized blocks": (
        a_gguf_of_blocks,
        LINEAR.replace("b,", "b.gguf,"),
        BOTH + "tensor 'w' of b.gguf is quantized as q8_0; expected a floating type: only such tensors can be merged",
    ),
    "names of unknown architectures": (
        other_names,
        LINEAR,
        BOTH + "tensor 'x' is in a, but not in b; tensor 'y' is in b, but not in a",
    ),
    "no such model": (
        only_a,
        LINEAR,
        "b: no such file or directory, nor a repository of the hub ('owner/name')",
    ),
    "revision of a local model": (
        llamas(),
        LINEAR.replace("b,", "b@main,"),
        "b@main: is a local model, which has no revisions; expected no '@main'",
    ),
    "truncated file": (
        truncated,
        LINEAR,
        "b/model.safetensors: tensor 'model.norm.weight' ends at byte 7056, but the file has 7052",
    ),
    "no tensors": (empty, LINEAR, "b: has no tensors; expected a model"),
    "number of layers in words": (
        llamas(b={"num_hidden_layers": "two"}),
        LINEAR,
        "b: config.json: 'num_hidden_layers' is 'two'; expected a whole number from 0 to 1000",
    ),
    "unknown override": (
        llamas(),
        "merge_method: passthrough\nmodels: [{model: {model: a, override_architecture: lama}}]\n",
        "a: unknown architecture 'lama'; did you mean 'llama'?",
    ),
    "adapter": (
        llamas(),
        LINEAR.replace("b,", "b+lora,"),
        "lora: no such file or directory, nor a repository of the hub ('owner/name')",
    ),
    "union of unknown vocabularies": (
        llamas(),
        LINEAR + "tokenizer_source: union\n",
        "<recipe>:6: model a has no tokenizer.json, so that its 16 tokens are not known; expected a tokenizer in the "
        "model's directory",
    ),
    "module that is not there": (
        llamas(),
        "merge_method: passthrough\nmodules: {vision: {models: [{model: a}]}}\n",
        "<recipe>:2: the models have no module 'vision'; expected 'default'",
    ),
    "two outputs": (
        only_a,
        "name: x\nmerge_method: passthrough\nmodels: [{model: a}]\n---\n"
        "name: y\nmerge_method: passthrough\nmodels: [{model: a}]\n",
        "<recipe>:5: several recipes are used by none ('x', 'y'); expected one, or one without a 'name', to be the "
        "output",
    ),
    "shard size": (
        llamas(),
        LINEAR,
        "'5 llamas' is not a number of bytes; expected one such as 4GB, 512MiB or 1073741824",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_before_the_run(name: str, folder: Path) -> None:
    make, recipe, message = CASES[name]
    make(folder)
    with pytest.raises(LbrxError) as caught:
        read_and_plan(recipe, "out", max_shard_bytes="5 llamas" if name == "shard size" else "5GB")
    assert str(caught.value) == message
    assert [path.name for path in folder.iterdir() if "out" in path.name] == []


def test_a_target_that_is_a_file(folder: Path) -> None:
    llamas()(folder)
    (folder / "out").write_text("precious")
    with pytest.raises(LbrxError, match=r"^out: is a file; expected a directory to write to$"):
        merge(LINEAR, "out")
    assert (folder / "out").read_text() == "precious"


def test_parents_of_a_target_are_made(folder: Path) -> None:
    llamas()(folder)
    assert merge(LINEAR, "no/where/out").out == Path("no/where/out")
    assert (folder / "no/where/out/model.safetensors").is_file()
    with pytest.raises(LbrxError, match=r"^no/where/out/config.json: is a file; expected a directory to write to$"):
        merge(LINEAR, "no/where/out/config.json/x/y")


def test_a_wrong_recipe_is_reported_before_the_output_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the output was touched")

    monkeypatch.setattr("lbrx.jobs.merge.merge.restore_replaced", refuse)
    with pytest.raises(LbrxError, match="lineer"):
        merge("{merge_method: lineer, models: [{model: models/a}]}", tmp_path / "out")
