"""The tokens that begin and end texts: their ids, and whether they are added to every text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME

SPECIAL_MAP_NAME = "special_tokens_map.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "eot")

# Tokens that end a text or a turn in a chat, whatever the files say; llama.cpp has the same list.
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
    *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
_CALLS = (("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>"))  # with these, <|end|> ends a part of a turn only


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids by role as far as they exist (see ``ROLES``), and whether bos and eos are added to every text.

    ``add_sep``: whether a separator is put between two texts, if the tokenizer says so.
    """

    ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_sep: bool | None = None


def read_settings(directory: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer: tokenizer_config.json, completed from special_tokens_map.json."""
    return {**read_json(directory / SPECIAL_MAP_NAME), **read_json(directory / CONFIG_NAME)}


def special_tokens(
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    find: Callable[[str], int | None],
    *,
    size: int,
    post_processor: Any = None,
    own_ids: Mapping[str, int] | None = None,
    add_bos: bool = False,
    add_eos: bool = False,
) -> SpecialTokens:
    """Collect the special tokens from the files of a model.

    Names in ``settings`` take precedence over the ids of ``config``, then those of the tokenizer itself (``own_ids``).
    An id without a row is ignored. Whether they are added is decided by ``settings``, else by the
    ``post_processor`` of tokenizer.json, else by ``add_bos`` and ``add_eos``.

    >>> special_tokens({"bos_token": "<s>"}, {"eos_token_id": 2}, {"<s>": 1}.get, size=3, add_bos=True)
    SpecialTokens(ids={'bos': 1, 'eos': 2}, add_bos=True, add_eos=False, add_sep=None)
    """
    first, last = _template_ends(post_processor)
    around = {"bos": first, "eos": last}
    ids: dict[str, int] = {}
    for role in ROLES:
        token = _content(settings.get(f"{role}_token")) or around.get(role)
        candidates = [find(token) if token else None, _config_id(config, role), (own_ids or {}).get(role)]
        token_id = next((number for number in candidates if number is not None and 0 <= number < size), None)
        if token_id is not None:
            ids[role] = token_id
    adds = {role: token is not None and find(token) == ids.get(role) for role, token in around.items()}
    if post_processor is None:
        adds |= {"bos": add_bos, "eos": add_eos}
    for role in adds:
        wanted = settings.get(f"add_{role}_token")
        adds[role] = (wanted if isinstance(wanted, bool) else adds[role]) and role in ids
    return SpecialTokens(ids, adds["bos"], adds["eos"], _adds_separator(post_processor, settings, last))


def end_ids(special: SpecialTokens, find: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return the ids that end generation: end of text, end of turn, and tokens with the text of one.

    >>> end_ids(SpecialTokens({"eos": 2}, True, False), {"<|im_end|>": 5}.get)
    (2, 5)
    """
    ids = [special.ids[role] for role in ("eos", "eot") if role in special.ids]
    skipped = {"<|end|>"} if any(all(find(text) is not None for text in texts) for texts in _CALLS) else set()
    if find("<|tool_response>") is not None:
        skipped.add("</s>")  # a normal token of Gemma 4
    listed = (find(text) for text in _ENDS if text not in skipped)
    return tuple(dict.fromkeys([*ids, *(number for number in listed if number is not None)]))


def _adds_separator(post_processor: Any, settings: Mapping[str, Any], last: str | None) -> bool | None:
    """Return whether a template of two texts has a separator between them; None if it has nothing between them."""
    names = {_content(settings.get(f"{role}_token")) for role in ("sep", "eos")}
    for step in _steps(post_processor):
        if step.get("type") == "RobertaProcessing":
            return True
        pair = step.get("pair") if step.get("type") == "TemplateProcessing" else None
        if pair:
            sequences = [place for place, part in enumerate(pair) if "Sequence" in part]
            between = [_special(part) for part in pair[sequences[0] + 1 : sequences[-1]]] if sequences else []
            if between:
                return (between[0] in names and last is None) or (len(between) == 2 and between[1] in names)
    wanted = settings.get("add_sep_token")
    return wanted if isinstance(wanted, bool) else None


def _content(token: Any) -> str | None:
    """Return the text of a token in tokenizer_config.json, which contains texts or records."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _config_id(config: Mapping[str, Any], role: str) -> int | None:
    """Return the id in config.json, at the top or for the text model; the first one of several."""
    inner = config.get("text_config")
    value = config.get(f"{role}_token_id")
    if value is None and isinstance(inner, Mapping):
        value = inner.get(f"{role}_token_id")
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _template_ends(post_processor: Any) -> tuple[str | None, str | None]:
    """Return the special tokens that a template of tokenizer.json adds before and after a single text."""
    for step in _steps(post_processor):
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            first, last = step.get("cls"), step.get("sep")
            return (first[0] if first else None), (last[0] if last else None)
        single = step.get("single") if step.get("type") == "TemplateProcessing" else None
        if single:
            return _special(single[0]), _special(single[-1])
    return None, None


def _steps(post_processor: Any) -> Sequence[Mapping[str, Any]]:
    steps = post_processor.get("processors", [post_processor]) if isinstance(post_processor, dict) else []
    return [step for step in steps if isinstance(step, dict)]


def _special(part: Mapping[str, Any]) -> str | None:
    token = part.get("SpecialToken")
    return token.get("id") if isinstance(token, dict) else None
