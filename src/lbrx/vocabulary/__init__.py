"""Vocabularies of merged models: one tokenizer for the output, and embeddings whose rows follow it."""

from typing import TYPE_CHECKING

from lbrx.late import late_names

if TYPE_CHECKING:
    from lbrx.vocabulary.planning import plan_vocabulary
    from lbrx.vocabulary.records import ModelVocabulary, TokenOverride, VocabularyPlan
    from lbrx.vocabulary.templates import TEMPLATES, find_template, most_common_template
    from lbrx.vocabulary.tokenizer_file import AddedToken, TokenizerFile, parse_tokenizer, read_tokenizer
    from lbrx.vocabulary.written_files import tokenizer_changes

__all__ = [
    "TEMPLATES",
    "AddedToken",
    "ModelVocabulary",
    "TokenOverride",
    "TokenizerFile",
    "VocabularyPlan",
    "find_template",
    "most_common_template",
    "parse_tokenizer",
    "plan_vocabulary",
    "read_tokenizer",
    "tokenizer_changes",
]

__getattr__ = late_names(
    __name__,
    {
        "lbrx.vocabulary.planning": ("plan_vocabulary",),
        "lbrx.vocabulary.records": ("ModelVocabulary", "TokenOverride", "VocabularyPlan"),
        "lbrx.vocabulary.templates": ("TEMPLATES", "find_template", "most_common_template"),
        "lbrx.vocabulary.tokenizer_file": ("AddedToken", "TokenizerFile", "parse_tokenizer", "read_tokenizer"),
        "lbrx.vocabulary.written_files": ("tokenizer_changes",),
    },
)
