"""Vocabularies of merged models: one tokenizer for the output, and embeddings whose rows follow it."""

from typing import TYPE_CHECKING

from lbrx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from lbrx.jobs.merge.vocabulary.planning import plan_vocabulary as plan_vocabulary
    from lbrx.jobs.merge.vocabulary.records import ModelVocabulary as ModelVocabulary
    from lbrx.jobs.merge.vocabulary.records import TokenOverride as TokenOverride
    from lbrx.jobs.merge.vocabulary.records import VocabularyPlan as VocabularyPlan
    from lbrx.jobs.merge.vocabulary.written_files import tokenizer_changes as tokenizer_changes

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
