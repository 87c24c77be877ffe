"""A converted encoder loads in llama.cpp and embeds a text as transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from family_cases import all_cases
from llama_cpp import Llama
from peer_transformers import load_model, make_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import lbrx

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MEAN = 1


def write_tokenizer(folder: Path, count: int) -> None:
    words = [*SPECIAL, *(f"w{number}" for number in range(count - len(SPECIAL)))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizerFast", **names}))


def test_bert_embeds_a_text_like_transformers(tmp_path: Path) -> None:
    folder, path = tmp_path / "model", tmp_path / "model.gguf"
    make_model(all_cases()["bert"], folder)
    write_tokenizer(folder, 64)
    lbrx.convert(folder, path)
    model = Llama(str(path), embedding=True, pooling_type=MEAN, verbose=False, n_ctx=40)
    text, ids = "w5 w6 w7 w8", [2, 10, 11, 12, 13, 3]
    assert model.tokenize(text.encode(), add_bos=True, special=True) == ids
    found = np.array(model.create_embedding(text)["data"][0]["embedding"])
    model.close()
    with torch.no_grad():
        expected = load_model("AutoModel", folder)(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-3)
