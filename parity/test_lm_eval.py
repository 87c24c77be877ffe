"""lm-evaluation-harness on a local task: our adapter, and our own multiple choice, give the same accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs
from lm_eval.utils import apply_template

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.score.choices import read_questions
from lbrx.jobs.score.likelihood import likelihoods, rolling_requests
from lbrx.models.inference import open_model
from lbrx.models.tokenizers.text import open_tokenizer

SHIPPED = demo_models()
METRICS = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]


def questions() -> list[dict[str, Any]]:
    """Sentences of a text whose ends must be told from the same words in another order."""
    random = np.random.default_rng(0)
    sentences = SHIPPED.prose_text.read_text(encoding="utf-8")[:6000].replace("\n", " ").split(". ")
    sentences = [each.strip() for each in sentences if len(each.split()) >= 10]
    halves = [(" ".join(words[:6]), " ".join(words[6:])) for words in map(str.split, sentences)]
    rows = []
    for number, (start, end) in enumerate(halves):
        others = [" ".join(random.permutation(end.split())) for _ in range(3)]
        endings = [*others[: number % 4], end, *others[number % 4 :]]
        rows.append({"ctx": start, "endings": endings, "label": number % 4})
    return rows


@pytest.fixture(scope="module")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions()), encoding="utf-8")
    return path


def task(path: Path) -> ConfigurableTask:
    return ConfigurableTask(
        config={
            "task": "ends",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(path)}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{ctx}}",
            "doc_to_choice": "{{endings}}",
            "doc_to_target": "{{label}}",
            "metric_list": METRICS,
        }
    )


def accuracies(model: Any, path: Path) -> tuple[float, float]:
    found = lm_eval.simple_evaluate(model=model, tasks=[task(path)], bootstrap_iters=0)["results"]["ends"]
    return found["acc,none"], found["acc_norm,none"]


def test_the_harness_finds_the_accuracy_of_lbrx_score(task_file: Path) -> None:
    (ours,) = lbrx.score_choices(SHIPPED.prose, task_file)
    assert ours.questions >= 30
    assert 0.3 < ours.accuracy.value < 1
    harness = accuracies(lbrx.lm_eval.LbrxLM(SHIPPED.prose), task_file)
    assert harness == pytest.approx((ours.accuracy.value, ours.accuracy_normalized.value))


def test_transformers_in_the_harness_finds_the_same(task_file: Path) -> None:
    peer = HFLM(pretrained=str(SHIPPED.prose), dtype="float32", device="cpu", batch_size=1)
    assert accuracies(peer, task_file) == pytest.approx(accuracies(lbrx.lm_eval.LbrxLM(SHIPPED.prose), task_file))


def test_rolling_likelihoods_are_those_of_transformers() -> None:
    text = SHIPPED.prose_text.read_text(encoding="utf-8")[:3000]
    peer = HFLM(pretrained=str(SHIPPED.prose), dtype="float32", device="cpu", batch_size=1)
    request = lm_eval.api.instance.Instance("loglikelihood_rolling", {}, (text,), 0)
    with torch.no_grad():
        (expected,) = peer.loglikelihood_rolling([request])
    (found,) = lbrx.lm_eval.LbrxLM(SHIPPED.prose).loglikelihood_rolling([request])
    assert found == pytest.approx(expected, rel=1e-4)
    model, tokenizer = open_model(SHIPPED.prose), open_tokenizer(SHIPPED.prose)
    windows = list(rolling_requests(tokenizer, text, model.spec.context_length))
    assert found == pytest.approx(np.sum([one.value for one in likelihoods(model, windows)]))


def test_text_is_generated_until_a_mark() -> None:
    request = lm_eval.api.instance.Instance(
        "generate_until", {}, ("And the king", {"until": [",", "."], "max_gen_toks": 40}), 0
    )
    (found,) = lbrx.lm_eval.LbrxLM(SHIPPED.prose).generate_until([request])
    assert found
    assert "," not in found
    whole = lbrx.generate(SHIPPED.prose, "And the king", max_tokens=40)
    assert whole.startswith(found)


TASKS = Path(lm_eval.__file__).parent / "tasks"


def configs(folder: str) -> list[dict[str, Any]]:
    """The configurations of tasks, without the functions that they name."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _loader, _node: None)  # type: ignore[attr-defined]
    paths = sorted((TASKS / folder).glob("*yaml"))
    return [yaml.load(path.read_text(encoding="utf-8"), loader) for path in paths]


def test_questions_of_mmlu_are_those_of_the_harness(tmp_path: Path) -> None:
    row = {"question": " What is 2+2?\n", "choices": ["3", "4", "five", "6"], "answer": 1}
    (template,) = (each["doc_to_text"] for each in configs("mmlu/default") if "doc_to_text" in each)
    subjects = [each for each in configs("mmlu/default") if "dataset_name" in each and "description" in each]
    assert len(subjects) == 57
    path = tmp_path / "mmlu.jsonl"
    rows = [{**row, "subject": each["dataset_name"]} for each in subjects]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    found = read_questions(path)
    for question, subject in zip(found, subjects, strict=True):
        assert question.prompt == subject["description"] + apply_template(template, row)
        assert (question.choices, question.answer) == ((" A", " B", " C", " D"), 1)


def test_questions_of_arc_and_hellaswag_are_those_of_the_harness(tmp_path: Path) -> None:
    arc = {"question": "Why? ", "choices": {"text": ["x", "y "], "label": ["A", "B"]}, "answerKey": "B"}
    swag = {
        "activity_label": "Baking",
        "ctx_a": " A man [header] cuts  bread.",
        "ctx_b": "the Man",
        "ctx": "A man [header] cuts  bread. the Man",
        "endings": ["eats [step] it.", "goes [title] away. "],
        "label": "1",
    }
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(arc) + "\n" + json.dumps(swag) + "\n", encoding="utf-8")
    first, second = read_questions(path)
    config = next(each for each in configs("arc") if each["task"] == "arc_easy")
    assert first.prompt == apply_template(config["doc_to_text"], arc)
    assert first.choices == (" x", " y ")
    assert first.answer == int(apply_template(config["doc_to_target"], arc))
    (expected,) = process_docs(Dataset.from_list([swag]))
    assert second.prompt == expected["query"]
    assert second.choices == tuple(f" {each}" for each in expected["choices"])
    assert second.answer == expected["gold"]
