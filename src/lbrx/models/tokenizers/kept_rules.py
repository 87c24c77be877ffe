"""Splitting rules without a name in llama.cpp, which a GGUF file keeps as the JSON of tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError
from lbrx.files.formats.strict_json import parse_object

_MAX_LENGTH = 1 << 20


@dataclass(frozen=True, eq=False)
class KeptRules:
    """The normalizer, the pre-tokenizer and the setting ``ignore_merges`` of a tokenizer.json."""

    normalizer: Any
    pre_tokenizer: Any
    ignores_merges: bool

    @classmethod
    def of_document(cls, content: Mapping[str, Any]) -> KeptRules:
        model = content.get("model")
        ignores = bool(model.get("ignore_merges")) if isinstance(model, Mapping) else False
        return cls(content.get("normalizer"), content.get("pre_tokenizer"), ignores)

    @classmethod
    def parse(cls, text: Any, where: str) -> KeptRules | None:
        """Parse the value of the key, or return None if there is none.

        >>> KeptRules.parse('{"ignore_merges": true}', "a.gguf").ignores_merges
        True
        """
        if text is None:
            return None
        if not isinstance(text, str) or len(text) > _MAX_LENGTH:
            raise FormatError(f"{where}: is {text!r:.60}, expected the JSON of a splitting rule")
        content = parse_object(text.encode(), where)
        return cls(content.get("normalizer"), content.get("pre_tokenizer"), content.get("ignore_merges") is True)

    def as_text(self) -> str:
        """Return the value of the key."""
        rules = {
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "ignore_merges": self.ignores_merges,
        }
        return json.dumps(rules, ensure_ascii=False)
