"""Deciding the vocabulary of a merge: tokenizers and numbers of rows in, a frozen VocabularyPlan out.

Rows beyond the tokens are padding. The output has at least as many rows as the model that its tokenizer comes from, so
that no padding is lost; a model with its own row for a padding id keeps it, others get the mean of their rows.
New tokens take padding ids first, because these are the next free ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lbrx.jobs.merge.recipe import ModelRef, ModelToken, TokenizerSpec, TokenSpec, ZeroToken
from lbrx.jobs.merge.vocabulary.output_tokenizer import union_tokens, with_rows_only, with_tokens
from lbrx.jobs.merge.vocabulary.records import NO_ROW, ModelVocabulary, RowNumbers, TokenOverride, VocabularyPlan
from lbrx.models.tokenizers.tokenizer_file import AddedToken, TokenizerFile


def plan_vocabulary(
    spec: TokenizerSpec,
    models: Sequence[ModelVocabulary],
    *,
    base: ModelRef | None = None,
    tokenizer_model: ModelVocabulary | None = None,
) -> VocabularyPlan:
    """Decide the output's tokenizer and where each model has its rows.

    ``models`` are those that are merged, in recipe order; ``tokenizer_model`` is the one that ``spec.source`` names
    if it is not among them. Without a base the first model's tokenizer is the one that a union adds to.

    >>> from lbrx.models.tokenizers.tokenizer_file import parse_tokenizer
    >>> text = '{{"model": {{"type": "WordLevel", "vocab": {{"a": 0, "{}": 1}}, "unk_token": "a"}}}}'
    >>> models = [ModelVocabulary(ModelRef(x), parse_tokenizer(text.format(x), x), rows=2) for x in "bc"]
    >>> plan = plan_vocabulary(TokenizerSpec("union"), models)
    >>> plan.tokenizer.ids, [numbers.tolist() for numbers in plan.row_numbers]
    ({'a': 0, 'b': 1, 'c': 2}, [[0, 1, -1], [0, -1, 1]])
    """
    planner = _Planner(spec, tuple(models), base, tokenizer_model)
    return planner.plan()


class _Planner:
    def __init__(
        self,
        spec: TokenizerSpec,
        models: tuple[ModelVocabulary, ...],
        base: ModelRef | None,
        tokenizer_model: ModelVocabulary | None,
    ) -> None:
        self._spec = spec
        self._warnings: list[str] = []
        self._index = {model.ref: index for index, model in enumerate(models)}
        self._base = None if base is None else self._index.get(base)
        self._models = tuple(self._with_tokenizer(model, models[self._base or 0]) for model in models)
        self._donor = self._find_donor(tokenizer_model)

    def plan(self) -> VocabularyPlan:
        donor, models = self._donor, self._models
        tokenizer = self._output_tokenizer()
        wanted = max(tokenizer.end, donor.rows)
        multiple = self._spec.pad_to_multiple_of or 1
        size = -(-wanted // multiple) * multiple
        is_token = np.zeros(size, bool)
        is_token[list(tokenizer.ids.values())] = True
        row_numbers = tuple(_row_numbers(tokenizer, model, is_token) for model in models)
        overrides = tuple(
            self._override(token, spec, tokenizer.ids[token], row_numbers)
            for token, spec in self._spec.tokens.items()
            if spec.source is not None and token in tokenizer.ids
        )
        self._warn_of_orphans(tokenizer, is_token, row_numbers, overrides)
        return VocabularyPlan(
            tokenizer,
            size,
            row_numbers,
            is_token,
            self._base,
            overrides,
            tuple(self._warnings),
        )

    def _with_tokenizer(self, model: ModelVocabulary, base: ModelVocabulary) -> ModelVocabulary:
        """A model without a tokenizer is taken to have that of the base, if its embedding has the same size."""
        if model.tokenizer is not None:
            return model
        if base.tokenizer is None or model.rows != base.rows:
            raise self._spec.location.error(
                f"model {model.label} has no tokenizer.json, so that its {model.rows} tokens are not known; "
                f"expected a tokenizer in the model's directory"
            )
        self._warnings.append(f"{model.label} has no tokenizer; taken to have the tokens of {base.label}")
        return ModelVocabulary(model.ref, base.tokenizer, model.rows)

    def _find_donor(self, tokenizer_model: ModelVocabulary | None) -> ModelVocabulary:
        """The model whose tokenizer the output's begins with."""
        source = self._spec.source
        if source in ("union", "base"):
            return self._models[self._base or 0]
        if source in self._index:
            return self._models[self._index[source]]
        if tokenizer_model is None or tokenizer_model.tokenizer is None:
            raise self._spec.location.error(f"model {source} has no tokenizer.json to be the tokenizer of the output")
        return tokenizer_model

    def _output_tokenizer(self) -> TokenizerFile:
        donor = self._donor
        assert donor.tokenizer is not None
        tokenizer = with_rows_only(donor.tokenizer, donor.rows)
        left_out = len(donor.tokenizer.ids) - len(tokenizer.ids)
        if left_out:
            self._warnings.append(
                f"{left_out} tokens of {donor.label} are left out: its embedding has {donor.rows} rows, none for them"
            )
        if self._spec.source == "union":
            tokenizer = with_tokens(tokenizer, self._without_empty(union_tokens(tokenizer, self._models)))
        named = [AddedToken(token) for token in self._spec.tokens if token not in tokenizer.ids]
        return with_tokens(tokenizer, self._without_empty(named))

    def _without_empty(self, tokens: list[AddedToken]) -> list[AddedToken]:
        kept = [token for token in tokens if token.content]
        if len(kept) < len(tokens):
            self._warnings.append("a token without any character is left out: it cannot be added to a tokenizer")
        return kept

    def _override(self, token: str, spec: TokenSpec, token_id: int, row_numbers: Sequence[RowNumbers]) -> TokenOverride:
        source = spec.source
        if isinstance(source, ZeroToken):
            return TokenOverride(token_id, None, 0, spec.force)
        ref = source.model if isinstance(source, ModelToken) else source
        assert ref is not None
        index = self._index.get(ref)
        if index is None:
            known = ", ".join(model.label for model in self._models)
            raise spec.location.error(
                f"token {token!r} takes its embedding from {str(ref)!r}, which is not merged; expected one of {known}"
            )
        if isinstance(source, ModelToken):
            row = self._row_of(source, self._models[index], spec)
        else:
            row = int(row_numbers[index][token_id])
            if row == NO_ROW:
                raise spec.location.error(f"model {ref} has no row for the token {token!r}, which is to come from it")
        return TokenOverride(token_id, index, row, spec.force)

    def _row_of(self, source: ModelToken, model: ModelVocabulary, spec: TokenSpec) -> int:
        assert model.tokenizer is not None
        if source.token is None:
            assert source.token_id is not None
            row = source.token_id
        elif source.token in model.tokenizer.ids:
            row = model.tokenizer.ids[source.token]
        else:
            raise spec.location.error(f"model {model.label} has no token {source.token!r}")
        if row >= model.rows:
            raise spec.location.error(f"model {model.label} has no row {row}: its embedding has {model.rows} rows")
        return row

    def _warn_of_orphans(
        self,
        tokenizer: TokenizerFile,
        is_token: np.ndarray,
        row_numbers: Sequence[RowNumbers],
        overrides: Sequence[TokenOverride],
    ) -> None:
        is_orphan = is_token.copy()
        for numbers in row_numbers:
            is_orphan &= numbers == NO_ROW
        is_orphan[[override.token_id for override in overrides]] = False
        count = int(is_orphan.sum())
        if count:
            first = int(np.flatnonzero(is_orphan)[0])
            token = next(token for token, token_id in tokenizer.ids.items() if token_id == first)
            self._warnings.append(f"{count} tokens are in no model and get rows of zeros, such as {token!r}")


def _row_numbers(tokenizer: TokenizerFile, model: ModelVocabulary, is_token: np.ndarray) -> RowNumbers:
    """The model's row for every row of the output, or NO_ROW."""
    assert model.tokenizer is not None
    own_ids = model.tokenizer.ids
    numbers = np.full(is_token.size, NO_ROW, np.int64)
    is_unnamed = np.ones(model.rows, bool)
    is_unnamed[[token_id for token_id in own_ids.values() if token_id < model.rows]] = False
    shared = min(model.rows, is_token.size)
    is_shared_padding = ~is_token[:shared] & is_unnamed[:shared]
    numbers[:shared][is_shared_padding] = np.flatnonzero(is_shared_padding)
    if tokenizer is model.tokenizer or tokenizer.ids == own_ids:
        token_ids = np.fromiter(own_ids.values(), np.int64, len(own_ids))
        has_row = token_ids < model.rows
        numbers[token_ids[has_row]] = token_ids[has_row]
        return numbers
    for token, token_id in tokenizer.ids.items():
        own = own_ids.get(token)
        if own is not None and own < model.rows:
            numbers[token_id] = own
    return numbers
