"""Small tokenizers made with the tokenizers library, and embeddings whose rows tell where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordLevel

from lbrx.jobs.merge.recipe import ModelRef
from lbrx.jobs.merge.vocabulary import ModelVocabulary
from lbrx.models.tokenizers.tokenizer_file import TokenizerFile, parse_tokenizer

WIDTH = 3


def word_tokenizer(words: Sequence[str], added: Sequence[AddedToken] = ()) -> TokenizerFile:
    """A tokenizer with these words as tokens 0, 1, ... and then the added ones."""
    return gapped_tokenizer({word: number for number, word in enumerate(words)}, added)


def gapped_tokenizer(ids: Mapping[str, int], added: Sequence[AddedToken] = ()) -> TokenizerFile:
    tokenizer = Tokenizer(WordLevel(dict(ids), unk_token=next(iter(ids))))
    for token in added:
        if token.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    return parse_tokenizer(tokenizer.to_str(), "tokenizer.json")


def pair_tokenizer(ids: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> TokenizerFile:
    """A byte pair tokenizer."""
    return parse_tokenizer(Tokenizer(BPE(dict(ids), list(merges))).to_str(), "tokenizer.json")


def special(content: str) -> AddedToken:
    return AddedToken(content, special=True, normalized=False)


def vocabulary(name: str, tokenizer: TokenizerFile | None, rows: int) -> ModelVocabulary:
    return ModelVocabulary(ModelRef(name), tokenizer, rows)


def embedding(rows: int, first: int) -> npt.NDArray[Any]:
    """Rows whose values are all different, and different for every ``first``."""
    return (first + np.arange(rows * WIDTH, dtype=np.float32)).reshape(rows, WIDTH)
