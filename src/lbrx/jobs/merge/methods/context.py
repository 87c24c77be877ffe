"""What a method may know of the place where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.bindings import UNNAMED, StreamKey, UnboundError
from lbrx.tensors.random_keys import stream_key
from lbrx.tensors.shape import Layout, checked_shape
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.views import counter


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
        return Tensor(counter("uniform", Layout.contiguous(checked_shape(shape)), self.key(model)))

    def key(self, model: int) -> StreamKey:
        """The key of the numbers that belong to one model."""
        return stream_key(self.seed, f"{self.tensor_name}#{model}")


class UnnamedContext(MergeContext):
    """The place of any tensor: random numbers have no key yet, and asking for the name is an ``UnboundError``."""

    __slots__ = ()

    def __init__(self, seed: int) -> None:
        object.__setattr__(self, "seed", seed)

    def __getattribute__(self, name: str) -> Any:
        if name == "tensor_name":
            raise UnboundError
        return super().__getattribute__(name)

    def key(self, model: int) -> StreamKey:
        return UNNAMED, model
