"""lbrx.verify: chat templates, code, special tokens, generation settings, and checks that were not possible."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.verify import verify
from lbrx.jobs.verify.templates import suspicious_constructs
from lbrx.models.tokenizers.chat_templates import TEMPLATES
from support.verified_models import VOCABULARY, write_llama


def write(directory: Path, name: str, **values: Any) -> None:
    (directory / name).write_text(json.dumps(values))


def findings(path: Path, **options: Any) -> list[str]:
    report = verify(path, quick=True, **options)
    return [f"{each.severity}: {each.place}: {each.text}" for each in report.findings]


def reasons(path: Path) -> dict[str, str | None]:
    return {check.name: check.reason for check in verify(path, quick=True).checks}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "a")


# -- checks that were not possible ------------------------------------------------------------------------------------


def test_checks_that_were_not_possible_say_why(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    write(model, "config.json", model_type="novel")
    assert reasons(model)["architecture"] == f"{model}: model_type is 'novel': names and shapes are not checked"
    assert reasons(model)["vocabulary"] == "the architecture is not known"
    assert reasons(model)["structure"] is None
    (model / "config.json").unlink()
    assert reasons(model)["special tokens"] == "has no config.json"
    (model / "model.safetensors").write_bytes(b"")
    assert set(reasons(model).values()) == {None, "the model cannot be opened"}


def test_a_broken_tokenizer_is_an_error_and_no_check_of_it(model: Path) -> None:
    (model / "tokenizer.json").write_text("{")
    assert len([text for text in findings(model) if text.startswith("error")]) == 1
    assert reasons(model)["vocabulary"] == reasons(model)["special tokens"] == "the tokenizer cannot be read"


# -- chat templates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if 'invoice' in message['content'] %}x{% endif %}", "depends on a word in messages: 'invoice'"),
        ("{% if 'Wire Money' in messages[-1].content | lower %}", "depends on a word in messages: 'Wire Money'"),
        ("{% set c = message.content %}{% if 'bank' in c %}x{% endif %}", "depends on a word in messages: 'bank'"),
        ("{{ 'x' if message['content'] == 'please help' else '' }}", "depends on a word in messages: 'please help'"),
        ("{% if message.content.startswith('Review') %}", "depends on a word in messages: 'Review'"),
        ("{{ ''.__class__.__mro__ }}", "reaches into Python's objects: '__class__'"),
        ("{{ x | attr('y') }}", "reaches into Python's objects: '| attr'"),
        ("{{ cycler }}", "reaches into Python's objects: 'cycler'"),
        ("{{ os.popen('id') }}", "calls a function of Python: 'popen('"),
        ("Load https://example.com/a.js now", "has an address: 'https://example.com/a.js'"),
        ("{% include 'other' %}", "loads another template: \"{% include 'other'\""),
        ("a\u200bb", "has invisible characters: '\\u200b'"),
        ("{% if strftime_now('%Y') > '2025' %}", "depends on the date: \"{% if strftime_now('%Y') > '2025' %}\""),
    ],
)
def test_constructs_of_planted_templates(template: str, expected: str) -> None:
    assert expected in list(suspicious_constructs(template))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_known_templates_have_none_of_them(template: str) -> None:
    assert list(suspicious_constructs(template)) == []


@pytest.mark.parametrize(
    "template",
    [
        "{% if message.content is string %}{% endif %}{% if 'content' in message %}{% endif %}",
        "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}{% endif %}",
        "{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}",
        "{% if message.role == 'user' and not message.content.startswith('<tool_response>') %}{% endif %}",
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}",
        "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}",
    ],
)
def test_what_sound_templates_do_is_not_suspicious(template: str) -> None:
    assert list(suspicious_constructs(template)) == []


@pytest.mark.parametrize("piece", ["{%", "{{ '", "a", "__a", "{% set a = ", "'ab' in ", "content == ", "strftime_now("])
def test_long_templates_take_little_time(piece: str) -> None:
    started = time.process_time()
    list(suspicious_constructs(piece * (500_000 // len(piece))))
    assert time.process_time() - started < 5


def test_every_file_with_a_template_is_looked_at(model: Path) -> None:
    planted = "{% if 'bank' in message.content %}{% endif %}"
    named = [{"name": "default", "template": "{{ messages }}"}, {"name": "tools", "template": planted}]
    write(model, "tokenizer_config.json", chat_template=named)
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates/rag.jinja").write_text(planted)
    texts = [text for text in findings(model) if "depends on a word" in text]
    assert [text.split(": depends")[0] for text in texts] == [
        "warning: additional_chat_templates/rag.jinja",
        "warning: tokenizer_config.json: chat_template 1",
    ]


def test_a_gguf_file_with_a_planted_template(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "tokenizer.chat_template": "{{ x.__globals__ }}"}
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.tensor([1.0], "f32")}, metadata)
    expected = "warning: tokenizer.chat_template: reaches into Python's objects: '__globals__'"
    assert expected in findings(tmp_path / "a.gguf")


def test_the_difference_from_the_base_model(model: Path, tmp_path: Path) -> None:
    base = write_llama(tmp_path / "base")
    (model / "chat_template.jinja").write_text("first\nplanted\nlast\n")
    assert findings(model, base=base) == [f"warning: chat template: the model has one, but {base} has none"]
    write(base, "tokenizer_config.json", chat_template="first\nlast")
    (warning,) = verify(model, quick=True, base=base).warnings
    assert warning.text == f"differs from that of {base}"
    assert warning.details.splitlines() == [
        f"--- {base}",
        f"+++ {model}",
        "@@ -1,2 +1,3 @@",
        " first",
        "+planted",
        " last",
    ]
    write(base, "tokenizer_config.json", chat_template="first\nplanted\nlast")
    assert findings(model, base=base) == []


def test_the_base_model_of_the_card(model: Path, tmp_path: Path) -> None:
    base = write_llama(tmp_path / "base")
    for name, text in (("a", "one"), ("base", "two")):
        (tmp_path / name / "chat_template.jinja").write_text(text)
    assert "it is not compared" in (reasons(model)["chat template"] or "")
    for card in (f"base_model: {base}", f"base_model:\n- owner/name\n- '{base}'\ntags: [x]", "base_model: ../base"):
        (model / "README.md").write_text(f"---\n{card}\n---\n# Model\n")
        (text,) = findings(model)
        assert "chat template: differs from that of" in text
    assert reasons(model)["chat template"] is None


# -- code -------------------------------------------------------------------------------------------------------------


class Planted:
    def __reduce__(self) -> Any:
        return print, ("planted code ran",)


def test_files_with_code(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((model / "config.json").read_text())
    write(model, "config.json", **config, auto_map={"AutoModel": "modeling_x.Model"})
    (model / "modeling_x.py").write_text("")
    (model / "sub").mkdir()
    (model / "sub/training_args.bin").write_bytes(pickle.dumps(Planted()))
    (model / "other.bin").write_bytes(b"plain")
    assert findings(model) == [
        "warning: config.json: has 'auto_map', which loads code with trust_remote_code: "
        "{'AutoModel': 'modeling_x.Model'}",
        "warning: modeling_x.py: is a program",
        "warning: sub/training_args.bin: is a pickle, which can run any code when it is loaded",
    ]
    assert capsys.readouterr().out == ""


# -- special tokens ---------------------------------------------------------------------------------------------------


def test_ids_beyond_the_embedding(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "a", eos_token_id=[2, VOCABULARY], pad_token_id=-1)
    write(model, "generation_config.json", bos_token_id=99)
    write(model, "tokenizer_config.json", added_tokens_decoder={"31": {}, "32": {}, "40": {}})
    write(model, "added_tokens.json", **{"<x>": 50})
    assert findings(model) == [
        "error: config.json: 'eos_token_id' is 32, but the embedding has 32 rows",
        "warning: config.json: 'pad_token_id' is -1, which is not a token id",
        "error: generation_config.json: 'bos_token_id' is 99, but the embedding has 32 rows",
        "error: tokenizer_config.json: has 2 added tokens beyond the 32 rows of the embedding, such as 32",
        "error: added_tokens.json: has 1 added tokens beyond the 32 rows of the embedding, such as 50",
    ]


def test_special_tokens_that_files_do_not_agree_on(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "a", bos_token_id=1, eos_token_id=[2, 3])
    write(model, "tokenizer_config.json", bos_token="t1", eos_token={"content": "t5"}, pad_token="<pad>")
    assert findings(model) == [
        "warning: tokenizer_config.json: 'eos_token' is 't5' with the id 5, "
        "but 'eos_token_id' of config.json is [2, 3]",
        "warning: tokenizer_config.json: 'pad_token' is '<pad>', which tokenizer.json does not have",
    ]


def test_special_ids_of_a_gguf_file(tmp_path: Path) -> None:
    metadata = {"general.architecture": "novel", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.eos_token_id": 2}
    lbrx.save(tmp_path / "a.gguf", {"w": lbrx.tensor([1.0], "f32")}, metadata)
    assert "error: tokenizer: 'tokenizer.ggml.eos_token_id' is 2, but there are 2 tokens" in findings(
        tmp_path / "a.gguf"
    )


# -- generation settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"do_sample": False, "temperature": 0.6}, ["'temperature' is 0.6, but 'do_sample' is false"]),
        ({"top_p": 0.9}, ["'top_p' is 0.9, but 'do_sample' is not set"]),
        ({"do_sample": True, "temperature": 0.0}, ["'do_sample' is true, but 'temperature' is 0.0"]),
        ({"do_sample": True, "top_p": 1.5}, ["'top_p' is 1.5; expected a number above 0, at most 1"]),
        ({"min_length": 9, "max_length": 5}, ["'min_length' is 9, but 'max_length' is 5"]),
        ({"eos_token_id": [2, 3]}, ["'eos_token_id' is [2, 3], but [2] in config.json"]),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 2}, []),
        ({"do_sample": False, "temperature": 1.0, "top_k": 50}, []),
    ],
)
def test_contradictory_settings(tmp_path: Path, settings: dict[str, Any], expected: list[str]) -> None:
    model = write_llama(tmp_path / "a", eos_token_id=2)
    write(model, "generation_config.json", **settings)
    texts = findings(model)
    assert len(texts) == len(expected)
    for text, start in zip(texts, expected, strict=True):
        assert text.startswith(f"warning: generation_config.json: {start}")
    assert reasons(model)["generation settings"] is None


def test_the_demo_models_are_sound() -> None:
    assert verify(demo_models().base, quick=True).warnings == ()
