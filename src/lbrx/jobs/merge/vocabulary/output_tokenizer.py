"""The tokenizer of the output: that of one model, perhaps with tokens left out or added.

New tokens are added tokens, as mergekit makes them: the tokenizer's own way of cutting a text stays that of the model
it was taken from, and no id of a token with a row changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.jobs.merge.vocabulary.records import ModelVocabulary
from lbrx.models.tokenizers.tokenizer_file import AddedToken, TokenizerFile, described, parse_tokenizer


def with_rows_only(tokenizer: TokenizerFile, rows: int) -> TokenizerFile:
    """The tokenizer without the tokens whose ids lie beyond the rows of the embedding.

    >>> text = '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}'
    >>> with_rows_only(parse_tokenizer(text, "tokenizer.json"), 1).ids
    {'a': 0}
    """
    beyond = {token for token, token_id in tokenizer.ids.items() if token_id >= rows}
    if not beyond:
        return tokenizer
    document = json.loads(tokenizer.text)
    document["added_tokens"] = [entry for entry in document.get("added_tokens") or () if entry["content"] not in beyond]
    _remove_pieces(document["model"], beyond, tokenizer.label)
    return parse_tokenizer(json.dumps(document, ensure_ascii=False), tokenizer.label)


def _remove_pieces(model: dict[str, Any], beyond: set[str], label: str) -> None:
    """Take tokens out of the vocabulary of a tokenizer's model, and the merges that make or use them."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # a Unigram model: pieces and scores, the id is the place
        kept = [entry for entry in vocabulary if entry[0] not in beyond]
        if kept != vocabulary[: len(kept)]:
            raise FormatError(f"{label}: tokens without a row in the embedding lie between tokens that have one")
        model["vocab"] = kept
        return
    model["vocab"] = {token: token_id for token, token_id in (vocabulary or {}).items() if token not in beyond}
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _makes_or_uses(merge, beyond)]


def _makes_or_uses(merge: str | Sequence[str], tokens: set[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in tokens or right in tokens or left + right in tokens


def union_tokens(donor: TokenizerFile, models: Iterable[ModelVocabulary]) -> list[AddedToken]:
    """The tokens that the models have rows for and the donor lacks, in recipe order and then by id.

    Plain tokens come first, then the models' added tokens with the settings of the first model that has them. A token
    that is plain in the donor and added in another model becomes an added one.
    """
    plain: dict[str, AddedToken] = {}
    added: dict[str, AddedToken] = {}
    for model in models:
        if model.tokenizer is None:
            continue
        own_added = model.tokenizer.added
        for token, token_id in model.tokenizer.ids.items():
            if token_id >= model.rows:
                continue
            if token in own_added:
                added.setdefault(token, own_added[token])
            elif token not in donor.ids:
                plain.setdefault(token, AddedToken(token))
    new_plain = [token for content, token in plain.items() if content not in added]
    return new_plain + [token for content, token in added.items() if content not in donor.added]


def with_tokens(donor: TokenizerFile, tokens: Sequence[AddedToken]) -> TokenizerFile:
    """The tokenizer with more added tokens; those that it does not have get the next free ids.

    >>> text = '{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}'
    >>> with_tokens(parse_tokenizer(text, "tokenizer.json"), [AddedToken("<|end|>", special=True)]).ids
    {'a': 0, 'b': 1, '<|end|>': 2}
    """
    if not tokens:
        return donor
    from tokenizers import AddedToken as LibraryToken

    tokenizer = donor.loaded()
    for is_special, group in groupby(tokens, key=lambda token: token.special):  # each call costs a whole new index
        made = [LibraryToken(**token.as_json()) for token in group]
        if is_special:
            tokenizer.add_special_tokens(made)
        else:
            tokenizer.add_tokens(made)
    result = described(tokenizer, tokenizer.to_str(), donor.label)
    _check_new_ids(donor, result.ids)
    return result


def _check_new_ids(donor: TokenizerFile, ids: Mapping[str, int]) -> None:
    """The library counts tokens to find the next id, which is wrong where ids were left out."""
    taken = {token_id: token for token, token_id in donor.ids.items()}
    for token, token_id in ids.items():
        other = taken.get(token_id)
        if other is not None and other != token and token not in donor.ids:
            raise UsageError(
                f"{donor.label}: ids are left out in the vocabulary, so that the new token {token!r} would get the id "
                f"{token_id} of {other!r}; expected a tokenizer without gaps as the base of a union"
            )
