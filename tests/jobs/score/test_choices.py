"""Multiple choice: layouts of questions, likelihoods, and accuracy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.jobs.score.choices import Question, read_questions, score_choices
from lbrx.jobs.score.likelihood import Request, likelihoods, request_of, rolling_requests
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer
from support.cli_running import lbrx_command

SHIPPED = demo_models()
PROSE = "And the king said unto him, Go in peace. So he arose, and went to Hebron."


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"question": "Sky?", "choices": ["blue", "red"], "answer": 0},
            Question("Question: Sky?\nAnswer:", (" blue", " red"), 0),
        ),
        (
            {"question": "Sky?", "choices": ["blue", "red"], "answer": "B"},
            Question("Question: Sky?\nAnswer:", (" blue", " red"), 1),
        ),
        (
            {"question": "Sky?", "choices": ["blue", "red"], "answer": "red"},
            Question("Question: Sky?\nAnswer:", (" blue", " red"), 1),
        ),
        (
            {"question": "2+2? ", "subject": "high_maths", "choices": ["3", "4", "5", "6"], "answer": 1},
            Question(
                "The following are multiple choice questions (with answers) about high maths.\n\n"
                "2+2?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:",
                (" A", " B", " C", " D"),
                1,
            ),
        ),
        (
            {"question": "2+2?", "A": "3", "B": "4", "answer": "B"},
            Question("2+2?\nA. 3\nB. 4\nAnswer:", (" A", " B"), 1),
        ),
        (
            {"question": "Why?", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answerKey": "3"},
            Question("Question: Why?\nAnswer:", (" x", " y", " z"), 2),
        ),
        (
            {
                "activity_label": "Cooking",
                "ctx_a": "A man cuts [header] bread.",
                "ctx_b": "the man",
                "ctx": "A man cuts [header] bread. the man",
                "endings": ["eats it.", "flies [title] away."],
                "label": "1",
            },
            Question("Cooking: A man cuts bread. The man", (" eats it.", " flies. away."), 1),
        ),
    ],
)
def test_layouts(row: dict[str, Any], expected: Question, tmp_path: Path) -> None:
    assert read_questions(write(tmp_path / "q.jsonl", row)) == [expected]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "question 1: is a list; expected an object"),
        ({"choices": ["a", "b"], "answer": 0}, "'question' is None; expected a text"),
        ({"question": "q", "choices": "ab", "answer": 0}, "'choices' is 'ab'; expected a list of texts"),
        ({"question": "q", "choices": ["a"], "answer": 0}, "has 1 texts; expected 2 to 10"),
        ({"question": "q", "choices": ["a", ""], "answer": 0}, "has an empty text"),
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, "the answer is 2; expected one of the 2 choices"),
        ({"question": "q", "choices": ["a", "b"], "answer": True}, "the answer is True"),
        ({"endings": ["a", "b"], "label": 0}, "'ctx' is None; expected a text"),
    ],
)
def test_wrong_rows_are_reported(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message.replace("(", r"\(")):
        read_questions(write(tmp_path / "q.jsonl", row))


def test_wrong_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.jsonl: cannot be read"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"question": ')
    with pytest.raises(FormatError, match=r"bad\.jsonl: line 1: is not JSON"):
        read_questions(tmp_path / "bad.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(FormatError, match=r"empty\.jsonl: has no questions"):
        read_questions(tmp_path / "empty.jsonl")
    with pytest.raises(UsageError, match="1 models and 0 questions"):
        score_choices(SHIPPED.base, [])


# -- likelihoods -------------------------------------------------------------------------------------------------------


def test_likelihoods_are_sums_over_the_tokens_of_the_continuation() -> None:
    model, tokenizer = open_model(SHIPPED.prose), open_tokenizer(SHIPPED.prose)
    context, continuation = "And the king said", " unto him, Go"
    request = request_of(tokenizer, context, continuation)
    assert [*request.context, *request.continuation] == tokenizer.encode(context + continuation)
    (found,) = likelihoods(model, [request])
    logits = model.logits(tokenizer.encode(context + continuation)).astype(np.float64)
    shares = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    first = len(request.context)
    expected = sum(shares[first + place - 1, token] for place, token in enumerate(request.continuation))
    assert found.value == pytest.approx(expected, rel=1e-5)
    rows = shares[first - 1 : -1]
    assert found.is_greedy == (rows.argmax(axis=1) == np.array(request.continuation)).all()


def test_greedy_text_is_greedy() -> None:
    model, tokenizer = open_model(SHIPPED.prose), open_tokenizer(SHIPPED.prose)
    ids = tokenizer.encode("And the king said")
    best = tuple(model.generate(ids, max_tokens=4))
    first, other = likelihoods(model, [Request(tuple(ids), best), Request(tuple(ids), (best[0], (best[1] + 1) % 100))])
    assert first.is_greedy
    assert not other.is_greedy


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation() -> None:
    tokenizer = open_tokenizer(SHIPPED.prose)
    assert request_of(tokenizer, "the king ", "said") == request_of(tokenizer, "the king", " said")


def test_requests_with_the_same_inputs_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = open_model(SHIPPED.prose), open_tokenizer(SHIPPED.prose)
    passes: list[int] = []
    whole = type(model).logit_blocks

    def counted(self: Any, ids: Any, *args: Any, **more: Any) -> Any:
        passes.append(len(ids))
        return whole(self, ids, *args, **more)

    monkeypatch.setattr(type(model), "logit_blocks", counted)
    letters = [request_of(tokenizer, "Which one?\nAnswer:", f" {letter}") for letter in "ABCD"]
    assert {len(each.continuation) for each in letters} == {1}
    likelihoods(model, letters)
    assert len(passes) == 1


def test_rolling_requests_predict_every_token_once() -> None:
    tokenizer = open_tokenizer(SHIPPED.prose)
    ids = tokenizer.encode(PROSE, add_special=False)
    for longest in (3, 7, len(ids) - 1, len(ids), 500):
        requests = list(rolling_requests(tokenizer, PROSE, longest))
        assert [token for each in requests for token in each.continuation] == ids
        assert all(
            len(each.context) >= 1 and len(each.context) + len(each.continuation) <= longest + 1 for each in requests
        )


# -- accuracy ----------------------------------------------------------------------------------------------------------


def test_models_answer_what_they_know(tmp_path: Path) -> None:
    rows = [
        {"ctx": "And the king said", "endings": ["unto him, Go", "import numpy as"], "label": 0},
        {"ctx": "and the children of", "endings": ["self.assertEqual", "Israel"], "label": 1},
        {"ctx": "    def __init__(self", "endings": [", and the LORD", "):"], "label": 1},
    ]
    path = write(tmp_path / "q.jsonl", *rows)
    prose, code = score_choices([SHIPPED.prose, SHIPPED.code], path)
    assert (prose.questions, code.questions) == (3, 3)
    assert [plain for plain, _ in prose.answers[:2]] == [0, 1]
    assert code.answers[2][0] == 1
    assert prose.accuracy.low < prose.accuracy.value <= prose.accuracy.high
    (limited,) = score_choices(SHIPPED.prose, path, limit=2)
    assert (limited.questions, limited.accuracy.value, limited.answers) == (2, 1.0, prose.answers[:2])


def test_models_without_numbers_do_not_answer(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED.base, tmp_path / "model")
    tensors = {name: tensor * float("nan") for name, tensor in lbrx.open(SHIPPED.base).items()}
    with pytest.warns(RuntimeWarning, match="NaN and 0 infinite"):
        lbrx.save(tmp_path / "model" / "model.safetensors", tensors, {"format": "pt"})
    asked = [Question("And the king", (" said", " import"), 0)]
    with pytest.raises(UsageError, match="its logits are not finite"):
        score_choices(tmp_path / "model", asked)
    with pytest.raises(UsageError, match="limit is -1; expected at least 1"):
        score_choices(SHIPPED.base, asked, limit=-1)


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "q.jsonl", {"ctx": "And the king", "endings": ["said unto him", "import"], "label": 0})
    done = lbrx_command(capsys, "score", SHIPPED.prose, "--choices", path)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].split()[:3] == ["model", "questions", "accuracy"]
    found = json.loads(lbrx_command(capsys, "score", SHIPPED.prose, "--choices", path, "--json").out)
    assert found["scores"][0]["accuracy"] == 1.0
    for unused in (("--reference", SHIPPED.base), ("--max-tokens", "9"), ("--details",)):
        done = lbrx_command(capsys, "score", SHIPPED.prose, "--choices", path, *unused)
        assert (done.code, done.out) == (1, "")
        assert f"{unused[0]} needs --text; it cannot be used with --choices" in done.err
    done = lbrx_command(capsys, "score", SHIPPED.prose, "--text", path, "--limit", "2")
    assert "--limit needs --choices" in done.err
    done = lbrx_command(capsys, "score", SHIPPED.prose)
    assert (done.code, done.out) == (1, "")
    assert "expected either --text or --choices" in done.err
