"""T5, XLM-RoBERTa and BERT tokenizers that transformers makes: to GGUF and back, with the ids of transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizerFast, T5TokenizerFast, XLMRobertaTokenizerFast

from lbrx.models.tokenizers.text import open_tokenizer, tokenizer_of_metadata
from lbrx.models.tokenizers.to_files import tokenizer_files
from lbrx.models.tokenizers.to_gguf import gguf_tokenizer_metadata
from support.tokenizer_fixtures import hard_texts
from support.tokenizer_types import write_unigram, write_vocabulary_lines


def t5(folder: Path) -> Any:
    write_unigram(folder)
    return T5TokenizerFast.from_pretrained(folder)


def xlm_roberta(folder: Path) -> Any:
    write_unigram(folder)
    shutil.move(folder / "spiece.model", folder / "sentencepiece.bpe.model")
    (folder / "config.json").write_text('{"model_type": "xlm-roberta"}')
    return XLMRobertaTokenizerFast.from_pretrained(folder)


def bert(folder: Path) -> Any:
    write_vocabulary_lines(folder)
    return BertTokenizerFast.from_pretrained(folder)


def bert_cased(folder: Path) -> Any:
    write_vocabulary_lines(folder)
    return BertTokenizerFast.from_pretrained(folder, do_lower_case=False)


@pytest.mark.parametrize("make", [t5, xlm_roberta, bert, bert_cased])
def test_tokenizers_of_transformers(make: Any, tmp_path: Path) -> None:
    for name in ("source", "saved", "made"):
        (tmp_path / name).mkdir()
    theirs = make(tmp_path / "source")
    theirs.save_pretrained(tmp_path / "saved")
    metadata = gguf_tokenizer_metadata(tmp_path / "saved", {})
    for file in tokenizer_files(metadata):
        (tmp_path / "made" / file.name).write_bytes(file.read())
    # SentencePiece keeps what is no space in its character map; transformers splits there.
    texts = [text for text in hard_texts() if not set("\r▁") & set(text)]
    assert len(texts) > 200
    expected = {text: theirs.encode(text) for text in texts}
    directory, gguf = open_tokenizer(tmp_path / "saved"), tokenizer_of_metadata(metadata)
    made = AutoTokenizer.from_pretrained(tmp_path / "made")
    for encode in (directory.encode, gguf.encode, made.encode):
        assert {text: encode(text) for text in texts} == expected
