"""LoRA adapters: applied to a model while it is read, and extracted from the difference of two models."""

from typing import TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from lbrx.jobs.lora.adapter import PatchedTensors as PatchedTensors
    from lbrx.jobs.lora.adapter import open_with_adapter as open_with_adapter
    from lbrx.jobs.lora.config import AdapterConfig as AdapterConfig
    from lbrx.jobs.lora.config import read_config as read_config
    from lbrx.jobs.lora.extract import CapturedTensor as CapturedTensor
    from lbrx.jobs.lora.extract import Extraction as Extraction
    from lbrx.jobs.lora.extract import ExtractOptions as ExtractOptions
    from lbrx.jobs.lora.extract import LeftOutTensor as LeftOutTensor
    from lbrx.jobs.lora.extract import extract_adapter as extract_adapter
    from lbrx.jobs.lora.low_rank import low_rank_product as low_rank_product

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
