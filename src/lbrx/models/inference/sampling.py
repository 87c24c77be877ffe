"""Choose the next token from the logits: the most likely one, or sampled."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings. A temperature of 0 takes the most likely token; ``top_k`` 0 and ``top_p`` 1 do not limit it.

    ``min_p`` drops tokens that are less likely than this part of the most likely one. ``repetition_penalty`` makes
    tokens of the text so far less likely: positive logits are divided by it, negative ones multiplied.

    >>> Sampling(temperature=-1)
    Traceback (most recent call last):
    lbrx.errors.UsageError: temperature is -1; expected 0 or more
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}; expected 0 or more")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}; expected more than 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p is {self.min_p}; expected 0 to 1")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UsageError(f"repetition_penalty is {self.repetition_penalty}; expected more than 0")
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}; expected 0 or more")


class Sampler:
    """Samples tokens; equal seeds give equal tokens.

    >>> Sampler(Sampling()).draw(np.array([0.5, 2.0, 1.0], np.float32))
    1
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(sampling.seed))
        self._seen: set[int] = set()

    def see(self, tokens: Iterable[int]) -> None:
        """Count tokens as part of the text so far, which a repetition penalty makes less likely."""
        if self._sampling.repetition_penalty != 1:
            self._seen.update(map(int, tokens))

    def draw(self, logits: npt.NDArray[np.float32]) -> int:
        """Sample a token from the logits of one position; it becomes part of the text so far."""
        if not np.isfinite(logits.max()):
            raise UsageError("the logits are not finite, so no token can be chosen; the weights may be damaged")
        token = self._drawn(self._penalized(logits) if self._seen else logits)
        self.see((token,))
        return token

    def _penalized(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        penalty = np.float32(self._sampling.repetition_penalty)
        seen = np.fromiter(self._seen, np.int64, len(self._seen))
        changed = logits.copy()
        values = logits[seen]
        changed[seen] = np.where(values > 0, values / penalty, values * penalty)
        return changed

    def _drawn(self, logits: npt.NDArray[np.float32]) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return int(np.argmax(logits))
        # Sorted with the token id as the second key, so that the order of equal logits is the same everywhere.
        order = np.argsort(-logits, kind="stable")
        kept = order[: sampling.top_k] if sampling.top_k else order
        scaled = logits[kept].astype(np.float64) / sampling.temperature
        weights = np.exp(scaled - scaled[0])
        shares = np.cumsum(weights / weights.sum())
        # The smallest set of tokens whose probability reaches top_p: at least one.
        count = min(int(np.searchsorted(shares, sampling.top_p)) + 1, kept.size)
        if sampling.min_p:
            count = min(count, max(1, int(np.count_nonzero(weights >= sampling.min_p))))  # the first weight is 1
        point = self._random.random() * shares[count - 1]
        return int(kept[min(int(np.searchsorted(shares[:count], point, side="right")), count - 1)])
