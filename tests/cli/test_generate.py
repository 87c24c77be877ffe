"""`lbrx generate`: words from a model."""

from __future__ import annotations

import io
import json
import re

import pytest

from lbrx.demo.models import demo_models
from lbrx.devices.metal.context.current import using_metal
from lbrx.devices.metal.context.profiler import ProfiledContext
from lbrx.models.inference import Sampling, open_model
from lbrx.models.tokenizers.text import open_tokenizer
from support.cli_running import lbrx_command
from support.devices import emulated_gpu
from support.metal_shaders import needs_clang

SHIPPED = demo_models()
PROMPT = "And the king said"


def test_the_text_is_the_prompt_and_what_the_model_makes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "--prompt", PROMPT, "--max-tokens", 12)
    tokenizer = open_tokenizer(SHIPPED.prose)
    ids = tokenizer.encode(PROMPT)
    new = list(open_model(SHIPPED.prose).generate(ids, 12, stop_ids=tokenizer.stop_ids))
    assert (done.code, done.err) == (0, "")
    assert done.out == tokenizer.decode([*ids, *new]) + "\n"
    assert len(done.out) > len(PROMPT) + 1


def test_seeds_draw_texts_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--temperature", 1.2, "--top-k", 200, "--top-p", 0.98, "--max-tokens", 16)
    texts = [
        lbrx_command(capsys, "generate", SHIPPED.code, "-p", "def ", *options, "--seed", seed).out for seed in (4, 4, 5)
    ]
    assert texts[0] == texts[1] != texts[2]
    tokenizer = open_tokenizer(SHIPPED.code)
    drawn = open_model(SHIPPED.code).generate(
        tokenizer.encode("def "), 16, Sampling(1.2, 200, 0.98, 4), stop_ids=tokenizer.stop_ids
    )
    assert texts[0] == "def " + tokenizer.decode(list(drawn)) + "\n"


def test_the_prompt_can_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 5).out
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
    assert lbrx_command(capsys, "generate", SHIPPED.prose, "-p", "-", "-n", 5).out == expected


def test_an_empty_prompt_begins_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", "", "-n", 8)
    assert done.code == 0
    assert len(done.out.strip()) > 0


def test_the_speed_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 3, "--stats")
    prompt, text = done.err.splitlines()
    tokens = len(open_tokenizer(SHIPPED.prose).encode(PROMPT))
    assert re.fullmatch(rf"prompt: {tokens} tokens in [\d.]+ s, [\d.]+ tokens/s", prompt)
    assert re.fullmatch(r"text: 3 tokens in [\d.]+ s, [\d.]+ tokens/s", text)


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
def test_the_cache_can_be_half_as_large(kv_type: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 6, "--kv-type", kv_type)
    tokenizer = open_tokenizer(SHIPPED.prose)
    ids = tokenizer.encode(PROMPT)
    new = list(open_model(SHIPPED.prose).generate(ids, 6, stop_ids=tokenizer.stop_ids, kv_type=kv_type))
    assert done.out == tokenizer.decode([*ids, *new]) + "\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    text = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 4).out
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 4, "--json")
    result = json.loads(done.out)
    assert (result["model"], result["prompt"]) == (str(SHIPPED.prose), PROMPT)
    assert PROMPT + result["text"] + "\n" == text
    assert result["tokens"] == 4
    assert result["tokens_per_second"] == pytest.approx(4 / result["seconds"])
    assert result["prompt_tokens"] == len(open_tokenizer(SHIPPED.prose).encode(PROMPT))
    assert result["prompt_tokens_per_second"] == pytest.approx(result["prompt_tokens"] / result["prompt_seconds"])
    assert result["decode_tokens_per_second"] == pytest.approx(3 / result["decode_seconds"])
    assert result["prompt_seconds"] + result["decode_seconds"] <= result["seconds"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", -1], "temperature is -1"),
        (["--top-p", 0], "top_p is 0"),
        (["--top-k", -2], "top_k is -2"),
        (["--kv-type", "q8_0"], "unknown type 'q8_0' of the KV cache"),
    ],
)
def test_wrong_options_are_told(options: list[object], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err


@needs_clang
def test_the_device_does_not_change_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    expected = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 3).out
    with using_metal(ProfiledContext(emulated_gpu())) as gpu:
        done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "-n", 3, "--device", "metal")
        assert (done.code, done.out) == (0, expected)
        assert isinstance(gpu, ProfiledContext)
        assert any("attention" in kernel.kernel for kernel in gpu.profile().summaries())
    wrong = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", PROMPT, "--device", "gpu")
    assert (wrong.code, wrong.err.split(";")[0]) == (1, "error: unknown device 'gpu'")
