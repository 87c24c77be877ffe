"""Tokenizers between Hugging Face files and GGUF key-values, in both directions."""
