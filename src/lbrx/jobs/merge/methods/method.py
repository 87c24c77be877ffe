"""A merge method by name: its function, what its parameters are, and how it is called for one tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from typing import Any

from lbrx import registry
from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.bindings import UNNAMED, StreamKey, UnboundError
from lbrx.errors import ShapeError, UsageError
from lbrx.jobs.merge.recipe.method_specs import is_custom_method, method_spec
from lbrx.jobs.merge.recipe.parameters import Lookup, MethodSpec, TensorParameters
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


@dataclass(frozen=True, slots=True)
class Method:
    """A merge method: a pure function and the description of its parameters.

    The function is called with ``models``, and as far as it names them with ``base``, ``context`` and its parameters;
    a parameter called ``lambda`` goes to ``lambda_``.
    """

    name: str
    spec: MethodSpec
    function: Callable[..., Tensor]

    @property
    def is_custom(self) -> bool:
        """Whether it comes from a user's file."""
        return is_custom_method(self.name)

    def merge(
        self, inputs: Sequence[Tensor], base_index: int | None, parameters: TensorParameters, context: MergeContext
    ) -> Tensor:
        """The merged tensor as an expression; ``base_index`` is the place of the base among the inputs, if any.

        >>> from lbrx import tensor
        >>> from lbrx.jobs.merge.recipe import FrozenMap, TensorParameters
        >>> a, b = tensor([1.0], "f32"), tensor([5.0], "f32")
        >>> per_model = FrozenMap({"weight": 3.0}), FrozenMap({"weight": 1.0})
        >>> parameters = TensorParameters(FrozenMap({"normalize": True}), per_model)
        >>> load_method("linear").merge([a, b], None, parameters, MergeContext("w")).numpy()
        array([2.], dtype=float32)
        """
        shape = self._common_shape(inputs, context)
        if 0 in shape:
            return inputs[0]
        vectors = inputs if shape else [tensor.reshape(1) for tensor in inputs]
        base = None if base_index is None else vectors[base_index]
        models = [tensor for index, tensor in enumerate(vectors) if index != base_index]
        result = self.function(models=models, **self._arguments(base, parameters, context))
        self._check_result(result, vectors[0], context)
        # The sum of a single element is that element, without axes.
        return result if shape else result.sum().to(result.dtype)

    def _arguments(self, base: Tensor | None, parameters: TensorParameters, context: MergeContext) -> dict[str, Any]:
        given: dict[str, Any] = {"base": base, "context": context}
        for parameter in self.spec.parameters:
            values = (
                parameters.across_models(parameter.name) if parameter.per_model else parameters.shared[parameter.name]
            )
            given[argument_name(parameter.name)] = values
        return {name: given[name] for name in _argument_names(self.function)}

    def _common_shape(self, inputs: Sequence[Tensor], context: MergeContext) -> tuple[int, ...]:
        if not inputs:
            raise UsageError(f"{self.name}: tensor {context.tensor_name!r} has no inputs; expected at least one")
        for tensor in inputs[1:]:
            if tensor.shape != inputs[0].shape:
                raise ShapeError(
                    f"{self.name}: the inputs of tensor {context.tensor_name!r} have the shapes {inputs[0].shape} and "
                    f"{tensor.shape}; expected equal ones"
                )
        return inputs[0].shape

    def _check_result(self, result: object, like: Tensor, context: MergeContext) -> None:
        if isinstance(result, Tensor) and result.shape == like.shape:
            return
        where = f"{self.name}: the result for tensor {context.tensor_name!r}"
        if not isinstance(result, Tensor):
            raise UsageError(f"{where} is of type {type(result).__name__}; expected a Tensor")
        raise ShapeError(f"{where} has the shape {result.shape}; expected {like.shape}")


@cache
def _argument_names(function: Callable[..., Tensor]) -> tuple[str, ...]:
    """What a function takes besides the models."""
    return tuple(name for name in signature(function).parameters if name != "models")


def argument_name(parameter_name: str) -> str:
    """The keyword that a parameter is passed as.

    >>> argument_name("lambda"), argument_name("weight")
    ('lambda_', 'weight')
    """
    return "lambda_" if parameter_name == "lambda" else parameter_name


def load_method(name: str, directory: str | os.PathLike[str] = ".") -> Method:
    """The method of a name: a built-in one, or ``./file.py:function`` with the file looked up from ``directory``.

    The file of a custom method is run. Its function's signature says what it takes: ``models``; ``base: Tensor`` if it
    needs a base model, or ``base: Tensor | None`` if it can do with one; ``context: MergeContext`` if it wants one; and
    parameters with a type (float, int, bool or str), those with a ``Sequence`` of a type having one value per model.
    A parameter without a default has to be in the recipe; the default of a sequence is a tuple of one value, that of a
    model which the recipe gives none.

    >>> import pathlib, tempfile
    >>> source = '''
    ... from collections.abc import Sequence
    ... from lbrx import Tensor
    ...
    ... def blend(base: Tensor, models: Sequence[Tensor], *, strength: Sequence[float] = (1.0,), limit: float):
    ...     for model, share in zip(models, strength):
    ...         base = base + share * (model - base).clip(-limit, limit)
    ...     return base
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "my_method.py").write_text(source)
    ...     method = load_method("./my_method.py:blend", folder)
    >>> [(parameter.name, parameter.type, parameter.default) for parameter in method.spec.parameters]
    [('strength', 'float', 1.0), ('limit', 'float', REQUIRED)]
    >>> load_method("slerp").spec.needs_base
    'required'
    """
    if is_custom_method(name):
        from lbrx.jobs.merge.methods.custom import load_function, spec_of

        function = load_function(name, directory)
        return Method(name, spec_of(function, name), function)
    spec = method_spec(name)
    assert spec is not None  # only custom methods have none
    return Method(name, spec, registry.load(registry.METHODS[name]))


def method_lookup(directory: str | os.PathLike[str] = ".") -> Lookup:
    """A ``lookup`` for ``load_recipes`` that knows the parameters of custom methods too, by running their files.

    >>> method_lookup()("linear").find("weight").per_model
    True
    """
    return lambda name: load_method(name, directory).spec
