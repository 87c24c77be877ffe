"""Trains the three small language models that `lbrx demo` merges, and writes the text that it scores them on.

    bible -f 'gen1:1-rev22:21' > kjv.txt            # Debian: apt install bible-kjv
    python examples/train_demo_models.py kjv.txt    # needs torch and transformers; about 12 minutes on one core

The prose is the King James Bible, whose text is in the public domain, as the Debian package bible-kjv-text holds it.
The code is the standard library of the Python that runs this script (Python Software Foundation License).

The base sees both domains. Two fine-tunes of it go on with one domain each, long enough to get better there and to
forget some of the other. The weights of the demo's recipes were chosen on the first part of the held-out text; the demo
scores on the rest, on which nothing was chosen.

All seeds are fixed. The weights depend on the versions of torch and Python, and on the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

DEFAULT_TARGET = Path(__file__).parent.parent / "src" / "lbrx" / "demo_models"
SEPARATOR = "<|endoftext|>"
VOCABULARY_SIZE = 1024
CONTEXT_TOKENS = 256
BATCH_ROWS = 8
WARM_UP_STEPS = 40
TOKENIZER_TEXT_BYTES = 1_500_000  # of each domain
HELD_OUT_CHAPTERS = 25  # one chapter of this many is kept for the score
HELD_OUT_PROSE_BYTES = 40_000
CHOICE_TOKENS = 6000  # of the held-out text of each domain, on which the weights of the demo's recipes were chosen
HELD_OUT_MODULES = ("bisect.py", "fnmatch.py", "queue.py", "shelve.py", "textwrap.py")
MODEL = LlamaConfig(
    vocab_size=VOCABULARY_SIZE,
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2 * CONTEXT_TOKENS,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=0,
    rms_norm_eps=1e-5,
)


@dataclass(frozen=True)
class Training:
    """One run: what it is called, how much of each batch is prose, how long and how fast it learns."""

    name: str
    share_of_prose: float
    steps: int
    peak_rate: float
    seed: int


BASE = Training("base", 0.5, 900, 3e-3, seed=1)
FINE_TUNES = (Training("prose", 1.0, 300, 1e-3, seed=2), Training("code", 0.0, 300, 1e-3, seed=3))


@dataclass(frozen=True)
class Domain:
    """Text to learn from and text to be scored on, as documents."""

    training: list[str]
    held_out: list[str]


def prose_domain(path: Path) -> Domain:
    """One document per chapter, one verse per line, without the numbers."""
    chapters: dict[str, list[str]] = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        match = re.fullmatch(r"(\w+):\d+ (.+)", line)
        if match is None:
            raise SystemExit(f"{path}: expected lines such as 'Ge1:1 In the beginning ...', found {line[:60]!r}")
        chapters.setdefault(match[1], []).append(match[2].strip())
    documents = ["\n".join(verses) + "\n" for verses in chapters.values()]
    kept = documents[HELD_OUT_CHAPTERS - 1 :: HELD_OUT_CHAPTERS]
    training = [text for text in documents if text not in set(kept)]
    return Domain(training, list(_first_bytes(kept, HELD_OUT_PROSE_BYTES)))


def code_domain() -> Domain:
    """One document per module at the top of the standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_sysconfigdata"))
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    held_out = [texts.pop(name) for name in HELD_OUT_MODULES]
    return Domain(list(texts.values()), held_out)


def _first_bytes(documents: list[str], limit: int) -> Iterator[str]:
    total = 0
    for text in documents:
        total += len(text.encode())
        if total > limit:
            return
        yield text


