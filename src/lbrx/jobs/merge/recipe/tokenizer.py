"""Reading ``tokenizer_source``, ``tokenizer`` and ``chat_template``."""

from __future__ import annotations

from typing import Literal

from lbrx.errors import nearest
from lbrx.jobs.merge.recipe.reading import (
    ModelRef,
    optional,
    read_bool,
    read_int,
    read_map,
    read_open_map,
    read_reference,
    read_text,
    unknown_name,
)
from lbrx.jobs.merge.recipe.schema import ModelToken, TokenizerSpec, TokenSource, TokenSpec, ZeroToken
from lbrx.jobs.merge.recipe.yaml_lines import FrozenMap, YamlMap, YamlNode, YamlScalar

CHAT_TEMPLATES = ("alpaca", "chatml", "exaone", "llama3", "mistral")
"""The names that ``chat_template`` may have besides ``auto``; anything else is a Jinja template."""

_SHORTEST_TEMPLATE = 20

_LARGEST_PADDING = 1 << 16


def read_tokenizer(recipe: YamlMap) -> TokenizerSpec | None:
    """The tokenizer of a recipe, from either of its two keys."""
    short, full = optional(recipe, "tokenizer_source"), optional(recipe, "tokenizer")
    if short is not None and full is not None:
        raise recipe.key_locations["tokenizer"].error(
            "'tokenizer' and 'tokenizer_source' are both given; expected at most one of them"
        )
    if short is not None:
        return TokenizerSpec(_read_vocabulary(short, "'tokenizer_source'"), location=short.location)
    if full is None:
        return None
    mapping = read_map(full, "'tokenizer'", ("source", "tokens", "pad_to_multiple_of"))
    source, padding = optional(mapping, "source"), optional(mapping, "pad_to_multiple_of")
    return TokenizerSpec(
        source="union" if source is None else _read_vocabulary(source, "'source'"),
        tokens=_read_tokens(optional(mapping, "tokens")),
        pad_to_multiple_of=None if padding is None else read_int(padding, "'pad_to_multiple_of'", 1, _LARGEST_PADDING),
        location=mapping.location,
    )


def _read_vocabulary(node: YamlNode, what: str) -> Literal["union", "base"] | ModelRef:
    if isinstance(node, YamlScalar):
        if node.value == "union":
            return "union"
        if node.value == "base":
            return "base"
    return read_reference(node, what)


def _read_tokens(node: YamlNode | None) -> FrozenMap[str, TokenSpec]:
    if node is None:
        return FrozenMap()
    entries = read_open_map(node, "'tokens'").entries
    return FrozenMap({token: _read_token(entry, token) for token, entry in entries.items()})


def _read_token(node: YamlNode, token: str) -> TokenSpec:
    mapping = read_map(node, f"token {token!r}", ("source", "force"))
    source, force = optional(mapping, "source"), optional(mapping, "force")
    spec = TokenSpec(
        source=None if source is None else _read_token_source(source),
        force=force is not None and read_bool(force, "'force'"),
        location=mapping.location,
    )
    if spec.force and spec.source is None:
        raise mapping.location.error(f"token {token!r} is forced, but has no 'source' to take its embedding from")
    return spec


def _read_token_source(node: YamlNode) -> TokenSource:
    if not (isinstance(node, YamlMap) and "kind" in node.entries):
        return read_reference(node, "'source'")
    type_node = node.entries["kind"]
    source_type = read_text(type_node, "'kind'")
    if source_type == "zero":
        read_map(node, "a 'zero' source", ("kind",))
        return ZeroToken()
    if source_type != "model_token":
        raise unknown_name(type_node.location, "kind", source_type, ("model_token", "zero"))
    mapping = read_map(node, "a 'model_token' source", ("kind", "model", "token", "token_id"), required=("model",))
    token, token_id = optional(mapping, "token"), optional(mapping, "token_id")
    if (token is None) == (token_id is None):
        raise mapping.location.error("a 'model_token' source needs exactly one of 'token' and 'token_id'")
    return ModelToken(
        model=read_reference(mapping.entries["model"], "'model'"),
        token=None if token is None else read_text(token, "'token'"),
        token_id=None if token_id is None else read_int(token_id, "'token_id'", minimum=0),
    )


def read_chat_template(node: YamlNode) -> str:
    """``auto``, a known name, or a Jinja template, as it was written."""
    template = read_text(node, "'chat_template'")
    if template == "auto" or template in CHAT_TEMPLATES:
        return template
    if "{" not in template or len(template) < _SHORTEST_TEMPLATE:
        names = ("auto", *CHAT_TEMPLATES)
        hint = nearest(template, names) or f"; expected a Jinja template or one of {', '.join(names)}"
        raise node.location.error(f"unknown chat template {template[:60]!r}{hint}")
    return template
