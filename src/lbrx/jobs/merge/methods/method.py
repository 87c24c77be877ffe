"""A merge method by name: its function, the parameters in its signature, and how it is called for one tensor."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, isfunction, signature, unwrap
from types import NoneType, UnionType
from typing import Any

from lbrx import registry
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError, nearest
from lbrx.jobs.merge.methods.parameters import (
    INPUT_TEXT,
    NO_EFFECT,
    REQUIRED,
    BasePolicy,
    InputGram,
    Limits,
    Lookup,
    MethodParameter,
    MethodSpec,
    ParameterType,
    Required,
    Scalar,
    TensorParameters,
)
from lbrx.tensors.expr import StreamKey
from lbrx.tensors.random_keys import stream_key
from lbrx.tensors.shape import Layout, checked_shape
from lbrx.tensors.tensor import Tensor
from lbrx.tensors.views import counter

_TYPES: dict[Any, ParameterType] = {float: "float", int: "int", bool: "bool", str: "str"}
_SEQUENCES = (Sequence, list, tuple)
_VOCABULARY_PARTS = ("embed", "lm_head", "wte", "token_embd", "word_embeddings")
_GGUF_HEAD = "output.weight"


@dataclass(frozen=True, slots=True)
class MergeContext:
    """The output tensor's name, the recipe's seed, and inputs of the tensor if they were measured.

    >>> context = MergeContext("lm_head.weight", seed=7)
    >>> bool(((context.uniform((8,), model=0) - context.uniform((8,), model=0)) == 0).min())
    True
    """

    tensor_name: str
    seed: int = 0
    grams: Callable[[int], InputGram | None] | None = None

    @property
    def is_vocabulary(self) -> bool:
        """Whether the tensor has a row for every token, by its name.

        >>> MergeContext("model.embed_tokens.weight").is_vocabulary, MergeContext("model.layers.0.w").is_vocabulary
        (True, False)
        """
        name = self.tensor_name
        return name == _GGUF_HEAD or any(part in name for part in _VOCABULARY_PARTS)

    def gram(self, model: int) -> InputGram | None:
        """What this tensor of one model is multiplied with, if the method has a parameter for a text.

        None for tensors that are not matrices of linear layers.
        """
        return None if self.grams is None else self.grams(model)

    def uniform(self, shape: Sequence[int], model: int) -> Tensor:
        """Uniform numbers in [0, 1) that belong to one model of this tensor: the same whenever they are asked for."""
        return Tensor(counter("uniform", Layout.contiguous(checked_shape(shape)), self.key(model)))

    def key(self, model: int) -> StreamKey:
        """The key of the numbers that belong to one model."""
        return stream_key(self.seed, f"{self.tensor_name}#{model}")


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
        """Whether it comes from a user's file or from an installed package."""
        return self.name not in registry.METHODS

    def merge(
        self, inputs: Sequence[Tensor], base_index: int | None, parameters: TensorParameters, context: MergeContext
    ) -> Tensor:
        """The merged tensor as an expression; ``base_index`` is the place of the base among the inputs, if any.

        >>> from lbrx import tensor
        >>> a, b = tensor([1.0], "f32"), tensor([5.0], "f32")
        >>> parameters = TensorParameters({"normalize": True}, ({"weight": 3.0}, {"weight": 1.0}))
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


def is_custom_method(name: str) -> bool:
    """Whether a method's name points to a function in a Python file, as ``./file.py:function``.

    >>> is_custom_method("./mine.py:blend"), is_custom_method("slerp")
    (True, False)
    """
    path, colon, function = name.rpartition(":")
    return bool(colon) and path.endswith(".py") and function.isidentifier()


def load_method(name: str, directory: str | os.PathLike[str] = ".") -> Method:
    """The method of a name: built in, of an installed package, or ``./file.py:function`` seen from ``directory``.

    The file of a custom method is run. The signature of the function says what it takes: ``models``; ``base: Tensor``
    if it needs a base model, or ``base: Tensor | None`` if it can do without; ``context: MergeContext`` if it wants
    one; and parameters with a type (float, int, bool or str), a ``Sequence`` of a type for one value per model. A
    parameter without a default has to be in the recipe. The default of a sequence is a tuple of one value, for every
    model without its own. ``Annotated`` adds limits: see `lbrx.jobs.merge.methods.parameters`.

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
        from lbrx.jobs.merge.methods.custom import load_function

        function = load_function(name, directory)
        file_name, _, function_name = name.rpartition(":")
        return Method(name, spec_of(function, name, f"{file_name}{line_of(function)}: {function_name}()"), function)
    return _named_method(name)


