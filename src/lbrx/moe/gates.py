"""The gates of a mixture: one row per expert, whose product with a hidden state is the expert's score.

``cheap_embed``: the direction of the summed embeddings of an expert's prompts, minus that of its negative prompts; the
same in every layer. ``random``: standard normal. ``uniform_random``: evenly in -1/sqrt(n) to 1/sqrt(n) for n columns,
as a new linear layer begins in PyTorch. ``uniform``: zeros, equal scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lbrx.creation import full, normal, uniform
from lbrx.errors import UsageError
from lbrx.moe.recipe import HIDDEN_GATES, Expert, MoeRecipe
from lbrx.plan.records import InputModel
from lbrx.tensor import Tensor, tensor
from lbrx.vocabulary import read_tokenizer
from lbrx.vocabulary.templates import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHORTEST_LENGTH = 1e-8
_DEGENERATE_CONDITION = 5.0  # singular values further apart leave some expert without tokens

Vectors = npt.NDArray[np.float32]


class Gates:
    """Makes the gates of every layer; ``warnings`` says what makes them useless."""

    def __init__(self, recipe: MoeRecipe, base: InputModel, embedding_name: str, seed: int) -> None:
        self._mode = recipe.gate_mode
        self._seed = seed
        self._columns = base.infos[embedding_name].shape[1]
        self._vectors: Vectors | None = None
        self._experts = len(recipe.experts)
        self.warnings: list[str] = []
        if self._mode in HIDDEN_GATES:
            raise recipe.gate_place.error(
                f"the gate mode {self._mode!r}{' (the default)' * (recipe.gate_place == recipe.place)} needs forward "
                f"passes, which are not there yet; use 'cheap_embed', which takes the prompts' embeddings"
            )
        if self._mode == "cheap_embed":
            prompts = _Prompts(base, base.tensors[embedding_name])
            experts = (*recipe.experts, *recipe.shared_experts)
            self._vectors = np.stack([prompts.direction(expert) for expert in experts])
            self._check_directions(self._vectors[: self._experts])

    def routed(self, name: str) -> Tensor:
        """The gate between the experts, under the name of its tensor: [experts, columns]."""
        return self._rows(name, 0, self._experts)

    def shared(self, name: str) -> Tensor:
        """The gate of the shared expert: [1, columns]."""
        return self._rows(name, self._experts, self._experts + 1)

    def _rows(self, name: str, first: int, end: int) -> Tensor:
        if self._vectors is not None:
            return tensor(self._vectors[first:end].copy())
        shape = (end - first, self._columns)
        if self._mode == "random":
            return normal(shape, self._seed, name)
        if self._mode == "uniform_random":
            return (uniform(shape, self._seed, name) * 2 - 1) * math.sqrt(1 / self._columns)
        return full(shape, 0.0, "f32")

    def _check_directions(self, vectors: Vectors) -> None:
        condition = float(np.linalg.cond(vectors.astype(np.float64)))
        if not condition <= _DEGENERATE_CONDITION:
            self.warnings.append(
                "the prompts of the experts are much alike, so that some experts will hardly be chosen "
                f"(the gate's condition number is {condition:.3g})"
            )


class _Prompts:
    """Turns prompts into directions of the base model's embeddings."""

    def __init__(self, base: InputModel, embedding: Tensor) -> None:
        directory = base.directory
        found = None if directory is None else read_tokenizer(directory)
        if found is None or directory is None:
            raise UsageError(
                f"{base.label}: has no tokenizer.json, which the gate mode 'cheap_embed' needs for prompts"
            )
        self._label = base.label
        self._embedding = embedding
        self._tokenizer = _whole_texts(found.loaded())
        special = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
        self._beginning = _token_text(special.get("bos_token"))

    def direction(self, expert: Expert) -> Vectors:
        """The unit vector of an expert."""
        vector = self._unit_sum(expert.positive_prompts)
        if expert.negative_prompts:
            vector = vector - self._unit_sum(expert.negative_prompts)
        return _unit(vector).astype(np.float32)

    def _unit_sum(self, prompts: Sequence[str]) -> npt.NDArray[np.float64]:
        ids: list[int] = []
        for prompt in prompts:
            ids += self._tokenizer.encode(self._beginning + prompt, add_special_tokens=False).ids
        beyond = [token_id for token_id in ids if token_id >= self._embedding.shape[0]]
        if beyond:
            raise UsageError(
                f"{self._label}: a prompt has the token {beyond[0]}, but the embedding has "
                f"{self._embedding.shape[0]} rows"
            )
        rows = self._embedding.rows(np.asarray(ids, np.int64)).to("f32").numpy()
        return _unit(rows.sum(axis=0, dtype=np.float64))


def _whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _token_text(token: Any) -> str:
    """A special token as settings have it: its text, or an object with its text, or nothing."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _unit(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return vector / max(float(np.linalg.norm(vector)), _SHORTEST_LENGTH)
