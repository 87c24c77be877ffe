"""Tokenizers between Hugging Face files and GGUF key-values, in both directions."""

from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata

__all__ = ["gguf_tokenizer_metadata", "tokenizer_files"]
