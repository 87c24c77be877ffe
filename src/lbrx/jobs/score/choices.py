"""Multiple choice: which of several answers does a model find most likely?

Questions are lines of JSON, or rows of a parquet file, in one of these layouts:

- ``question``, ``choices`` and ``answer`` (the number of the right choice, its letter, or its text);
- MMLU: as above, with ``subject``, or with the letters ``A`` to ``D`` as keys;
- ARC: ``question``, ``choices`` with ``text`` and ``label``, and ``answerKey``;
- HellaSwag: ``ctx`` (or ``ctx_a`` and ``ctx_b``), ``endings`` and ``label``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FileError, FormatError, UsageError
from lbrx.files.output.options import CountCallback
from lbrx.jobs.score.likelihood import Likelihood, likelihoods, request_of
from lbrx.jobs.score.statistics import Estimate, share_estimate
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer
from lbrx.settings import using

LETTERS = "ABCDEFGHIJ"
_MOST_QUESTION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the texts that may follow it, and the number of the right one."""

    prompt: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The share of questions that a model answers correctly.

    ``accuracy`` takes the choice with the highest log-likelihood, ``accuracy_normalized`` the one with the highest
    log-likelihood per character. ``answers`` are the choices of both for every question.
    """

    model: Path
    questions: int
    accuracy: Estimate
    accuracy_normalized: Estimate
    answers: tuple[tuple[int, int], ...]
    loss: float


def score_choices(
    models: str | PathLike[str] | Sequence[str | PathLike[str]],
    questions: str | PathLike[str] | Sequence[Question],
    *,
    limit: int | None = None,
    progress: CountCallback | None = None,
    threads: int | None = None,
) -> list[ChoiceScore]:
    """Let models answer questions: a list, or a file of JSON lines or parquet. ``limit`` takes only the first ones.

    >>> from lbrx.demo.models import demo_models
    >>> asked = [Question("And the king", (" said unto him", " import numpy"), 0)]
    >>> [score] = score_choices(demo_models().prose, asked)
    >>> score.accuracy.value
    1.0
    """
    paths = [Path(one) for one in ([models] if isinstance(models, str | PathLike) else models)]
    asked = read_questions(Path(questions)) if isinstance(questions, str | PathLike) else list(questions)
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; expected at least 1")
    asked = asked[:limit]
    if not paths or not asked:
        raise UsageError(f"{len(paths)} models and {len(asked)} questions; expected at least one of each")
    total, finished = len(paths) * sum(len(each.choices) for each in asked), 0
    scores = []
    for path in paths:

        def step(count: int, path: Path = path) -> None:
            nonlocal finished
            finished += count
            if progress is not None:
                progress(finished, total, str(path))

        with using(threads=threads):
            scores.append(_answered(path, asked, step))
    return scores


def _answered(path: Path, questions: Sequence[Question], step: Any) -> ChoiceScore:
    model, tokenizer = open_model(path), open_tokenizer(path)
    answers: list[tuple[int, int]] = []
    plain = normalized = 0
    loss = 0.0
    for question in questions:
        requests = [request_of(tokenizer, question.prompt, choice) for choice in question.choices]
        found = likelihoods(model, requests, step)
        answer = _best(found, [1.0] * len(found)), _best(found, [_length(text) for text in question.choices])
        answers.append(answer)
        plain += answer[0] == question.answer
        normalized += answer[1] == question.answer
        loss -= found[question.answer].value / len(requests[question.answer].continuation)
    count = len(questions)
    shares = share_estimate(plain, count), share_estimate(normalized, count)
    return ChoiceScore(path, count, *shares, tuple(answers), loss / count)


def _length(choice: str) -> float:
    """The number of characters, without the space that separates the choice from the prompt."""
    return float(len(choice) - choice.startswith(" "))


def _best(found: Sequence[Likelihood], lengths: Sequence[float]) -> int:
    values = [one.value / length for one, length in zip(found, lengths, strict=True)]
    return values.index(max(values))


# -- files -------------------------------------------------------------------------------------------------------------


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a file of JSON lines or parquet."""
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    questions = []
    for number, row in enumerate(rows, start=1):
        where = f"{path}: question {number}"
        if not isinstance(row, Mapping):
            raise FormatError(f"{where}: is a {type(row).__name__}; expected an object with a question and choices")
        questions.append(_question(row, where))
    if not questions:
        raise FormatError(f"{path}: has no questions; expected one JSON object per line")
    return questions


