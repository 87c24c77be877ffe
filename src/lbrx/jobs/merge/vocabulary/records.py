"""The records of vocabularies: what a model brings, and what was decided for the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.models.tokenizers.tokenizer_file import TokenizerFile
from lbrx.tensors.tensor import Tensor

RowNumbers = npt.NDArray[np.int64]

NO_ROW = -1


@dataclass(frozen=True, eq=False)
class ModelVocabulary:
    """A model's tokenizer, None if it has none, and the rows of its embedding.

    Embeddings often have more rows than there are tokens, as padding, and sometimes fewer.
    """

    ref: ModelRef
    tokenizer: TokenizerFile | None
    rows: int

    @property
    def label(self) -> str:
        return str(self.ref)


@dataclass(frozen=True, slots=True)
class TokenOverride:
    """What the recipe says of one token of the output: the row of a model, or zeros if ``model`` is None.

    It holds for the models that lack the token, and for all if it is forced.
    """

    token_id: int
    model: int | None
    row: int
    is_forced: bool


@dataclass(frozen=True, eq=False)
class VocabularyPlan:
    """The vocabulary of the output, and where each model has its rows.

    ``row_numbers`` has for each model the row of every output row, or -1 where the model has none.
    ``is_token`` is false for padding: rows that no token names.
    """

    tokenizer: TokenizerFile
    size: int
    row_numbers: tuple[RowNumbers, ...]
    is_token: npt.NDArray[np.bool_]
    base: int | None = None
    overrides: tuple[TokenOverride, ...] = ()
    warnings: tuple[str, ...] = ()

    def aligned(self, models: Sequence[int], tensors: Mapping[int, Tensor]) -> list[Tensor]:
        """The embeddings, or heads, of some models with the rows of the output: expressions that are streamed.

        ``tensors`` has the tensor of every model that has one, also of those that only lend rows to others.
        """
        from lbrx.jobs.merge.vocabulary.alignment import Alignment

        alignment = Alignment(self, models, tensors)
        return [alignment.tensor(model) for model in models]