def train_tokenizer(domains: tuple[Domain, Domain]) -> Tokenizer:
    """A byte-level BPE, fed equally by both domains."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for domain in domains for text in _first_bytes(domain.training, TOKENIZER_TEXT_BYTES)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """All documents, each after a separator."""
    encoded = tokenizer.encode_batch([SEPARATOR + text for text in documents])
    return np.concatenate([np.asarray(one.ids, np.int64) for one in encoded])


def after_choice(tokenizer: Tokenizer, documents: list[str]) -> list[str]:
    """The held-out documents that begin after those on which something was chosen: what the demo scores."""
    starts = np.cumsum([0, *(len(one.ids) for one in tokenizer.encode_batch(documents))])
    return [text for text, start in zip(documents, starts, strict=False) if start >= CHOICE_TOKENS]


def train(model: LlamaForCausalLM, training: Training, prose: np.ndarray, code: np.ndarray) -> None:
    """Random windows of both streams, AdamW, a warm-up and a cosine."""
    random = np.random.default_rng(training.seed)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=training.peak_rate, betas=(0.9, 0.98))
    rows_of_prose = round(BATCH_ROWS * training.share_of_prose)
    start = time.perf_counter()
    smoothed = math.nan
    model.train()
    for step in range(training.steps):
        rows = [prose if row < rows_of_prose else code for row in range(BATCH_ROWS)]
        places = [int(random.integers(len(stream) - CONTEXT_TOKENS)) for stream in rows]
        windows = [stream[at : at + CONTEXT_TOKENS] for stream, at in zip(rows, places, strict=True)]
        ids = torch.from_numpy(np.stack(windows))
        for group in optimizer.param_groups:
            group["lr"] = training.peak_rate * _rate(step, training.steps)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        smoothed = loss.item() if math.isnan(smoothed) else 0.95 * smoothed + 0.05 * loss.item()
        if step % 50 == 0 or step == training.steps - 1:
            seconds = time.perf_counter() - start
            print(f"{training.name}: step {step}, loss {smoothed:.3f}, {seconds:.0f} s", flush=True)


def _rate(step: int, steps: int) -> float:
    """The share of the peak rate: up in a line, then down to a twentieth in a cosine."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    done = (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def loss_on(model: LlamaForCausalLM, ids: np.ndarray) -> float:
    """The mean loss over windows that do not overlap."""
    model.eval()
    count = (len(ids) - 1) // CONTEXT_TOKENS
    windows = torch.from_numpy(ids[: count * CONTEXT_TOKENS].reshape(count, CONTEXT_TOKENS))
    return float(model(input_ids=windows, labels=windows).loss)


def write_model(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """The model in bf16, as transformers writes it, with its tokenizer."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SEPARATOR,
        "eos_token": SEPARATOR,
        "model_max_length": MODEL.max_position_embeddings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    model.to(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prose", type=Path, help="what `bible -f 'gen1:1-rev22:21'` prints")
    parser.add_argument("--target", type=Path, default=DEFAULT_TARGET)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    prose, code = prose_domain(arguments.prose), code_domain()
    tokenizer = train_tokenizer((prose, code))
    streams = [token_stream(tokenizer, domain.training) for domain in (prose, code)]
    held_out = [token_stream(tokenizer, domain.held_out) for domain in (prose, code)]
    print("tokens:", *(len(stream) for stream in (*streams, *held_out)), flush=True)
    arguments.target.mkdir(parents=True, exist_ok=True)
    for name, domain in (("prose", prose), ("code", code)):
        unseen = after_choice(tokenizer, domain.held_out)
        (arguments.target / f"{name}.txt").write_text("\n".join(unseen), encoding="utf-8")
    torch.manual_seed(0)
    model = LlamaForCausalLM(MODEL)
    print("parameters:", sum(weight.numel() for weight in model.parameters()))
    train(model, BASE, *streams)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    _print_losses(BASE, model, held_out)
    write_model(model, tokenizer, arguments.target / BASE.name)
    for training in FINE_TUNES:
        model.load_state_dict(start)
        train(model, training, *streams)
        _print_losses(training, model, held_out)
        write_model(model, tokenizer, arguments.target / training.name)


def _print_losses(training: Training, model: LlamaForCausalLM, held_out: list[np.ndarray]) -> None:
    prose, code = (loss_on(model, ids) for ids in held_out)
    print(f"{training.name}: held-out loss {prose:.4f} on prose, {code:.4f} on code", flush=True)


if __name__ == "__main__":
    main()
