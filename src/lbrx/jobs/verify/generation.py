"""generation_config.json: settings that contradict each other or config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbrx.files.checkpoint.opening import Checkpoint
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.verify.records import Finding, NotPossible, warning
from lbrx.models.architectures import text_section

GENERATION_NAME = "generation_config.json"
# Settings of sampling, and the values that mean nothing.
_SAMPLING: dict[str, tuple[float, ...]] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, 50),
    "min_p": (0,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
# What a number must be above, and at most.
_BOUNDS: dict[str, tuple[float, float]] = {
    "top_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0, float("inf")),
}
_PAIRS = (("min_length", "max_length"), ("min_new_tokens", "max_new_tokens"), ("num_return_sequences", "num_beams"))
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def token_ids(value: object) -> list[int]:
    """One id, or a list of them.

    >>> token_ids(2), token_ids([2, 3]), token_ids(None)
    ([2], [2, 3], [])
    """
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def check_generation(model: Checkpoint) -> Iterator[Finding]:
    """A warning for each contradiction."""
    path = model.path / GENERATION_NAME
    if not path.is_file():
        raise NotPossible(f"has no {GENERATION_NAME}")
    settings = read_json(path)
    for text in (*_sampling(settings), *_ranges(settings), *_other_ids(settings, model.config or {})):
        yield warning(GENERATION_NAME, text)


def _number(settings: Mapping[str, Any], key: str) -> float | None:
    value = settings.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _sampling(settings: Mapping[str, Any]) -> Iterator[str]:
    samples = settings.get("do_sample")
    if samples is True:
        temperature = _number(settings, "temperature")
        if temperature is not None and temperature <= 0:
            yield f"'do_sample' is true, but 'temperature' is {temperature}; expected a number above zero"
        return
    state = "not set" if samples is None else f"{samples!r:.20}".lower()
    for key, neutral in _SAMPLING.items():
        value = _number(settings, key)
        if value is not None and value not in neutral:
            yield f"'{key}' is {value}, but 'do_sample' is {state}, so that it has no effect"


def _ranges(settings: Mapping[str, Any]) -> Iterator[str]:
    for key, (low, high) in _BOUNDS.items():
        value = _number(settings, key)
        if value is not None and not low < value <= high:
            yield f"'{key}' is {value}; expected a number above {low}" + (f", at most {high}" if high == 1 else "")
    for lower, upper in _PAIRS:
        least, most = _number(settings, lower), _number(settings, upper)
        if lower == "num_return_sequences" and settings.get("do_sample"):
            continue
        if least is not None and most is not None and least > most:
            yield f"'{lower}' is {least}, but '{upper}' is {most}"


def _other_ids(settings: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    for key in _IDS:
        own = token_ids(settings.get(key))
        expected = token_ids(config.get(key)) or token_ids(text_section(config).get(key))
        if own and expected and set(own) != set(expected):
            yield f"'{key}' is {settings[key]!r:.80}, but {sorted(set(expected))!r:.80} in config.json"
