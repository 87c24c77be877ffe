"""Models in fewer bits: which type each tensor gets, and the job that writes them."""

from lbrx.jobs.quantize.choice import Choice, choose_types
from lbrx.jobs.quantize.coded import CodedTensor, Quantization
from lbrx.jobs.quantize.options import KeyOverride, QuantizeOptions, TypeOverride, parse_options
from lbrx.jobs.quantize.quantize import QuantizePlan, plan_contents, plan_quantize, quantize, quantized
from lbrx.jobs.quantize.targets import target_names

__all__ = [
    "Choice",
    "CodedTensor",
    "KeyOverride",
    "Quantization",
    "QuantizeOptions",
    "QuantizePlan",
    "TypeOverride",
    "choose_types",
    "parse_options",
    "plan_contents",
    "plan_quantize",
    "quantize",
    "quantized",
    "target_names",
]
