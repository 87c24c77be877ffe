"""Values that make no sense, in every small file of a model: an error of lbrx that names the file, and no long work."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FormatError, LbrxError, UsageError
from lbrx.files.formats.strict_json import MAX_DEPTH, parse_object
from lbrx.jobs.convert.convert import plan_conversion
from lbrx.jobs.imatrix.files import read_imatrix
from lbrx.jobs.lora.config import read_config
from lbrx.jobs.merge.merge import read_and_plan
from lbrx.jobs.verify import verify
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.byte_fallback import merges_of_scores
from lbrx.models.tokenizers.records import TokenTable
from lbrx.models.tokenizers.text import open_tokenizer
from support.hostile_values import CONFIG_VALUES, GGUF_KEYS, GGUF_VALUES

BASE = demo_models().base
CONFIG = json.loads((BASE / "config.json").read_text())
TOKENIZER = json.loads((BASE / "tokenizer.json").read_text())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copytree(BASE, tmp_path / "model")
    return tmp_path / "model"


def readers(path: Path) -> list[Callable[[], Any]]:
    """All that reads the small files of a model and no weights."""
    recipe = path.parent / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {path}}}], parameters: {{weight: 1}}}}")
    other = "gguf" if path.is_dir() else "safetensors"
    return [
        lambda: verify(path, quick=True),
        lambda: read_and_plan(recipe, path.parent / "out"),
        lambda: plan_conversion(path, path.parent / f"converted.{other}", format=other),
        lambda: open_model(path),
        lambda: open_tokenizer(path),
    ]


def raise_only_our_errors(path: Path) -> None:
    for read in readers(path):
        with suppress(LbrxError):  # which lets every other error fail the test
            read()


@pytest.mark.parametrize("key", CONFIG_VALUES)
def test_config_json(key: str, model: Path) -> None:
    for value in CONFIG_VALUES[key]:
        (model / "config.json").write_text(json.dumps({**CONFIG, key: value}))
        raise_only_our_errors(model)


def test_a_config_that_cannot_be_used_is_named(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "architectures": 5}))
    for read in readers(model)[1:4]:
        with pytest.raises(FormatError, match=r"config.json: 'architectures' is 5; expected a list"):
            read()
    assert not verify(model, quick=True).is_good


@pytest.mark.parametrize("count", [10**9, 2**31])
def test_counts_of_layers_and_experts_are_bounded_by_the_tensors(count: int, model: Path) -> None:
    (model / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": count}))
    for read in readers(model)[1:4]:
        with pytest.raises(LbrxError, match=rf"'num_hidden_layers' is {count}; expected a whole number from"):
            read()
    mixture = {**CONFIG, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": count}
    (model / "config.json").write_text(json.dumps(mixture))
    for read in readers(model)[1:4]:
        with pytest.raises(LbrxError, match=rf"num_local_experts' is {count}; expected"):
            read()


@pytest.mark.parametrize("key", GGUF_KEYS)
def test_gguf_metadata(key: str, tmp_path: Path) -> None:
    original = tmp_path / "original.gguf"
    lbrx.convert(BASE, original)
    checkpoint = lbrx.open(original)
    metadata: Any = checkpoint.metadata
    for value in GGUF_VALUES:
        path = tmp_path / "model.gguf"
        path.unlink(missing_ok=True)
        with suppress(UsageError):  # the writer knows the types of some keys
            lbrx.save(path, checkpoint, {**metadata.typed(), key: value})
        if path.exists():
            raise_only_our_errors(path)


def test_deep_json() -> None:
    for depth in (MAX_DEPTH + 1, 900, 9000, 100_000):
        with pytest.raises(FormatError, match=r"a\.json: is JSON that is nested too deeply"):
            parse_object(b'{"a": ' + b"[" * depth + b"]" * depth + b"}", "a.json")
    assert parse_object(b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}", "a.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "NaN is not valid JSON"),
        ('{"a": ["\\ud800"]}', "has the lone surrogate"),
        ('{"\\uDFFF": 1}', "has the lone surrogate"),
        ('{"a": 1' + "0" * 5000 + "}", "is not valid JSON"),
    ],
)
def test_values_that_are_no_json(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=rf"a\.json: .*{message}"):
        parse_object(text, "a.json")


def test_infinities_of_transformers_and_pairs_of_surrogates_are_read() -> None:
    assert parse_object('{"a": [0.0, Infinity], "b": "\\ud83d\\ude00"}', "a.json") == {"a": [0.0, np.inf], "b": "😀"}


# -- tokenizers -------------------------------------------------------------------------------------------------------

TOKENIZER_CHANGES: dict[str, dict[str, Any]] = {
    "charsmap": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\x7f").decode()}
    },
    "id": {"model": {**TOKENIZER["model"], "vocab": {**TOKENIZER["model"]["vocab"], "zzzz": 2**32 - 1}}},
    "added id": {"added_tokens": [{**TOKENIZER["added_tokens"][0], "content": "<x>", "id": 2**32 - 1}]},
    "no model": {"model": 5},
}


@pytest.mark.parametrize("change", TOKENIZER_CHANGES)
def test_tokenizer_json(change: str, model: Path) -> None:
    (model / "tokenizer.json").write_text(json.dumps({**TOKENIZER, **TOKENIZER_CHANGES[change]}))
    raise_only_our_errors(model)


def test_replacements_that_make_a_text_endless(model: Path) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
    normalizer = {"type": "Sequence", "normalizers": [step] * 6}
    (model / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "normalizer": normalizer}))
    with pytest.raises(FormatError, match="make texts 15625000000 times longer"):
        open_tokenizer(model)


def test_a_regular_expression_without_an_end(model: Path) -> None:
    rule = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    (model / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "pre_tokenizer": rule}))
    with suppress(LbrxError):
        open_tokenizer(model).encode("a" * 40 + "b")


@pytest.mark.parametrize("template", [[{"name": {}}], [5], 5, {"a": 1}, [{"name": "default", "template": {}}]])
def test_tokenizer_config_json(template: Any, model: Path) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    raise_only_our_errors(model)


def test_a_token_of_two_megabytes() -> None:
    with pytest.raises(FormatError, match="a token of 2000000 characters, expected at most 16384"):
        merges_of_scores(["a", "b" * 2_000_000], [1, 1], [0.0, 0.0])


def test_an_added_token_with_a_huge_id() -> None:
    with pytest.raises(FormatError, match="token ids up to 4294967295"):
        TokenTable.of_size(2**32, "added_tokens.json")


# -- other files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"lora_alpha": 10**400}, {"r": 10**400}, {"lora_alpha": float("inf")}, {"rank_pattern": {"a": 10**400}}]
)
def test_adapter_config_json(change: dict[str, Any], tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, **change}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"adapter_config\.json: .* expected a"):
        read_config(tmp_path)


@pytest.mark.parametrize("expression", ["(a+)+$", "((.*)*)*x", ".*.*.*.*.*.*x"])
def test_adapter_with_an_expression_without_an_end(expression: str, tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "rank_pattern": {expression: 4}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"adapter_config\.json: rank_pattern has .* which can take for ever"):
        read_config(tmp_path)


def test_steps_that_double_a_text(model: Path) -> None:
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    rule = {"type": "Sequence", "pretokenizers": [step] * 100}
    (model / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "pre_tokenizer": rule}))
    with pytest.raises(FormatError, match=r"tokenizer\.json: its steps make texts \d+ times longer"):
        open_tokenizer(model)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("imatrix.datasets", 5),
        ("imatrix.datasets", "x"),
        ("imatrix.chunk_count", "x"),
        ("imatrix.chunk_count", [1, 2]),
        ("imatrix.chunk_count", float("inf")),
    ],
)
def test_importance_matrix(key: str, value: Any, tmp_path: Path) -> None:
    tensors = {"w.in_sum2": lbrx.full((1, 4), 1.0, "f32"), "w.counts": lbrx.full((1, 1), 1.0, "f32")}
    lbrx.save(tmp_path / "imatrix.gguf", tensors, {"general.type": "imatrix", key: value})
    with pytest.raises(FormatError, match=rf"imatrix\.gguf: '{key}' is .*; expected"):
        read_imatrix(tmp_path / "imatrix.gguf")


def test_recipe_with_a_number_of_5000_digits(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {BASE}}}], parameters: {{weight: 0x{'f' * 5000}}}}}")
    with pytest.raises(LbrxError, match=r"recipe\.yml:1: '0xfff.* is not a value of the type"):
        read_and_plan(recipe, tmp_path / "out")


def test_recipe_with_a_vocabulary_of_four_billion_rows(tmp_path: Path) -> None:
    models = f"models: [{{model: {BASE}, parameters: {{weight: 1}}}}]"
    recipe = f"merge_method: linear\n{models}\ntokenizer: {{source: union, pad_to_multiple_of: 4294967295}}\n"
    with pytest.raises(LbrxError, match="'pad_to_multiple_of' must be at most 65536, found 4294967295"):
        read_and_plan(recipe, tmp_path / "out")


def test_recipe_with_a_model_of_70000_characters(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {'m' * 70_000}}}], parameters: {{weight: 1}}}}")
    with pytest.raises(LbrxError):
        read_and_plan(recipe, tmp_path / "out")


def test_gguf_with_too_many_keys(tmp_path: Path) -> None:
    pair = (8).to_bytes(8, "little") + b"%08d" + bytes(4) + b"\1"  # a string, then u8 1
    content = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (100_000).to_bytes(8, "little")
    content += b"".join(pair.replace(b"%08d", b"%08d" % number) for number in range(100_000))
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(FormatError, match="has 100000 keys, expected at most 65536"):
        lbrx.open(tmp_path / "a.gguf")