def _json_rows(path: Path) -> Iterable[Any]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if len(line) > _MOST_QUESTION_BYTES:
                    raise FormatError(f"{path}: line {number} has {len(line)} bytes; expected at most 1 MiB")
                if line.strip():
                    yield _parsed(line, f"{path}: line {number}")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON: {error}") from error


def _parquet_rows(path: Path) -> Iterable[Any]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            f"{path}: reading parquet needs pyarrow; install it, or convert the file to JSON lines"
        ) from error
    if not path.is_file():
        raise FileError(f"{path}: does not exist")
    try:
        rows: list[Any] = parquet.read_table(path).to_pylist()
    except Exception as error:
        raise FormatError(f"{path}: cannot be read as parquet: {error}") from error
    return rows


def _question(row: Mapping[str, Any], where: str) -> Question:
    if "endings" in row:
        return _completion(row, where)
    text = row.get("question")
    choices: Any = row.get("choices")
    if choices is None and all(letter in row for letter in LETTERS[:2]):
        choices = [row[letter] for letter in LETTERS if letter in row]
    labels: Any = None
    if isinstance(choices, Mapping):
        choices, labels = choices.get("text"), choices.get("label")
    answer = row.get("answer", row.get("answerKey", row.get("label")))
    checked = _texts(choices, f"{where}: 'choices'")
    if not isinstance(text, str):
        raise FormatError(f"{where}: 'question' is {text!r:.60}; expected a text")
    number = _answer(answer, checked, labels, where)
    if "subject" in row or ("answerKey" not in row and "A" in row):  # MMLU: the letters are the choices
        lines = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, checked, strict=False))
        prompt = f"{_about(row.get('subject'))}{text.strip()}\n{lines}Answer:"
        return Question(prompt, tuple(f" {each}" for each in LETTERS[: len(checked)]), number)
    return Question(f"Question: {text}\nAnswer:", tuple(f" {choice}" for choice in checked), number)


def _about(subject: object) -> str:
    """The line before a question of MMLU."""
    if not isinstance(subject, str):
        return ""
    return f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"


def _completion(row: Mapping[str, Any], where: str) -> Question:
    """A text and its possible ends, as in HellaSwag."""
    endings = _texts(row["endings"], f"{where}: 'endings'")
    context = row.get("ctx")
    if isinstance(row.get("ctx_a"), str):  # rows of HellaSwag also have ctx, with another case
        context = f"{row['ctx_a']} {str(row.get('ctx_b', '')).capitalize()}".strip()
    if not isinstance(context, str):
        raise FormatError(f"{where}: 'ctx' is {context!r:.60}; expected a text")
    if isinstance(row.get("activity_label"), str):
        context = f"{row['activity_label']}: {context}"
    number = _answer(row.get("label"), endings, None, where)
    return Question(_cleaned(context), tuple(f" {_cleaned(each)}" for each in endings), number)


def _cleaned(text: str) -> str:
    """Text without the marks of WikiHow titles."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _texts(values: Any, where: str) -> list[str]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(isinstance(each, str) for each in values):
        raise FormatError(f"{where} is {values!r:.60}; expected a list of texts")
    if not 2 <= len(values) <= len(LETTERS):
        raise FormatError(f"{where} has {len(values)} texts; expected 2 to {len(LETTERS)}")
    if not all(values):
        raise FormatError(f"{where} has an empty text")
    return list(values)


def _answer(answer: Any, choices: Sequence[str], labels: Any, where: str) -> int:
    if isinstance(labels, Sequence) and not isinstance(labels, str) and answer in labels:
        return list(labels).index(answer)
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, str) and len(answer) == 1 and answer in LETTERS[: len(choices)]:
        return LETTERS.index(answer)
    if isinstance(answer, str) and answer.isdecimal():
        answer = int(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise FormatError(f"{where}: the answer is {answer!r:.60}; expected one of the {len(choices)} choices")
