"""The speed of generating text: the prompt and the new tokens apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter

from lbrx.base.fast_dataclass import dataclass


@dataclass(slots=True)
class Speed:
    """Tokens and seconds of a text. The first new token is computed with the prompt and counts as part of it.

    >>> Speed(prompt_tokens=8, tokens=5, prompt_seconds=0.5, seconds=2.0).decode_tokens_per_second
    2.0
    """

    prompt_tokens: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0  # until the first new token
    seconds: float = 0.0  # after it

    @property
    def prompt_tokens_per_second(self) -> float:
        """Tokens of the prompt per second."""
        return self.prompt_tokens / max(self.prompt_seconds, 1e-9)

    @property
    def decode_tokens_per_second(self) -> float:
        """New tokens per second, without the first."""
        return max(self.tokens - 1, 0) / max(self.seconds, 1e-9)

    def measured(self, prompt_tokens: int, tokens: Iterable[int]) -> Iterator[int]:
        """Yield new tokens; the time that their consumer needs counts, too."""
        self.prompt_tokens, start = prompt_tokens, perf_counter()
        first: float | None = None
        for token in tokens:
            now = perf_counter()
            if first is None:
                first, self.prompt_seconds = now, now - start
            self.tokens += 1
            self.seconds = now - first
            yield token
