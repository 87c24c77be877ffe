"""Chat templates of real models render as in transformers, and sampling keeps the tokens that transformers keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peer_sources import llama_cpp_sources
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.chat_template_utils import render_jinja_template

from lbrx.errors import LbrxError
from lbrx.models.inference import Sampling
from lbrx.models.inference.sampling import Sampler
from lbrx.models.tokenizers.chat_rendering import ChatTemplate
from lbrx.models.tokenizers.chat_templates import TEMPLATES

FILES = {path.stem: path for path in sorted((llama_cpp_sources() / "models" / "templates").glob("*.jinja"))}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather in a city <b>&</b> "now"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "A name: Zürich"},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    }
]
_CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one": {"messages": [{"role": "user", "content": " Hello, <b>wörld</b>! \n"}]},
    "turns": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b\n"},
            {"role": "user", "content": "c {{ d }} {% e %}"},
        ]
    },
    "system": {
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "a"}],
    },
    "continued": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "add_generation_prompt": False,
    },
    "thinking": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "because"},
            {"role": "user", "content": "c"},
        ],
        "enable_thinking": True,
    },
    "tools": {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS},
    "functions": {  # variables of older templates
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "weather", "description": "The weather", "parameters": {"properties": {}, "required": []}}],
        "functions": "[]",
        "datetime": "2026-01-02",
    },
    "calls": {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": '{"t": 20}', "tool_call_id": "call00001", "name": "weather"},
            {"role": "user", "content": "thanks"},
        ],
        "tools": TOOLS,
    },
}


def theirs(template: str, given: dict[str, Any]) -> str | None:
    options = {"add_generation_prompt": True, "tools": None, **given}
    messages = options.pop("messages")
    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, **SPECIAL, **options)
    except Exception:
        return None
    return str(rendered[0])


def ours(template: ChatTemplate, given: dict[str, Any]) -> str | None:
    options = dict(given)
    try:
        return template.render(options.pop("messages"), **options)
    except LbrxError:
        return None


def check(text: str) -> int:
    """Compare all conversations; return how many transformers renders."""
    with ChatTemplate(text, SPECIAL) as template:
        pairs = {name: (ours(template, given), theirs(text, given)) for name, given in CONVERSATIONS.items()}
    assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}
    return sum(pair[1] is not None for pair in pairs.values())


@pytest.mark.parametrize("name", FILES)
def test_templates_of_real_models(name: str) -> None:
    assert check(FILES[name].read_text(encoding="utf-8")) >= 1


def test_there_are_templates() -> None:
    assert len(FILES) > 60


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_have_a_name(name: str) -> None:
    assert check(TEMPLATES[name]) >= 3


@pytest.mark.parametrize("seed", range(8))
def test_sampling_keeps_the_tokens_of_transformers(seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(200) * 3).astype(np.float32)
    seen = random.integers(0, 200, 30)
    temperature, top_k, top_p, min_p, penalty = 0.8, 60, 0.9, 0.05, 1.3
    ids, scores = torch.tensor(seen)[None], torch.tensor(logits)[None]
    for step in (
        RepetitionPenaltyLogitsProcessor(penalty),
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
        MinPLogitsWarper(min_p),
    ):
        scores = step(ids, scores)
    probabilities = torch.softmax(scores[0].double(), -1).numpy()
    kept = set(np.flatnonzero(probabilities).tolist())
    counts = np.zeros(200)
    for draw in range(3000):
        sampler = Sampler(Sampling(temperature, top_k, top_p, draw, min_p, penalty))
        sampler.see(seen)
        counts[sampler.draw(logits)] += 1
    assert set(np.flatnonzero(counts).tolist()) <= kept
    assert np.abs(counts / counts.sum() - probabilities).max() < 0.04
