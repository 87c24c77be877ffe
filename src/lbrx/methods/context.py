"""What a method may know of the place where it is used."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.creation import uniform
from lbrx.records import dataclass
from lbrx.tensor import Tensor


@dataclass(frozen=True, slots=True)
class MergeContext:
    """The output tensor's name and the recipe's seed.

    >>> context = MergeContext("lm_head.weight", seed=7)
    >>> bool(((context.uniform((8,), model=0) - context.uniform((8,), model=0)) == 0).min())
    True
    """

    tensor_name: str
    seed: int = 0

    def uniform(self, shape: Sequence[int], model: int) -> Tensor:
        """Uniform numbers in [0, 1) that belong to one model of this tensor: the same whenever they are asked for."""
        return uniform(shape, self.seed, f"{self.tensor_name}#{model}")
