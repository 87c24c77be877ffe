"""The numbers of a config.json that shapes are made of, read with the defaults of a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.models.architectures.scope import text_section


class ConfigValues:
    """The values of a language model's config: those of its text section, then of the whole, then defaults.

    A null counts as absent, and hides a default.

    >>> settings = ConfigValues({"num_experts": 4, "head_dim": None}, {"rms_norm_eps": 1e-6}, "a model")
    >>> settings.count("num_local_experts", "num_experts"), settings.number("rms_norm_eps"), settings.get("head_dim")
    (4, 1e-06, None)
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        given = {**defaults, **config, **text_section(config)}
        self.values = {key: value for key, value in given.items() if value is not None}
        self.where = where

    def get(self, *keys: str) -> Any:
        """The first of these keys that is there, or None."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def count(self, *keys: str) -> int:
        """A whole number of at least 1."""
        value = self.get(*keys)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(keys, value, "a whole number of at least 1")
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        value = self.get(*keys)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(keys, value, "a number")
        return float(value)

    def _wrong(self, keys: tuple[str, ...], value: Any, expected: str) -> UsageError:
        problem = "is missing" if value is None else f"is {value!r:.60}"
        return UsageError(f"{self.where}: {keys[0]!r} of config.json {problem}; expected {expected}")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of a model."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    feed_forward: int
    vocab: int
    experts: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0

    @classmethod
    def of(cls, settings: ConfigValues, is_mixture: bool) -> Dimensions:
        """What a config says.

        >>> config = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
        >>> Dimensions.of(ConfigValues({**config, "vocab_size": 32}, {}, "a model"), is_mixture=False).head
        4
        """
        hidden, heads = settings.count("hidden_size"), settings.count("num_attention_heads")
        head = settings.count("head_dim") if settings.get("head_dim") is not None else hidden // heads
        feed_forward = settings.count("intermediate_size")
        shared = "shared_expert_intermediate_size"
        return cls(
            layers=settings.count("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            key_heads=settings.count("num_key_value_heads", "num_attention_heads"),
            head=head,
            feed_forward=feed_forward,
            vocab=settings.count("vocab_size"),
            experts=settings.count("num_local_experts", "num_experts") if is_mixture else 0,
            expert_feed_forward=settings.count("moe_intermediate_size", "intermediate_size") if is_mixture else 0,
            shared_feed_forward=settings.count(shared) if is_mixture and settings.get(shared) is not None else 0,
        )

    def shape(self, names: Iterable[str]) -> tuple[int, ...]:
        """The sizes that the shape of a rule names.

        >>> Dimensions(1, 8, 2, 1, 4, 16, 32).shape(("query_key_value", "hidden"))
        (16, 8)
        """
        query, key = self.heads * self.head, self.key_heads * self.head
        sizes = {
            "one": 1,
            "hidden": self.hidden,
            "head": self.head,
            "query": query,
            "key": key,
            "query_key_value": query + 2 * key,
            "feed_forward": self.feed_forward,
            "gate_and_up": 2 * self.feed_forward,
            "vocab": self.vocab,
            "experts": self.experts,
            "expert_feed_forward": self.expert_feed_forward,
            "shared_feed_forward": self.shared_feed_forward,
        }
        return tuple(sizes[name] for name in names)
