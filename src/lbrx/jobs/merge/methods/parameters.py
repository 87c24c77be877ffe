"""What merge methods take: records of parameters, and the marks in the signatures that they are read from.

In the signature of a method, ``Annotated`` adds what a type cannot say: `Limits`, `NO_EFFECT`, `INPUT_TEXT`, or a
`Constraint`.

>>> from collections.abc import Sequence
>>> from typing import Annotated
>>> Share = Annotated[Sequence[float], Limits(0, 1)]  # a parameter of each model, between 0 and 1
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Scalar: TypeAlias = bool | int | float | str
ParameterType: TypeAlias = Literal["float", "int", "bool", "str"]

_TYPE_NAMES: dict[ParameterType, str] = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "text",
}
# YAML 1.1 reads 1e-5 as text, because it demands a dot and a signed exponent.
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


class Location(Protocol):
    """Where in a recipe a value is."""

    def error(self, problem: str, /) -> Exception: ...


class Required(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required.REQUIRED

BasePolicy: TypeAlias = Literal["required", "optional", "ignored", "forbidden"]
Resolved: TypeAlias = Mapping[str, Scalar | None]


@dataclass(frozen=True, slots=True)
class MethodParameter:
    """One parameter of a merge method.

    Parameters that are not ``per_model`` are shared: a recipe cannot set them for one model. A parameter
    that is not ``effective`` is accepted because mergekit accepts it, and changes nothing. One that ``is_text`` names
    a file: the model is run on it before it is merged (see `INPUT_TEXT`).

    >>> density = MethodParameter("density", "float", 1.0, per_model=True, minimum=0, maximum=1)
    >>> from lbrx.jobs.merge.recipe import RecipeLine
    >>> density.read("5e-1", RecipeLine("recipe.yml", 3))
    0.5
    """

    name: str
    type: ParameterType
    default: Scalar | Required | None = REQUIRED
    per_model: bool = False
    gradient: bool = True
    minimum: float | None = None
    maximum: float | None = None
    effective: bool = True
    is_text: bool = False

    def __post_init__(self) -> None:
        if self.type == "int" and self.gradient:
            raise UsageError(f"parameter {self.name!r} is a whole number; expected gradient=False")

    def read(self, raw: Scalar, location: Location) -> Scalar:
        """A scalar of a recipe as a value of this parameter, or an error about its type or range."""
        value = coerce(self.type, raw, location, self.name)
        if isinstance(value, int | float):
            below = self.minimum is not None and value < self.minimum
            above = self.maximum is not None and value > self.maximum
            if below or above:
                raise location.error(f"{self.name!r} must be {self._range()}, found {raw}")
        return value

    def _range(self) -> str:
        if self.minimum is None:
            return f"at most {self.maximum:g}"
        if self.maximum is None:
            return f"at least {self.minimum:g}"
        return f"between {self.minimum:g} and {self.maximum:g}"


@dataclass(frozen=True, slots=True)
class TensorParameters:
    """The parameters for one tensor; ``per_model`` has None in the place of a base that takes none."""

    shared: Resolved
    per_model: tuple[Resolved | None, ...]

    def across_models(self, name: str) -> tuple[Scalar | None, ...]:
        """One per-model parameter, for the models that take parameters.

        >>> TensorParameters({}, ({"weight": 0.5}, None)).across_models("weight")
        (0.5,)
        """
        return tuple(values[name] for values in self.per_model if values is not None)


@dataclass(frozen=True, slots=True)
class Violation:
    """Why parameters cannot go together, and which source it is about if it is about one."""

    problem: str
    source_index: int | None = None


Constraint: TypeAlias = Callable[[TensorParameters], Violation | None]
"""A function that checks the parameters of a tensor together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The least and the greatest value of a parameter, or number of models; None: no limit."""

    minimum: float | None = None
    maximum: float | None = None


NO_EFFECT: Final = "no effect"
"""Marks a parameter that is accepted because mergekit accepts it, and changes nothing."""

INPUT_TEXT: Final = "input text"
"""Marks the parameter of each model that names a text. Models are run on their texts before they are merged, and
`MergeContext.gram` has what their matrices were multiplied with."""


@dataclass(frozen=True, slots=True)
class InputGram:
    """The mean of x x' over the inputs x of a matrix, which are multiplied along its ``axis``."""

    mean: npt.NDArray[np.float64]
    axis: int = 1


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """What a merge method takes.

    ``needs_base`` is "ignored" where the base model is an input like any other. ``model_count`` is the least
    and the greatest number (None: no limit) of models besides the base, or of all of them where the base
    is ignored. ``constraints`` check the resolved parameters of a tensor together.

    >>> slerp = MethodSpec("slerp", (MethodParameter("t", "float"),), "required", (1, 1))
    >>> slerp.find("t").default, slerp.find("weight")
    (REQUIRED, None)
    """

    name: str
    parameters: tuple[MethodParameter, ...] = ()
    needs_base: BasePolicy = "ignored"
    model_count: tuple[int, int | None] = (1, None)
    constraints: tuple[Constraint, ...] = ()

    def find(self, name: str) -> MethodParameter | None:
        """The parameter of a name, or None."""
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    @property
    def text_parameter(self) -> str | None:
        """The parameter that names the text of a model, if the method needs one."""
        return next((parameter.name for parameter in self.parameters if parameter.is_text), None)


Lookup: TypeAlias = Callable[[str], MethodSpec | None]
"""A method's description by name; None if its parameters are not known yet, UsageError if there is no such method."""


def coerce(parameter_type: ParameterType, raw: Scalar, location: Location, name: str = "value") -> Scalar:
    """A scalar of a recipe as a value of a parameter's type, or an error.

    >>> from lbrx.jobs.merge.recipe import RecipeLine
    >>> coerce("float", "1e-5", RecipeLine("recipe.yml", 1))
    1e-05
    >>> coerce("bool", 1.0, RecipeLine("recipe.yml", 1))
    True
    """
    match parameter_type:
        case "float":
            return _to_float(raw, location, name)
        case "int" if type(raw) is int:
            return raw
        case "int":
            number = _to_float(raw, location, name, parameter_type)
            if not number.is_integer():
                raise _wrong_type(parameter_type, raw, location, name)
            return int(number)
        case "bool" if isinstance(raw, bool):
            return raw
        case "bool" if isinstance(raw, int | float) and raw in (0, 1):
            return bool(raw)
        case "str" if isinstance(raw, str):
            return raw
    raise _wrong_type(parameter_type, raw, location, name)


def _to_float(raw: Scalar, location: Location, name: str, parameter_type: ParameterType = "float") -> float:
    if isinstance(raw, bool) or (isinstance(raw, str) and not _NUMBER.fullmatch(raw)):
        raise _wrong_type(parameter_type, raw, location, name)
    try:
        number = float(raw)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise location.error(f"{name!r} must be finite, found {raw}")
    return number


def _wrong_type(parameter_type: ParameterType, raw: Scalar, location: Location, name: str) -> Exception:
    found = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return location.error(f"{name!r} must be {_TYPE_NAMES[parameter_type]}, found {found}")
