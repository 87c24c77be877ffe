"""Model families as data: which tensors a model has, how its layers are numbered, what its config implies."""

from lbrx.models.architectures.checks import ModelHeader, check_models, check_names, check_shapes
from lbrx.models.architectures.config import text_section
from lbrx.models.architectures.family import Family
from lbrx.models.architectures.records import LayerRule, Naming, TensorRole, Weight
from lbrx.models.architectures.stacked_config import stacked_config
from lbrx.models.architectures.table import AUTOMATIC, automatic, find_family, known_family

__all__ = [
    "AUTOMATIC",
    "Family",
    "LayerRule",
    "ModelHeader",
    "Naming",
    "TensorRole",
    "Weight",
    "automatic",
    "check_models",
    "check_names",
    "check_shapes",
    "find_family",
    "known_family",
    "stacked_config",
    "text_section",
]
