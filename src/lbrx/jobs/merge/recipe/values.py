"""Values of parameters: scalars, gradients over the layers of a slice, and either of them per tensor name.

All of them have one form: branches, of which the first whose filter is part of the tensor's name counts,
each with one or more points. One point is a constant. More points of a number are a piecewise-linear
gradient over the layer position t in 0..1; of anything else, point ``floor(t * (n - 1))`` counts.
"""

from __future__ import annotations

from dataclasses import field

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.jobs.merge.methods.parameters import ParameterType, Scalar, coerce
from lbrx.jobs.merge.recipe.reading import optional, read_list, read_map, read_text
from lbrx.jobs.merge.recipe.yaml_lines import RecipeLine, YamlList, YamlMap, YamlNode, YamlScalar, describe


@dataclass(frozen=True, slots=True)
class Branch:
    """The points that hold for tensors whose name has ``filter`` in it, or for all of them.

    >>> Branch("mlp", (0.5,)).matches("model.layers.0.mlp.up_proj.weight")
    True
    """

    filter: str | None
    points: tuple[Scalar, ...]
    location: RecipeLine = field(default=RecipeLine("value", 1), compare=False)

    @property
    def matches_all(self) -> bool:
        return self.filter is None or self.filter == "*"

    def matches(self, tensor_name: str) -> bool:
        return self.filter is None or self.filter == "*" or self.filter in tensor_name


@dataclass(frozen=True, slots=True)
class Value:
    """What a recipe says about one parameter in one scope.

    >>> value = Value((Branch("mlp", (1.0, 0.0)), Branch(None, (0.25,))))
    >>> value.evaluate("float", "model.layers.1.mlp.up_proj.weight", t=0.25)
    0.75
    >>> value.evaluate("float", "model.norm.weight", t=0.0)
    0.25
    """

    branches: tuple[Branch, ...]
    location: RecipeLine = field(default=RecipeLine("value", 1), compare=False)

    @property
    def constant(self) -> Scalar | None:
        """The scalar that holds for every tensor and layer, or None if it depends on them."""
        first = self.branches[0]
        return first.points[0] if first.matches_all and len(first.points) == 1 else None

    def evaluate(self, parameter_type: ParameterType, tensor_name: str, t: float) -> Scalar | None:
        """The scalar for a tensor at layer position ``t``; None if no filter matches its name."""
        for branch in self.branches:
            if branch.matches(tensor_name):
                points = [coerce(parameter_type, point, branch.location) for point in branch.points]
                return _at_position(parameter_type, points, t)
        return None


def _at_position(parameter_type: ParameterType, points: list[Scalar], t: float) -> Scalar:
    if not 0.0 <= t <= 1.0:
        raise UsageError(f"the layer position is {t}; expected 0 to 1")
    scaled = t * (len(points) - 1)
    low = int(scaled)
    if parameter_type != "float":
        return points[low]
    high = min(low + 1, len(points) - 1)
    fraction = scaled - low
    return (1 - fraction) * float(points[low]) + fraction * float(points[high])


def layer_position(layer: int, layers: int) -> float:
    """The position t of a layer within its slice: 0 at the first, 1 at the last and at an only one.

    >>> layer_position(1, 5), layer_position(0, 1)
    (0.25, 1.0)
    """
    if not 0 <= layer < layers:
        raise UsageError(f"layer {layer} is not in a slice of {layers} layers")
    return layer / (layers - 1) if layers > 1 else 1.0


def read_value(node: YamlNode, name: str, key_location: RecipeLine | None = None) -> Value:
    """The value in a node: a scalar, a list of them, ``{filter, value}``, or a list of those.

    Its place is that of its key, if given; its branches have the places of their points.

    >>> from lbrx.jobs.merge.recipe.yaml_lines import parse_documents
    >>> (node,) = parse_documents("[{filter: mlp, value: [0, 1]}, {value: 0.5}]")
    >>> [(branch.filter, branch.points) for branch in read_value(node, "t").branches]
    [('mlp', (0, 1)), (None, (0.5,))]
    """
    location = key_location or node.location
    if isinstance(node, YamlMap):
        return Value((_read_branch(node, name),), location)
    if isinstance(node, YamlList) and any(isinstance(item, YamlMap) for item in node.items):
        return Value(tuple(_read_branch(item, name) for item in node.items), location)
    return Value((Branch(None, _read_points(node, name), node.location),), location)


def _read_branch(node: YamlNode, name: str) -> Branch:
    if not isinstance(node, YamlMap):
        raise node.location.error(
            f"{name!r} mixes plain values and filters; expected every item to be {{filter, value}}, "
            f"found {describe(node)}"
        )
    mapping = read_map(node, f"a filtered value of {name!r}", ("filter", "value"), required=("value",))
    filter_node = optional(mapping, "filter")
    return Branch(
        filter=None if filter_node is None else read_text(filter_node, "'filter'"),
        points=_read_points(mapping.entries["value"], name),
        location=mapping.entries["value"].location,
    )


def _read_points(node: YamlNode, name: str) -> tuple[Scalar, ...]:
    if isinstance(node, YamlList):
        return tuple(_read_point(item, name) for item in read_list(node, repr(name)))
    return (_read_point(node, name),)


def _read_point(node: YamlNode, name: str) -> Scalar:
    if not isinstance(node, YamlScalar) or node.value is None:
        raise node.location.error(f"{name!r} must be a value, a list or {{filter, value}}, found {describe(node)}")
    return node.value