@cache
def _named_method(name: str) -> Method:
    """A method that is built in or that an installed package provides."""
    if name in registry.METHODS:
        function = registry.load(registry.METHODS[name])
        return Method(name, spec_of(function, name), function)
    entries = registry.installed("lbrx.methods", registry.METHODS)
    if name not in entries:
        names = (*registry.METHODS, *entries)
        hint = nearest(name, names) or f"; expected one of {', '.join(names)}, or ./file.py:function"
        raise UsageError(f"unknown merge method {name!r}{hint}")
    from lbrx.jobs.merge.methods.custom import installed_function

    function = installed_function(entries[name])
    return Method(name, spec_of(function, name, f"{registry.package_of(entries[name])}: {name}()"), function)


def method_spec(name: str) -> MethodSpec | None:
    """The description of a method; None for one in a file, which is not run here.

    >>> method_spec("ties").needs_base
    'required'
    """
    return None if is_custom_method(name) else load_method(name).spec


def check_code_allowed(name: str, directory: str | os.PathLike[str], allow_code: bool) -> None:
    """Raise if a recipe names a method in a Python file and may not run code.

    >>> check_code_allowed("./mine.py:blend", "recipes", allow_code=False)
    Traceback (most recent call last):
    lbrx.errors.UsageError: recipes/mine.py: the recipe runs this Python file; read it first, then give --allow-code ...
    """
    if is_custom_method(name) and not allow_code:
        path = os.path.normpath(os.path.join(directory, name.rpartition(":")[0]))
        raise UsageError(
            f"{path}: the recipe runs this Python file; read it first, then give --allow-code "
            "(allow_code=True in Python)"
        )


def method_lookup(directory: str | os.PathLike[str] = ".", *, allow_code: bool = False) -> Lookup:
    """A ``lookup`` for ``load_recipes`` that knows custom methods too, by running their files if that is allowed.

    >>> method_lookup()("linear").find("weight").per_model
    True
    """

    def lookup(name: str) -> MethodSpec:
        check_code_allowed(name, directory, allow_code)
        return load_method(name, directory).spec

    return lookup


def spec_of(function: Callable[..., Tensor], name: str, where: str | None = None) -> MethodSpec:
    """What a method takes, from its function's signature; errors begin with ``where``.

    >>> def blend(models: Sequence[Tensor], base: Tensor | None = None, *, t: float = 0.5) -> Tensor: ...
    >>> spec = spec_of(blend, "blend")
    >>> spec.needs_base, spec.find("t").default
    ('optional', 0.5)
    """
    where = where or f"{name}()"
    parameters = signature(function).parameters
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise UsageError(f"{where}: the types of its parameters cannot be read: {error}") from error
    if "models" not in parameters:
        found = ", ".join(parameters) or "no parameters"
        raise UsageError(f"{where} takes {found}; expected a parameter 'models', the tensors to merge")
    for parameter in parameters.values():
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise UsageError(f"{where}: {str(parameter)!r} cannot be passed by keyword; expected named parameters only")
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    types = {name: hint.__origin__ if marks[name] else hint for name, hint in hints.items()}
    _check_context(types.get("context"), where)
    count = _limits(marks.get("models", ()))
    return MethodSpec(
        name,
        tuple(
            _parameter(parameter, types.get(parameter.name), marks.get(parameter.name, ()), where)
            for parameter in parameters.values()
            if parameter.name not in ("models", "base", "context")
        ),
        _base_policy(parameters.get("base"), types.get("base")),
        (int(count.minimum or 1), None if count.maximum is None else int(count.maximum)),
        tuple(mark for each in marks.values() for mark in each if isfunction(mark)),
    )


