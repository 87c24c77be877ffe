"""Rules that a file has in our own words are known without trying them out, and as trying them out would tell."""

from __future__ import annotations

from typing import Any

import pytest

from lbrx.models.tokenizers.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from lbrx.models.tokenizers.recognition import _library_rule, cutting_as, written_as

BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


# One row for each list of patterns: the others have the same answer.
RULES = {row.patterns: row for row in reversed(PRE_TOKENIZERS) if not row.lines}
RULE_OF = {row.name: row.patterns for row in PRE_TOKENIZERS}


@pytest.mark.parametrize("row", RULES.values(), ids=lambda row: row.name)
def test_words_and_cuts_agree(row: PreTokenizer) -> None:
    found = written_as(row.as_json())
    cutting = cutting_as(_library_rule(row.patterns))
    assert row in found
    equal_rules = {"bailingmoe": "qwen2", "qwen2": "bailingmoe"}  # two forms of one rule
    assert {each.patterns for each in cutting} == {
        row.patterns,
        RULE_OF.get(equal_rules.get(row.name, ""), row.patterns),
    }


def test_the_byte_level_rule_is_that_of_gpt2() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert written_as(BYTE_LEVEL) == cutting_as(ByteLevel(add_prefix_space=False, use_regex=True))


@pytest.mark.parametrize(
    "other",
    [
        None,
        BYTE_LEVEL | {"add_prefix_space": True},
        BYTE_LEVEL | {"use_regex": False},
        {"type": "Metaspace", "replacement": "_"},
        {"type": "Sequence", "pretokenizers": []},
        {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL | {"use_regex": False}]},
        {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]},
    ],
)
def test_other_words_are_tried_out(other: Any) -> None:
    assert written_as(other) == ()
