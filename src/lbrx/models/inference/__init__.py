"""Forward passes of language models on mapped files.

``open_model`` opens a Hugging Face or MLX directory or a GGUF file; the model computes logits and new tokens.
"""

from lbrx.models.inference.cache import KeyValueCache
from lbrx.models.inference.language_model import LanguageModel
from lbrx.models.inference.opening import open_model
from lbrx.models.inference.sampling import Sampling
from lbrx.models.inference.spec import ModelSpec
from lbrx.models.inference.speed import Speed

__all__ = ["KeyValueCache", "LanguageModel", "ModelSpec", "Sampling", "Speed", "open_model"]
