"""Names of the tokenizer keys of a GGUF file."""

from __future__ import annotations

PREFIX = "tokenizer.ggml."
RULES_KEY = "lbrx.hf.tokenizer_rules"
"""The normalizer and the pre-tokenizer of a tokenizer.json whose splitting rule has no name in llama.cpp."""

ID_KEYS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
    "eot": "eot",
}
"""Special tokens by role, and their names in keys. GGUF has the spelling mistake."""
