"""A conversation: turns, kept keys and values, and limits. Sampling with a least probability and against repetition."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.models.inference import Sampling, Speed, open_model
from lbrx.models.inference.chat import Chat
from lbrx.models.inference.sampling import Sampler
from lbrx.models.tokenizers.text import open_tokenizer

MODEL = demo_models().prose
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def expected_answer(text: str, max_tokens: int) -> str:
    """What the model makes of a text, without a cache."""
    tokenizer = open_tokenizer(MODEL)
    ids = tokenizer.encode(text, add_special=False)
    new = list(open_model(MODEL).generate(ids, max_tokens, stop_ids=tokenizer.stop_ids))
    return tokenizer.decode([*ids, *new])[len(tokenizer.decode(ids)) :]


def test_each_answer_continues_the_whole_conversation() -> None:
    with Chat(MODEL, template=TEMPLATE, max_tokens=8, system="Be kind.") as chat:
        first = "".join(chat.reply("And the king said"))
        assert first == expected_answer("system: Be kind.\nuser: And the king said\nassistant:", 8)
        second = "".join(chat.reply("Go on"))
        before = f"system: Be kind.\nuser: And the king said\nassistant: {first}\nuser: Go on\nassistant:"
        assert second == expected_answer(before, 8)
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
        assert chat.messages[1]["content"] == first


def test_a_conversation_keeps_the_precision_that_it_began_with(tmp_path: Path) -> None:
    lbrx.quantize(MODEL, tmp_path / "m.gguf", to="q4_0", allow_requantize=True)
    text = "And the king said unto the people of the land"

    def begun(bits: int) -> Chat:
        with lbrx.using(activation_bits=bits):
            return Chat(tmp_path / "m.gguf", template=TEMPLATE, max_tokens=8)

    def keys_after(chat: Chat) -> np.ndarray:
        list(chat.reply(text))
        return chat._cache.layers[-1].keys[:, : chat.cached_tokens].copy()

    with begun(8) as chat, begun(8) as same, begun(16) as other:
        coarse = keys_after(chat)
        with lbrx.using(activation_bits=8):
            np.testing.assert_array_equal(keys_after(same), coarse)
        fine = keys_after(other)
        shared = min(fine.shape[1], coarse.shape[1])
        assert not np.array_equal(fine[:, :shared], coarse[:, :shared])


def test_keys_and_values_of_earlier_turns_are_kept() -> None:
    with Chat(MODEL, template=TEMPLATE, max_tokens=8) as chat:
        speeds = [Speed(), Speed(), Speed()]
        for speed, text in zip(speeds, ("And the king said unto the people of the land", "Go on", "More"), strict=True):
            list(chat.reply(text, speed=speed))
        whole = len(open_tokenizer(MODEL).encode(chat._prompter._template.render(chat.messages), add_special=False))
        assert all(speed.prompt_tokens < 25 for speed in speeds[1:])
        assert whole > sum(speed.prompt_tokens for speed in speeds[1:])
        assert chat.cached_tokens > 40
        chat.reset()
        assert (chat.cached_tokens, chat.messages) == (0, [])


def test_an_answer_that_is_not_read_to_its_end_is_cut_there() -> None:
    with Chat(MODEL, template=TEMPLATE, max_tokens=20) as chat:
        answer = chat.reply("And the king said")
        pieces = [next(answer), next(answer)]
        answer.close()
        assert chat.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
        again = "".join(chat.reply("Go on"))
    assert again == expected_answer(
        f"user: And the king said\nassistant: {''.join(pieces)}\nuser: Go on\nassistant:", 20
    )


def test_an_answer_that_is_not_read_at_all_leaves_no_message() -> None:
    with Chat(MODEL, template=TEMPLATE, max_tokens=4) as chat:
        chat.reply("never read").close()
        assert chat.messages == []


def test_the_oldest_turns_are_left_out_but_not_the_system_message() -> None:
    with Chat(MODEL, template=TEMPLATE, max_tokens=4, system="Be kind.", context=60) as chat:
        for number in range(6):
            assert list(chat.reply(f"turn {number} of a long conversation"))
            assert chat.cached_tokens <= 60
        assert len(chat.messages) == 12
        assert 0 < chat.left_out < 12
        assert chat.left_out % 2 == 0
        visible = chat._visible(chat.messages, chat.left_out)
        assert visible[0] == {"role": "system", "content": "Be kind."}
        assert visible[1] == chat.messages[chat.left_out]
        with pytest.raises(UsageError, match=r"the message has \d+ tokens, but the model sees 60 at a time"):
            chat.reply("word " * 100)
        assert len(chat.messages) == 12


def test_ids_of_generation_config_end_an_answer(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(MODEL, directory)
    with Chat(directory, template=TEMPLATE, max_tokens=8) as chat:
        "".join(chat.reply("And the king said"))
        stop = chat._cached[-2:]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop[0], 1_000_000]}))
    with Chat(directory, template=TEMPLATE, max_tokens=8) as chat:
        "".join(chat.reply("And the king said"))
        assert stop[0] not in chat._cached[-6:]
        assert len(chat.messages[-1]["content"]) < len(expected_answer("user: And the king said\nassistant:", 8))


def test_generate_answers_a_message() -> None:
    text = lbrx.generate(MODEL, "And the king said", chat=True, template=TEMPLATE, system="Be kind.", max_tokens=8)
    assert text == expected_answer("system: Be kind.\nuser: And the king said\nassistant:", 8)
    with pytest.raises(UsageError, match="need chat=True"):
        lbrx.generate(MODEL, "a", system="Be kind.")


def test_turns_sample_with_seeds_of_their_own() -> None:
    answers = []
    for seed in (1, 1, 2):
        with Chat(MODEL, template=TEMPLATE, max_tokens=8, temperature=1.5, seed=seed) as chat:
            answers.append([*chat.reply("And the king said"), *chat.reply("Go on")])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"context": 1}, "context is 1; expected 2 to"),
        ({"context": 1 << 30}, r"context is \d+; expected 2 to"),
        ({"min_p": 2.0}, "min_p is 2.0; expected 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; expected more than 0"),
        ({"template": "nothing"}, "there is no chat template 'nothing'"),
        ({"template": None}, "has no chat template"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Chat(MODEL, **{"template": TEMPLATE, **options})  # type: ignore[arg-type]


def test_a_template_without_text() -> None:
    with Chat(MODEL, template="{# nothing #}{{ '' }}") as chat, pytest.raises(UsageError, match="makes no text"):
        chat.reply("a")


# -- sampling ---------------------------------------------------------------------------------------------------------

LOGITS = np.array([2.0, 1.0, -1.0, 0.0, 1.9], np.float32)


def drawn(sampling: dict[str, float], seen: tuple[int, ...] = (), count: int = 300) -> set[int]:
    tokens = set()
    for seed in range(count):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed, **sampling))  # type: ignore[arg-type]
        sampler.see(seen)
        tokens.add(sampler.draw(LOGITS))
    return tokens


def test_min_p_drops_tokens_far_below_the_likeliest() -> None:
    assert drawn({}) == {0, 1, 2, 3, 4}
    assert drawn({"min_p": 0.5}) == {0, 4}  # exp(-0.1) and exp(-1) = 0.37
    assert drawn({"min_p": 0.3}) == {0, 1, 4}
    assert drawn({"min_p": 1.0}) == {0}


def test_a_penalty_makes_seen_tokens_less_likely() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert [sampler.draw(LOGITS) for _ in range(5)] == [0, 4, 0, 0, 0]  # 2.0, 1.9, then 2.0 / 2 = 1.0 like token 1
    sampler = Sampler(Sampling(repetition_penalty=4.0))
    sampler.see((0, 4))
    assert sampler.draw(LOGITS) == 1
    assert drawn({"repetition_penalty": 50.0, "min_p": 0.5}, (0, 1, 4)) == {0, 1, 3, 4}


def test_a_penalty_does_not_change_logits() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    sampler.see((0, 1))
    logits = LOGITS.copy()
    sampler.draw(logits)
    assert np.array_equal(logits, LOGITS)
