"""What a conversion or quantization changed: every tensor of two models in any formats, measured."""

from lbrx.jobs.compare.measuring import compare_models
from lbrx.jobs.compare.models import ComparedModel, open_alike, open_pair
from lbrx.jobs.compare.records import BlockError, Comparison, TensorError

__all__ = ["BlockError", "ComparedModel", "Comparison", "TensorError", "compare_models", "open_alike", "open_pair"]