def line_of(function: Callable[..., Any]) -> str:
    """Where a function begins, as ``:12``; nothing for a callable object."""
    code = getattr(unwrap(function), "__code__", None)
    return "" if code is None else f":{code.co_firstlineno}"


def _limits(marks: tuple[Any, ...]) -> Limits:
    return next((mark for mark in marks if isinstance(mark, Limits)), Limits())


def _check_context(annotation: Any, where: str) -> None:
    if annotation not in (None, MergeContext):
        raise UsageError(f"{where}: 'context' has the type {_type_name(annotation)}; expected MergeContext")


def _base_policy(parameter: Parameter | None, annotation: Any) -> BasePolicy:
    if parameter is None:
        return "ignored"
    if parameter.default is None or _without_none(annotation) is not annotation:
        return "optional"
    return "required"


def _parameter(parameter: Parameter, annotation: Any, marks: tuple[Any, ...], function: str) -> MethodParameter:
    where = f"{function}: parameter {parameter.name!r}"
    default: Any = REQUIRED if parameter.default is Parameter.empty else parameter.default
    if annotation is None and not isinstance(default, Required):
        annotation = Sequence[type(default[0])] if _is_single(default) else type(default)  # type: ignore[misc]
    item = _item_type(annotation)
    parameter_type = _TYPES.get(_without_none(annotation if item is None else item))
    if parameter_type is None:
        found = "no type" if annotation is None else f"the type {_type_name(annotation)}"
        raise UsageError(f"{where} has {found}; expected float, int, bool or str, or a Sequence of one of them")
    if item is not None and not isinstance(default, Required):
        if not _is_single(default):
            raise UsageError(f"{where} has the default {default!r}; expected a tuple of the one value for each model")
        default = default[0]
    limits = _limits(marks)
    return MethodParameter(
        "lambda" if parameter.name == "lambda_" else parameter.name,
        parameter_type,
        _checked_default(default, parameter_type, where),
        per_model=item is not None,
        gradient=parameter_type != "int",
        minimum=limits.minimum,
        maximum=limits.maximum,
        effective=NO_EFFECT not in marks,
        is_text=_is_text(marks, parameter_type, item is not None, where),
    )


def _is_text(marks: tuple[Any, ...], parameter_type: ParameterType, per_model: bool, where: str) -> bool:
    if INPUT_TEXT not in marks:
        return False
    if parameter_type != "str" or not per_model:
        raise UsageError(f"{where} names the text of each model; expected the type Sequence[str]")
    return True


def _is_single(default: object) -> bool:
    return isinstance(default, tuple | list) and len(default) == 1


def _checked_default(default: Any, parameter_type: ParameterType, where: str) -> Scalar | Required | None:
    if default is None or isinstance(default, Required):
        return default
    expected = {"float": (float, int), "int": (int,), "bool": (bool,), "str": (str,)}[parameter_type]
    if not isinstance(default, expected) or (isinstance(default, bool) and parameter_type != "bool"):
        raise UsageError(f"{where} has the default {default!r}; expected one of type {parameter_type}")
    return float(default) if parameter_type == "float" else default


def _item_type(annotation: Any) -> Any:
    """The type of a sequence's items, or None if the annotation is not a sequence."""
    arguments = typing.get_args(annotation)
    return arguments[0] if typing.get_origin(annotation) in _SEQUENCES and arguments else None


def _without_none(annotation: Any) -> Any:
    """``T`` of ``T | None``; anything else as it is."""
    if typing.get_origin(annotation) in (UnionType, typing.Union):
        rest = [item for item in typing.get_args(annotation) if item is not NoneType]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
