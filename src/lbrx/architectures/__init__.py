"""Architectures as data: which tensors a model has, how its layers are numbered, what its config implies."""

from lbrx.architectures.architecture import Architecture
from lbrx.architectures.automatic import AUTOMATIC, automatic
from lbrx.architectures.checks import ModelHeader, check_models, check_names, check_shapes
from lbrx.architectures.config import stacked_config
from lbrx.architectures.scope import text_section
from lbrx.architectures.table import ARCHITECTURES, find_architecture, known_architecture
from lbrx.architectures.weights import LayerRule, Naming, TensorRole, Weight

__all__ = [
    "ARCHITECTURES",
    "AUTOMATIC",
    "Architecture",
    "LayerRule",
    "ModelHeader",
    "Naming",
    "TensorRole",
    "Weight",
    "automatic",
    "check_models",
    "check_names",
    "check_shapes",
    "find_architecture",
    "known_architecture",
    "stacked_config",
    "text_section",
]
