"""The tokens that begin and end texts: their ids, and whether they are added to every text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.strict_json import read_json
from lbrx.models.tokenizers.chat_templates import CONFIG_NAME

SPECIAL_MAP_NAME = "special_tokens_map.json"
ROLES = ("bos", "eos", "unk", "pad", "eot")

# Tokens that end a turn in a chat, if tokenizer_config.json has no eot_token.
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids by name (bos, eos, unk, pad, eot) as far as they exist, and whether bos and eos are added to every text."""

    ids: Mapping[str, int]
    add_bos: bool
    add_eos: bool


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
) -> SpecialTokens:
    """Collect the special tokens from the files of a model.

    Names in ``settings`` take precedence over the ids of ``config``, then those of the tokenizer itself (``own_ids``).
    An id without a row is ignored. Whether they are added is decided by ``settings``, else by the
    ``post_processor`` of tokenizer.json, else by ``add_bos``.

    >>> special_tokens({"bos_token": "<s>"}, {"eos_token_id": 2}, {"<s>": 1}.get, size=3, add_bos=True)
    SpecialTokens(ids={'bos': 1, 'eos': 2}, add_bos=True, add_eos=False)
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
    if "eot" not in ids:
        turn_end = next((number for text in _TURN_ENDS if (number := find(text)) is not None), None)
        ids |= {} if turn_end is None else {"eot": turn_end}
    adds = {role: token is not None and find(token) == ids.get(role) for role, token in around.items()}
    if post_processor is None:
        adds["bos"] = add_bos
    for role in adds:
        wanted = settings.get(f"add_{role}_token")
        adds[role] = (wanted if isinstance(wanted, bool) else adds[role]) and role in ids
    return SpecialTokens(ids, adds["bos"], adds["eos"])


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
    steps = post_processor.get("processors", [post_processor]) if isinstance(post_processor, dict) else []
    for step in steps:
        single = step.get("single") if step.get("type") == "TemplateProcessing" else None
        if single:
            return _special(single[0]), _special(single[-1])
    return None, None


def _special(part: Mapping[str, Any]) -> str | None:
    token = part.get("SpecialToken")
    return token.get("id") if isinstance(token, dict) else None
