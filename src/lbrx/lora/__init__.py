"""LoRA adapters: applied to a model while it is read, and extracted from the difference of two models."""

from typing import TYPE_CHECKING

from lbrx.late import late_names

if TYPE_CHECKING:
    from lbrx.lora.adapter import PatchedTensors, open_with_adapter
    from lbrx.lora.config import AdapterConfig, read_config
    from lbrx.lora.extract import CapturedTensor, Extraction, ExtractOptions, LeftOutTensor, extract_adapter
    from lbrx.lora.low_rank import LowRankStorage, low_rank_product

__all__ = [
    "AdapterConfig",
    "CapturedTensor",
    "ExtractOptions",
    "Extraction",
    "LeftOutTensor",
    "LowRankStorage",
    "PatchedTensors",
    "extract_adapter",
    "low_rank_product",
    "open_with_adapter",
    "read_config",
]

__getattr__ = late_names(
    __name__,
    {
        "lbrx.lora.adapter": ("PatchedTensors", "open_with_adapter"),
        "lbrx.lora.config": ("AdapterConfig", "read_config"),
        "lbrx.lora.extract": ("CapturedTensor", "Extraction", "ExtractOptions", "LeftOutTensor", "extract_adapter"),
        "lbrx.lora.low_rank": ("LowRankStorage", "low_rank_product"),
    },
)
