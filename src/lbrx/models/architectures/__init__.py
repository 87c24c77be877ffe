"""Architectures as data: which tensors a model has, how its layers are numbered, what its config implies."""

from lbrx.models.architectures.architecture import Architecture, LayerRule, Naming, TensorRole, Weight
from lbrx.models.architectures.checks import ModelHeader, check_models, check_names, check_shapes
from lbrx.models.architectures.config import stacked_config
from lbrx.models.architectures.scope import text_section
from lbrx.models.architectures.table import ARCHITECTURES, AUTOMATIC, automatic, find_architecture, known_architecture

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
