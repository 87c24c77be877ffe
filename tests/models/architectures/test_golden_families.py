"""Every family against what transformers, llama.cpp and mlx_lm make of tiny models of it.

A check does not apply only if the record says that the family cannot be converted or run, or if the other program
does not have the family. docs/models.md lists both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.errors import FormatError, UsageError
from lbrx.files.output.contents import Contents
from lbrx.jobs.convert.gguf_to_hf import gguf_to_hf
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.hf_to_mmproj import hf_to_mmproj
from lbrx.jobs.convert.mlx_directory import hf_to_mlx
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.architectures import check_names, check_shapes
from lbrx.models.architectures.config import text_section
from lbrx.models.architectures.mlx_weights import mlx_to_hf, read_mlx
from lbrx.models.inference import open_model
from lbrx.registry import FAMILIES
from support.family_goldens import Golden, all_goldens

LOGITS = 1e-4  # relative to the largest logit
OTHER_RESULT = 1e-2  # llama.cpp computes something else if its logits differ by more
# Keys that the converter of llama.cpp writes and llama.cpp does not read.
NOT_READ: frozenset[str] = frozenset()
# Keys that lbrx writes in addition, with the value that llama.cpp assumes without them.
ADDED = (
    *("vocab_size", "rope.dimension_count", "rope.freq_base"),
    *("attention.key_length", "attention.value_length", "attention.head_count_kv"),
)
# Tensors of heads, whose sizes no key of the config tells, such as the number of labels.
HEADS = (
    "text_projection.",
    "visual_projection.",
    "classifier.",
    "cls.seq_relationship.",
    "qa_outputs.",
    "classification_head.",
)
WITH_TOWERS = ("clip", "siglip")  # families whose records list the tensors of the tower
# Models whose layers depend on their position in a way that no config describes.
UNDESCRIBED_STACKS = ("jamba", "modernbert", "modernbert-classifier", "modernbert-masked-lm")
WITH_INPUTS_PER_LAYER = ("gemma4-inputs",)  # in tensors that have a part for each layer
# Models that llama.cpp runs otherwise than transformers, and lbrx like transformers.
OTHERWISE_IN_LLAMA_CPP = ("deepseek_v2-groups", "phimoe-hub")
_CLASS_KEYS = ("architectures", "model_type", "tie_word_embeddings")
_GENERAL = ("general.name", "general.size_label", "general.type", "general.file_type", "general.quantization_version")


def cases(applies: Callable[[Golden], bool] = lambda _golden: True) -> pytest.MarkDecorator:
    chosen = [golden for golden in all_goldens() if applies(golden)]
    return pytest.mark.parametrize("golden", chosen, ids=lambda golden: golden.name)


def is_converted(golden: Golden) -> bool:
    return golden.family.gguf is not None and golden.gguf is not None and "error" not in golden.gguf


def is_run(golden: Golden) -> bool:
    return golden.family.decoder is not None


def has_layers(golden: Golden) -> bool:
    return bool(golden.family.layer_prefix) and golden.name not in WITH_INPUTS_PER_LAYER


def is_in_mlx(golden: Golden) -> bool:
    return golden.mlx is not None and "error" not in golden.mlx


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Golden], Path]:
    """A function that returns the directory of a model, written once."""
    written: dict[str, Path] = {}

    def model(golden: Golden) -> Path:
        if golden.name not in written:
            written[golden.name] = golden.write(tmp_path_factory.mktemp(golden.name) / "model")
        return written[golden.name]

    return model


Models = Callable[[Golden], Path]


def as_gguf(folder: Path, type_name: str | None = None) -> Contents:
    return hf_to_gguf(read_contents(folder), tokenizer_metadata={"tokenizer.ggml.model": "none"}, type_name=type_name)


def write_gguf(folder: Path) -> Path:
    path = folder.parent / "model.gguf"
    if not path.exists():
        contents = as_gguf(folder)
        lbrx.save(path, {each.name: each.make() for each in contents.tensors}, contents.metadata)
    return path


def assert_close(found: npt.NDArray[Any], golden: Golden) -> None:
    assert golden.values is not None
    assert np.abs(found[golden.positions] - golden.values).max() <= LOGITS * np.abs(golden.values).max()


# -- the record and merging --------------------------------------------------------------------------------------------


def test_every_family_has_golden_files() -> None:
    assert {golden.family.name for golden in all_goldens()} == set(FAMILIES)


@cases()
def test_the_record_knows_every_tensor(golden: Golden) -> None:
    family, config, shapes = golden.family, golden.config, golden.shapes
    assert check_names(family, config, shapes) == []
    assert check_shapes(family, config, shapes) == []
    shapes = {name: shapes[name] for name in shapes if not (family.prediction_names and name.startswith("mtp."))}
    towers = {role.name for role in family.unclaimed(config, shapes) if role.module}
    assert bool(towers) == ("vision_config" in config and family.name not in WITH_TOWERS)
    shapes = {name: shapes[name] for name in shapes if name not in towers}
    assert [role.name for role in family.unclaimed(config, shapes)] == []
    described = {role.name for role in family.tensors(config, shapes) if role.dimensions is not None}
    assert family.expected_shapes(config, shapes) == {name: shapes[name] for name in shapes if name in described}
    undescribed = sorted(set(shapes) - described)
    assert [name for name in undescribed if not name.startswith(HEADS)] == []


@cases()
def test_a_merge_is_the_formula(golden: Golden, models: Models, tmp_path: Path) -> None:
    recipe = [
        f"{{model: {path}, parameters: {{weight: {weight}}}}}"
        for path, weight in ((models(golden), 3), (golden.write(tmp_path / "other", 1), 1))
    ]
    lbrx.merge(f"{{merge_method: linear, models: [{', '.join(recipe)}]}}", tmp_path / "out")
    merged = lbrx.open(tmp_path / "out")
    a, b = golden.arrays(), golden.arrays(1)
    assert set(merged) == set(a)
    for name, tensor in merged.items():
        np.testing.assert_allclose(tensor.numpy(), 0.75 * a[name] + 0.25 * b[name], rtol=1e-5, atol=1e-6)


@cases(has_layers)
def test_a_stack_has_the_tensors_and_the_config_of_its_layers(golden: Golden, models: Models, tmp_path: Path) -> None:
    family = golden.family
    layers = family.layer_count(golden.config)
    sources = [0, *range(layers), layers - 1]
    ranges = [
        f"{{sources: [{{model: {models(golden)}, layer_range: [{start}, {stop}]}}]}}"
        for start, stop in ((0, 1), (0, layers), (layers - 1, layers))
    ]
    recipe = f"{{merge_method: passthrough, slices: [{', '.join(ranges)}]}}"
    warnings: list[str] = []
    lbrx.merge(recipe, tmp_path / "out", planned=lambda plan: warnings.extend(plan.warnings))
    stacked = lbrx.open(tmp_path / "out")
    arrays = golden.arrays()
    by_layer: dict[int | None, list[str]] = {}
    for role in family.tensors(golden.config, arrays):
        by_layer.setdefault(role.layer, []).append(role.name)
    expected = {name: arrays[name] for name in by_layer.get(None, [])} | {
        family.rename_layer(name, source, target): arrays[name]
        for target, source in enumerate(sources)
        for name in by_layer[source]
    }
    assert set(stacked) == set(expected)
    for name, array in expected.items():
        assert stacked[name].numpy().tobytes() == array.tobytes(), name
    assert stacked.config is not None
    shapes = {name: array.shape for name, array in expected.items()}
    assert family.layer_count(stacked.config) == len(sources)
    problems = check_names(family, stacked.config, shapes) + check_shapes(family, stacked.config, shapes)
    assert bool(problems) == (golden.name in UNDESCRIBED_STACKS)
    assert [f"the output: {problem}" for problem in problems if f"the output: {problem}" not in warnings] == []
    assert [role.name for role in family.unclaimed(stacked.config, shapes) if not role.module] == []
    before, after = family.config(golden.config), family.config(stacked.config)
    for rule in family.layer_rules:
        if rule.key not in text_section(stacked.config) and rule.key not in text_section(golden.config):
            values = [before.evaluate(rule.value, layer=source) for source in sources]
            assert [after.evaluate(rule.value, layer=layer) for layer in range(len(sources))] == values


@cases(lambda golden: golden.name in WITH_INPUTS_PER_LAYER)
@pytest.mark.parametrize("ranges", [[(0, 1)], [(1, 2), (0, 1)]], ids=["fewer", "another order"])
def test_inputs_per_layer_are_not_stacked(
    golden: Golden, models: Models, tmp_path: Path, ranges: list[tuple[int, int]]
) -> None:
    layers = golden.family.layer_count(golden.config)

    def merge(ranges: list[tuple[int, int]]) -> Path:
        slices = [f"{{sources: [{{model: {models(golden)}, layer_range: [{a}, {b}]}}]}}" for a, b in ranges]
        lbrx.merge(f"{{merge_method: passthrough, slices: [{', '.join(slices)}]}}", tmp_path / "out")
        return tmp_path / "out"

    tensor = r"'model.embed_tokens_per_layer.weight' of .* has a part for each of"
    with pytest.raises(UsageError, match=f"{tensor} {layers} layers, which slices that move layers do not"):
        merge([*ranges, (2, layers)])
    whole = lbrx.open(merge([(0, 1), (1, layers)]))
    arrays = golden.arrays()
    assert {name: whole[name].numpy().tobytes() for name in whole} == {
        name: array.tobytes() for name, array in arrays.items()
    }


# -- running -----------------------------------------------------------------------------------------------------------


@cases(is_run)
def test_logits_are_those_of_transformers(golden: Golden, models: Models) -> None:
    model = open_model(models(golden))
    assert_close(model.logits(golden.ids), golden)
    cache = model.new_cache()
    pieces = [
        model.logits(ids, cache) for ids in (golden.ids[:9], golden.ids[9:10], golden.ids[10:11], golden.ids[11:])
    ]
    assert_close(np.concatenate(pieces), golden)


# -- GGUF --------------------------------------------------------------------------------------------------------------


@cases(is_converted)
def test_gguf_tensors_are_those_of_llama_cpp(golden: Golden, models: Models) -> None:
    assert golden.gguf is not None
    expected, contents = golden.gguf["tensors"], as_gguf(models(golden))
    made = {each.name: each for each in contents.tensors}
    if "error" in (golden.llama_cpp or {}) and "output.weight" not in expected:
        made.pop("output.weight", None)  # llama.cpp does not load the file of its converter without it
    assert set(made) == set(expected)
    for name, (type_name, shape, content) in expected.items():
        values = made[name].make().numpy()
        assert (made[name].type_name, list(made[name].shape)) == (type_name, shape), name
        assert list(values.shape) == shape
        if isinstance(content, str):
            assert hashlib.sha256(values.tobytes()).hexdigest()[:12] == content, name
        else:
            wide = values.astype(np.float64)
            np.testing.assert_allclose([wide.sum(), np.abs(wide).sum()], content, rtol=1e-6, err_msg=name)


@cases(is_converted)
def test_gguf_types_are_those_of_llama_cpp(golden: Golden, models: Models) -> None:
    assert golden.gguf is not None
    contents = as_gguf(models(golden), "bf16")
    types = {each.name: each.type_name for each in contents.tensors if each.name in golden.gguf["tensors"]}
    assert sorted(name for name, type_name in types.items() if type_name == "f32") == sorted(golden.gguf["f32_in_bf16"])
    assert set(types.values()) <= {"f32", "bf16"}


@cases(is_converted)
def test_gguf_metadata_is_that_of_llama_cpp(golden: Golden, models: Models) -> None:
    assert golden.gguf is not None
    made = {
        key: plain(value)
        for key, value in as_gguf(models(golden)).metadata.items()
        if not key.startswith(("lbrx.", "tokenizer.")) and key not in _GENERAL
    }
    expected = {key: value for key, value in golden.gguf["metadata"].items() if key not in NOT_READ}
    absent = {key: value for key, value in expected.items() if key not in made}
    assert absent == {}
    assert {key: made[key] for key in expected} == {key: approximate(value) for key, value in expected.items()}
    added = [key for key in made if key not in golden.gguf["metadata"]]
    assert [key for key in added if key.partition(".")[2] not in ADDED] == []


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def approximate(value: Any) -> Any:
    is_real = isinstance(value, float) or (isinstance(value, list) and all(isinstance(each, float) for each in value))
    return pytest.approx(value, rel=1e-6) if is_real else value


@cases(lambda golden: golden.family.gguf is not None and "error" in (golden.gguf or {}))
def test_what_llama_cpp_cannot_convert_is_refused(golden: Golden, models: Models) -> None:
    with pytest.raises(UsageError):
        as_gguf(models(golden))


@cases(lambda golden: is_converted(golden) and "difference" in (golden.llama_cpp or {}))
def test_other_results_in_llama_cpp_are_a_warning(golden: Golden, models: Models) -> None:
    assert golden.llama_cpp is not None
    warnings = [text for text in as_gguf(models(golden)).warnings if "of the vision model are left out" not in text]
    assert bool(warnings) == (golden.llama_cpp["difference"] > OTHER_RESULT)


@cases(is_converted)
def test_gguf_comes_back_byte_by_byte(golden: Golden, models: Models) -> None:
    back = gguf_to_hf(read_contents(write_gguf(models(golden))))
    family, arrays = golden.family, golden.arrays()
    if "vision_config" in golden.config:  # only the language model is converted
        assert back.config is not None
        text = golden.config["text_config"]
        assert back.config["tie_word_embeddings"] == family.is_tied(golden.config)
        assert {key: back.config[key] for key in text if key not in _CLASS_KEYS} == {
            key: text[key] for key in text if key not in _CLASS_KEYS
        }
        towers = {role.name for role in family.unclaimed(golden.config, arrays)}
        language = {name: array for name, array in arrays.items() if name not in towers}
        arrays = {family.translate(name, family.namings[0]): array for name, array in language.items()}
    elif family.gguf is not None and family.gguf.is_encoder:  # heads without a name in llama.cpp are left out
        assert back.config is not None
        assert {**back.config, "architectures": golden.config["architectures"]} == golden.config
        assert golden.gguf is not None
        assert len(back.tensors) == len(golden.gguf["tensors"])
        arrays = {name: arrays[family.source_name(name, golden.config, arrays.keys()) or ""] for name in back.by_name}
    else:
        assert back.config == golden.config
    assert set(back.by_name) == set(arrays)
    scaled = {weight.name.rpartition("}")[2] for weight in golden.family.weights if weight.gguf_scales}
    for name, array in arrays.items():
        values = back.by_name[name].make().numpy()
        if any(name.endswith(end) for end in scaled):  # products with factors of the config are rounded
            np.testing.assert_allclose(values, array, rtol=3e-7)
        else:
            assert values.tobytes() == array.tobytes(), name


@cases(lambda golden: is_converted(golden) and is_run(golden))
def test_gguf_gives_the_logits_of_llama_cpp(golden: Golden, models: Models) -> None:
    found = open_model(write_gguf(models(golden))).logits(golden.ids)
    llama = golden.llama_cpp or {}
    if "last" not in llama or golden.name in OTHERWISE_IN_LLAMA_CPP:
        assert_close(found, golden)
        return
    expected = np.array(llama["last"], np.float32)
    rounding = 2e-3  # ggml computes GELU with a table of f16 values
    assert np.abs(found[-1] - expected).max() <= rounding * np.abs(expected).max()


# -- towers ------------------------------------------------------------------------------------------------------------


@cases(lambda golden: golden.mmproj is not None)
def test_the_tower_and_projector_are_those_of_llama_cpp(golden: Golden, models: Models) -> None:
    assert golden.mmproj is not None
    folder = models(golden)
    made = hf_to_mmproj(read_contents(folder))
    assert {each.name for each in made.tensors} == set(golden.mmproj["tensors"])
    for tensor in made.tensors:
        type_name, shape, digest = golden.mmproj["tensors"][tensor.name]
        values = tensor.make()
        assert (tensor.type_name, list(tensor.shape)) == (type_name, shape), tensor.name
        assert (values.type_name, list(values.shape)) == (type_name, shape), tensor.name
        assert hashlib.sha256(values.numpy().tobytes()).hexdigest()[:12] == digest, tensor.name
    metadata = {key: plain(value) for key, value in made.metadata.items() if key not in _GENERAL}
    assert metadata == {key: approximate(value) for key, value in golden.mmproj["metadata"].items()}
    bf16 = hf_to_mmproj(read_contents(folder), type_name="bf16")
    kept = sorted(each.name for each in bf16.tensors if each.type_name == "f32")
    assert kept == sorted(golden.mmproj["f32_in_bf16"])


# -- MLX ---------------------------------------------------------------------------------------------------------------


@cases(is_in_mlx)
def test_mlx_is_what_mlx_lm_was_compared_with(golden: Golden, models: Models) -> None:
    assert golden.mlx is not None
    absent, added = golden.mlx["absent"], {name: tuple(shape) for name, shape in golden.mlx["added"].items()}
    contents = hf_to_mlx(read_contents(models(golden)))
    kept = {name: shape for name, shape in golden.shapes.items() if name not in absent}
    assert {each.name: each.shape for each in contents.tensors} == kept | added
    assert contents.config == {**golden.config, **golden.mlx["config"]}
    back = mlx_to_hf(contents)
    has_forms = golden.family.has_mlx_forms
    arrays = {name: each for name, each in golden.arrays().items() if not (has_forms and name.startswith("mtp."))}
    assert set(back.by_name) == set(arrays)
    for name, array in arrays.items():
        values = back.by_name[name].make().numpy()
        if has_forms and "norm" in name:  # 1 is added in the type of the model
            np.testing.assert_allclose(values, array, atol=2e-7)
        else:
            assert values.tobytes() == array.tobytes(), name


@cases(lambda golden: any(weight.is_conv for weight in golden.family.weights))
def test_models_that_mlx_lm_has_converted_are_read(golden: Golden, models: Models, tmp_path: Path) -> None:
    family, arrays = golden.family, golden.arrays()
    ends = tuple(weight.name.rpartition("}")[2] for weight in family.weights if weight.is_conv)
    added = [weight.name for weight in family.weights if weight.adds_one]
    norms = tuple(name.rpartition("}")[2] if "layer" in name else family.namings[0].expand(name) for name in added)
    tensors = {
        name: lbrx.tensor(array.swapaxes(1, 2) if name.endswith(ends) else array + name.endswith(norms))
        for name, array in arrays.items()
    }
    lbrx.save(tmp_path / "model.safetensors", tensors, {"format": "mlx"})
    (tmp_path / "config.json").write_text((models(golden) / "config.json").read_text())
    contents = read_mlx(tmp_path)
    if any(weight.gguf_scales for weight in family.weights):
        with pytest.raises(FormatError, match="has been converted by mlx_lm"):
            mlx_to_hf(contents)
        return
    for name, each in mlx_to_hf(contents).by_name.items():
        np.testing.assert_allclose(each.make().numpy(), arrays[name], atol=2e-7 * name.endswith(norms))


# -- modules of recipes ------------------------------------------------------------------------------------------------

# The names that mergekit uses for the modules of models with towers, and of encoder-decoders.
MODULES = {
    "qwen2_vl": ("text_decoder", "vision_tower", "multi_modal_projector"),
    "qwen2_5_vl": ("text_decoder", "vision_tower", "multi_modal_projector"),
    "qwen3_vl": ("text_decoder", "vision_tower", "multi_modal_projector"),
    "gemma3": ("text_decoder", "vision_tower", "multi_modal_projector"),
    "mistral3": ("text_decoder", "vision_tower", "multi_modal_projector"),
    "t5": ("decoder", "encoder"),
    "whisper": ("decoder", "encoder"),
}


@cases(lambda golden: golden.name in MODULES)
def test_modules_are_merged_separately(golden: Golden, models: Models, tmp_path: Path) -> None:
    """Half of the modules come from one model, half from another: every tensor is that of one of them."""
    paths = (models(golden), golden.write(tmp_path / "other", 1))
    parts = [f"{name}: {{models: [{{model: {paths[n % 2]}}}]}}" for n, name in enumerate(MODULES[golden.name])]
    out = tmp_path / "out"
    lbrx.merge(f"{{merge_method: passthrough, modules: {{{', '.join(parts)}}}}}", out)
    a, b = golden.arrays(), golden.arrays(1)
    merged = {name: tensor.numpy().tobytes() for name, tensor in lbrx.open(out).items()}
    assert set(merged) == set(a)
    from_b = {name for name in a if merged[name] == b[name].tobytes()}
    assert {name for name in a if merged[name] == a[name].tobytes()} == set(a) - from_b
    words = {"vision_tower": ("visual.", "vision_tower."), "encoder": ("encoder.",)}[MODULES[golden.name][1]]
    projectors = ("merger", "multi_modal_projector")
    expected = {name for name in a if any(word in name for word in words)}
    assert from_b == {name for name in expected if not any(word in name for word in projectors)}
