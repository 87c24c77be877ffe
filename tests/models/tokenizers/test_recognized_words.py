"""Rules that a file has in our own words are known without trying them out, and as trying them out would tell."""

from __future__ import annotations

from typing import Any

import pytest

from lbrx.models.tokenizers.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from lbrx.models.tokenizers.recognition import _library_rule, cutting_as, written_as

BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize("row", PRE_TOKENIZERS, ids=lambda row: row.name)
def test_words_and_cuts_agree(row: PreTokenizer) -> None:
    found = written_as(row.as_json())
    assert row in found
    assert found == cutting_as(_library_rule(row))


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
