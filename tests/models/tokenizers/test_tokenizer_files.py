"""Reading tokenizers and chat templates of directories, and the files that the output gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbrx.errors import FileError, FormatError
from lbrx.jobs.merge.recipe import TokenizerSpec
from lbrx.jobs.merge.recipe.tokenizer import CHAT_TEMPLATES
from lbrx.jobs.merge.vocabulary import plan_vocabulary, tokenizer_changes
from lbrx.models.tokenizers.chat_templates import TEMPLATES, find_template, most_common_template
from lbrx.models.tokenizers.tokenizer_file import read_tokenizer
from support.small_vocabularies import special, vocabulary, word_tokenizer

FIRST = word_tokenizer(["<unk>", "red"], [special("<s>")])
SECOND = word_tokenizer(["<unk>", "blue"], [special("<end>")])


def directory(path: Path, **files: str) -> Path:
    """A directory with these files; ``__`` in a keyword stands for the dot of the file's name."""
    path.mkdir()
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


def test_reading_the_tokenizer_of_a_directory(tmp_path: Path) -> None:
    found = read_tokenizer(directory(tmp_path / "m", tokenizer__json=FIRST.text))
    assert found is not None
    assert found.ids == {"<unk>": 0, "red": 1, "<s>": 2}
    assert found.added["<s>"].special
    assert found.end == 3
    assert read_tokenizer(directory(tmp_path / "none")) is None


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "vocab.txt"])
def test_a_tokenizer_of_another_kind_only(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(FileError, match=rf"has {name}, .*, but no tokenizer\.json, which is needed to match tokens"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"type": "Nope"}}'])
def test_a_broken_tokenizer(tmp_path: Path, text: str) -> None:
    model = directory(tmp_path / "m", tokenizer__json=text)
    with pytest.raises(FormatError, match=r"tokenizer\.json: is not a tokenizer that the tokenizers library can read"):
        read_tokenizer(model)


def test_a_tokenizer_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match=r"tokenizer\.json: cannot be read as text"):
        read_tokenizer(tmp_path)


def test_nothing_changes_for_an_unchanged_tokenizer(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", tokenizer__json=FIRST.text, tokenizer_config__json="{}")
    plan = plan_vocabulary(TokenizerSpec("union"), [vocabulary("a", FIRST, 3)])
    assert tokenizer_changes(model, vocabulary=plan) == {}


def test_the_files_of_a_union(tmp_path: Path) -> None:
    settings = {"bos_token": "<s>", "added_tokens_decoder": {"2": {"content": "<s>"}}}
    model = directory(
        tmp_path / "m",
        tokenizer__json=FIRST.text,
        tokenizer_config__json=json.dumps(settings),
        added_tokens__json='{"<s>": 2}',
        tokenizer__model="pieces",
    )
    plan = plan_vocabulary(TokenizerSpec("union"), [vocabulary("a", FIRST, 3), vocabulary("b", SECOND, 3)])
    changes = {name: content for name, content in tokenizer_changes(model, vocabulary=plan).items() if content}
    assert sorted(changes) == ["added_tokens.json", "tokenizer.json", "tokenizer_config.json"]
    written = read_tokenizer(directory(tmp_path / "out", tokenizer__json=changes["tokenizer.json"].decode()))
    assert written is not None
    assert written.ids == {"<unk>": 0, "red": 1, "<s>": 2, "blue": 3, "<end>": 4}
    assert json.loads(changes["added_tokens.json"]) == {"<s>": 2, "blue": 3, "<end>": 4}
    config = json.loads(changes["tokenizer_config.json"])
    assert config["bos_token"] == "<s>"
    decoder = config["added_tokens_decoder"]
    assert {token_id: entry["content"] for token_id, entry in decoder.items()} == {
        "2": "<s>",
        "3": "blue",
        "4": "<end>",
    }
    assert [entry["special"] for entry in decoder.values()] == [True, False, True]


def test_other_vocabularies_are_left_out_when_tokens_are(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", tokenizer__json=FIRST.text, tokenizer__model="pieces", vocab__json="{}")
    plan = plan_vocabulary(TokenizerSpec("union"), [vocabulary("a", FIRST, 1)])
    changes = tokenizer_changes(model, vocabulary=plan)
    assert changes["tokenizer.model"] is None
    assert changes["vocab.json"] is None
    assert changes["tokenizer.json"] == plan.tokenizer.text.encode()


def test_a_chat_template_goes_into_both_places(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", tokenizer_config__json='{"bos_token": "<s>"}', chat_template__json="{}")
    changes = tokenizer_changes(model, template="{{ messages }}")
    assert json.loads(changes["tokenizer_config.json"] or b"") == {
        "bos_token": "<s>",
        "chat_template": "{{ messages }}",
    }
    assert changes["chat_template.jinja"] == b"{{ messages }}"
    assert changes["chat_template.json"] is None


def test_every_name_that_recipes_know_has_a_template() -> None:
    assert set(TEMPLATES) == set(CHAT_TEMPLATES)
    markers = {
        "alpaca": "### Instruction:",
        "chatml": "<|im_start|>",
        "exaone": "[|endofturn|]",
        "llama3": "<|eot_id|>",
        "mistral": "[INST]",
    }
    for name, marker in markers.items():
        assert marker in (find_template(name, []) or "")


def test_the_most_common_template(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "no"}, {"name": "default", "template": " two "}]
    models = [
        directory(tmp_path / "one", chat_template__jinja="one\n", tokenizer_config__json='{"chat_template": "two"}'),
        directory(tmp_path / "two", tokenizer_config__json=json.dumps({"chat_template": several})),
        directory(tmp_path / "three", chat_template__json='{"chat_template": "two"}'),
        directory(tmp_path / "none"),
    ]
    assert find_template("auto", models) == "two"
    assert most_common_template(models[:2]) == "one"  # of equally many the first
    assert most_common_template(models[3:]) is None
    assert most_common_template(
        [directory(tmp_path / "d", tokenizer_config__json='{"chat_template": {"default": "x"}}')]
    )
