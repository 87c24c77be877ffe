"""A corpus of malformed files: what each contains, and the error it must be rejected with."""

from __future__ import annotations

from support.malformed_bytes import Malformed
from support.malformed_directories import directory_cases, foreign_cases
from support.malformed_gguf import gguf_cases
from support.malformed_safetensors import safetensors_cases


def corpus() -> list[Malformed]:
    """All cases; each builds its files in an empty directory and names the path to open."""
    return [*safetensors_cases(), *gguf_cases(), *directory_cases(), *foreign_cases()]
