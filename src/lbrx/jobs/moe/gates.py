"""The gates of a mixture: one row per expert, whose product with a hidden state is the expert's score.

- ``cheap_embed``: the direction of the summed embeddings of an expert's prompts, minus that of its negative prompts;
  the same in every layer.
- ``hidden``, ``hidden_last``, ``hidden_avg``: the direction of what each layer of the base model gets for the prompts,
  of their last token or the mean over all; the mean over prompts, minus that of the negative ones.
- ``random``: standard normal. ``uniform_random``: evenly in -1/sqrt(n) to 1/sqrt(n) for n columns, as a new linear
  layer begins in PyTorch. ``uniform``: zeros, equal scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from lbrx.errors import UsageError
from lbrx.files.formats.strict_json import read_json
from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.moe.recipe import PROMPTED_GATES, Expert, MoeRecipe
from lbrx.models.tokenizers.tokenizer_file import library_errors, read_tokenizer
from lbrx.tensors.creation import full, normal, uniform
from lbrx.tensors.tensor import Tensor, tensor

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHORTEST_LENGTH = 1e-8
_DEGENERATE_CONDITION = 5.0  # singular values further apart leave some expert without tokens

Vectors = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]


class Gates:
    """Makes the gates of every layer; ``warnings`` says what makes them useless."""

    def __init__(
        self, recipe: MoeRecipe, base: InputModel, embedding_name: str, seed: int, *, has_shared: bool
    ) -> None:
        self._mode = recipe.gate_mode
        self._seed = seed
        self._columns = base.infos[embedding_name].shape[1]
        self._vectors: list[Vectors] = []  # of each layer, or one for all
        self._experts = len(recipe.experts)
        self.warnings: list[str] = []
        if self._mode not in PROMPTED_GATES:
            return
        prompts = _Prompts(base, self._mode)
        directions = (
            _Embeddings(base, embedding_name) if self._mode == "cheap_embed" else _HiddenStates(base, self._mode)
        )
        gated = (*recipe.experts, *(recipe.shared_experts if has_shared else ()))
        experts = [_direction(prompts, directions, expert) for expert in gated]
        self._vectors = [np.stack(rows) for rows in zip(*experts, strict=True)]
        self._check_directions([vectors[: self._experts] for vectors in self._vectors])

    def routed(self, name: str) -> Tensor:
        """The gate between the experts, under the name of its tensor: [experts, columns]."""
        return self._rows(name, 0, self._experts)

    def shared(self, name: str) -> Tensor:
        """The gate of the shared expert: [1, columns]."""
        return self._rows(name, self._experts, self._experts + 1)

    def _rows(self, name: str, first: int, end: int) -> Tensor:
        if self._vectors:
            return tensor(self._vectors[_layer_of(name) % len(self._vectors)][first:end].copy())
        shape = (end - first, self._columns)
        if self._mode == "random":
            return normal(shape, self._seed, name)
        if self._mode == "uniform_random":
            return (uniform(shape, self._seed, name) * 2 - 1) * math.sqrt(1 / self._columns)
        return full(shape, 0.0, "f32")

    def _check_directions(self, layers: list[Vectors]) -> None:
        condition = max(float(np.linalg.cond(vectors.astype(np.float64))) for vectors in layers)
        if not condition <= _DEGENERATE_CONDITION:
            self.warnings.append(
                "the prompts of the experts are much alike, so that some experts will hardly be chosen "
                f"(the gate's condition number is {condition:.3g})"
            )


class _Directions(Protocol):
    """Turns the tokens of prompts into a vector for each layer, or one for all layers."""

    def of(self, prompts: Sequence[list[int]]) -> list[Vector]: ...


def _direction(prompts: _Prompts, directions: _Directions, expert: Expert) -> list[Vectors]:
    """The unit vectors of an expert."""
    vectors = directions.of([prompts.ids(text) for text in expert.positive_prompts])
    if expert.negative_prompts:
        negative = directions.of([prompts.ids(text) for text in expert.negative_prompts])
        vectors = [vector - other for vector, other in zip(vectors, negative, strict=True)]
    return [_unit(vector).astype(np.float32) for vector in vectors]


class _Prompts:
    """Turns prompts into tokens of the base model."""

    def __init__(self, base: InputModel, mode: str) -> None:
        directory = base.directory
        tokenizer = None if directory is None else read_tokenizer(directory)
        if tokenizer is None or directory is None:
            raise UsageError(f"{base.label}: has no tokenizer.json, which the gate mode {mode!r} needs for prompts")
        self._label = base.label
        self._tokenizer = _whole_texts(tokenizer.loaded())
        special = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
        self._beginning = _token_text(special.get("bos_token"))

    def ids(self, prompt: str) -> list[int]:
        with library_errors(f"{self._label}: cannot encode a prompt"):
            ids: list[int] = self._tokenizer.encode(self._beginning + prompt, add_special_tokens=False).ids
        return ids


class _Embeddings:
    """The direction of the sum of all tokens' embeddings, for every layer the same."""

    def __init__(self, base: InputModel, embedding_name: str) -> None:
        self._label = base.label
        self._embedding = base.tensors[embedding_name]

    def of(self, prompts: Sequence[list[int]]) -> list[Vector]:
        ids = [token_id for prompt in prompts for token_id in prompt]
        beyond = [token_id for token_id in ids if token_id >= self._embedding.shape[0]]
        if beyond:
            raise UsageError(
                f"{self._label}: a prompt has the token {beyond[0]}, but the embedding has "
                f"{self._embedding.shape[0]} rows"
            )
        rows = self._embedding.rows(np.asarray(ids, np.int64)).to("f32").numpy()
        return [_unit(rows.sum(axis=0, dtype=np.float64))]


class _HiddenStates:
    """What each layer of the base model gets: of the last token, or the mean over tokens; the mean over prompts."""

    def __init__(self, base: InputModel, mode: str) -> None:
        from lbrx.models.inference import open_model

        if base.adapters or not base.files:
            raise UsageError(
                f"{base.label}: hidden states are those of a model in files; expected one without an adapter, "
                f"or the gate mode 'cheap_embed'"
            )
        first = base.files[0].path
        self._model = open_model(first if first.suffix == ".gguf" else base.directory or first)
        self._averages = mode == "hidden_avg"

    def of(self, prompts: Sequence[list[int]]) -> list[Vector]:
        totals: list[Vector] | None = None
        for ids in prompts:
            if not ids:
                raise UsageError("a prompt of an expert is empty; expected some text")
            if len(ids) > self._model.spec.context_length:
                raise UsageError(
                    f"a prompt of an expert has {len(ids)} tokens; expected at most {self._model.spec.context_length}, "
                    "the context of the base model"
                )
            states = [self._state(inputs) for inputs in self._model.layer_inputs(ids)]
            totals = states if totals is None else [total + state for total, state in zip(totals, states, strict=True)]
        assert totals is not None  # the recipe demands prompts
        return [total / len(prompts) for total in totals]

    def _state(self, inputs: Vectors) -> Vector:
        wide = inputs.astype(np.float64)
        state: Vector = wide.mean(axis=0) if self._averages else wide[-1]
        return state


def _layer_of(name: str) -> int:
    """The number of the layer in a tensor's name."""
    return next(int(piece) for piece in name.split(".") if piece.isdigit())


def _whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _token_text(token: Any) -> str:
    """A special token as settings have it: its text, or an object with its text, or nothing."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _unit(vector: Vector) -> Vector:
    return vector / max(float(np.linalg.norm(vector)), _SHORTEST_LENGTH)
