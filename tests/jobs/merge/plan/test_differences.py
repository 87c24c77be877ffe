"""Models that can be merged, but whose settings or tokenizers differ: a warning names what and which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbrx.jobs.merge.merge import read_and_plan
from support.tiny import LINEAR, make_llama

BASE: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "query_pre_attn_scalar": 1,
}
YARN = {"rope_type": "yarn", "factor": 4.0}


def warnings(recipe: str = LINEAR) -> tuple[str, ...]:
    return read_and_plan(recipe, "out").warnings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 500000}, ["rope_theta is 10000.0 in a, but 500000 in b"]),
        ({"rope_parameters": {"rope_theta": 5e5}}, ["rope_theta is 10000.0 in a, but 500000.0 in b"]),
        (
            {"rope_scaling": YARN},
            ["rope_type is 'default' in a, but 'yarn' in b", "factor is not set in a, but 4.0 in b"],
        ),
        ({"rope_scaling": 5}, ["rope_scaling is not set in a, but 5 in b"]),
        ({"rms_norm_eps": 1e-5}, ["rms_norm_eps is 1e-06 in a, but 1e-05 in b"]),
        ({"hidden_act": "gelu"}, ["hidden_act is 'silu' in a, but 'gelu' in b"]),
        ({"sliding_window": 16}, ["sliding_window is not set in a, but 16 in b"]),
        ({"sliding_window": 16, "use_sliding_window": False, "logit_scale": 2.0}, []),
        ({"query_pre_attn_scalar": 2}, ["query_pre_attn_scalar is 1 in a, but 2 in b"]),
        (
            {"num_attention_heads": 4, "num_key_value_heads": 2},
            [
                "num_attention_heads is 2 in a, but 4 in b",
                "num_key_value_heads is 1 in a, but 2 in b",
                "head_dim is 4 in a, but 2 in b",
            ],
        ),
    ],
)
def test_settings_that_differ(folder: Path, changes: dict[str, Any], expected: list[str]) -> None:
    make_llama(folder / "a", 1, **BASE)
    make_llama(folder / "b", 2, **BASE | changes)
    assert warnings() == tuple(f"{text}; the output has that of a" for text in expected)


def test_other_forms_of_the_same_settings_are_no_difference(folder: Path) -> None:
    make_llama(folder / "a", 1, **BASE | {"rope_theta": None, "rms_norm_eps": None, "rope_scaling": {"type": "linear"}})
    rope = {"rope_theta": 10000, "rope_type": "linear"}
    make_llama(folder / "b", 2, **BASE | {"rope_theta": None, "rope_parameters": rope, "head_dim": 4})
    assert warnings() == ()


def test_unknown_families_are_compared_too(folder: Path) -> None:
    for name, heads in (("a", 2), ("b", 4)):
        make_llama(folder / name, 1, model_type="unheard-of", architectures=None, num_attention_heads=heads)
    assert "num_attention_heads is 2 in a, but 4 in b; the output has that of a" in warnings()


def write_tokenizer(folder: Path, *tokens: str, **others: Any) -> None:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    text = json.dumps({"model": {"type": "BPE", "vocab": vocabulary}, **others})
    (folder / "tokenizer.json").write_text(text)


def test_tokenizers_that_differ(folder: Path) -> None:
    make_llama(folder / "a", 1)
    make_llama(folder / "b", 2)
    write_tokenizer(folder / "a", "x", "y", "z")
    write_tokenizer(folder / "b", "x", "z", "y", added_tokens=[{"id": 3, "content": "<s>"}])
    assert warnings() == (
        "tokenizer.json of a and b differ: 3 ids have other tokens, such as 1, which is 'y' and 'z'; "
        "the output has that of a",
    )
    write_tokenizer(folder / "b", "x", "y", "z", padding={"length": 5})
    assert warnings() == ()
    (folder / "b/tokenizer.json").write_text("{")
    (text,) = warnings()
    assert text.startswith("tokenizer.json of a and b differ: their tokens cannot be compared (b/tokenizer.json: ")


def test_sentencepiece_files_are_compared_by_their_bytes(folder: Path) -> None:
    for name in "ab":
        make_llama(folder / name, 1)
        (folder / name / "tokenizer.model").write_text(name)
    assert warnings() == ("tokenizer.model of a and b differ: their bytes are not the same; the output has that of a",)
    (folder / "b/tokenizer.model").write_text("a")
    assert warnings() == ()


def test_tokenizers_that_the_recipe_aligns_are_no_warning(folder: Path) -> None:
    for name, tokens in (("a", ["<unk>", "y"]), ("b", ["y", "<unk>"])):
        make_llama(folder / name, 1, vocabulary=2)
        vocabulary = {token: number for number, token in enumerate(tokens)}
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
        (folder / name / "tokenizer.json").write_text(json.dumps({"model": model}))
    assert len(warnings()) == 1
    assert warnings(LINEAR + "tokenizer_source: union\n") == ()
