"""What a conversion or quantization changed: every tensor of two models in any formats, measured."""

from lbrx.comparing.measuring import compare_models
from lbrx.comparing.models import ComparedModel, open_pair
from lbrx.comparing.records import BlockError, Comparison, TensorError

__all__ = ["BlockError", "ComparedModel", "Comparison", "TensorError", "compare_models", "open_pair"]
