"""``lbrx.Chat``: a conversation with a model, turn by turn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lbrx.engine.device import computing_on
from lbrx.errors import UsageError
from lbrx.files.formats.strict_json import read_json
from lbrx.models.inference.opening import open_model
from lbrx.models.inference.sampling import Sampling
from lbrx.models.inference.speed import Speed
from lbrx.models.inference.streaming import text_pieces
from lbrx.models.tokenizers.chat import chosen_template
from lbrx.models.tokenizers.chat_rendering import ChatTemplate, Message
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer
from lbrx.settings import settings, using

DEFAULT_CONTEXT = 8192  # tokens, unless the model has fewer
_FILES = ("generation_config.json", "config.json")


class Prompter:
    """Turns messages into tokens with the chat template of a model."""

    def __init__(self, path: Path, tokenizer: TextTokenizer, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.stop_ids = (*tokenizer.stop_ids, *_end_ids(path))
        self._template = ChatTemplate(chosen_template(path, template), tokenizer.special_texts(), label=str(path))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of messages and of the beginning of the model's answer."""
        ids = self.tokenizer.encode(self._template.render(messages), add_special=False)
        if not ids:
            raise UsageError(f"{self._template.label}: the chat template makes no text from the messages")
        return ids

    def close(self) -> None:
        """End the process that renders the template."""
        self._template.close()


def _end_ids(path: Path) -> Iterator[int]:
    """Yield the ids that end a text, or a turn, according to the files of a directory."""
    for name in _FILES if path.is_dir() else ():
        value = read_json(path / name).get("eos_token_id")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int) and not isinstance(each, bool):
                yield each


class Chat:
    """A conversation with a model, which has a chat template. Close it, or use it in a ``with`` block.

    ``system`` tells the model how to behave. ``template`` is a file, a known name or a template itself, instead of the
    model's own. ``max_tokens`` limits an answer. ``context`` is the number of tokens that the model sees at a time (by
    default the model's own limit, at most 8,192): if a conversation gets longer, the oldest turns are left out, but not
    the system message. Other parameters are those of ``lbrx.generate``; turn ``n`` samples with the seed ``seed + n``.

    Keys and values of earlier turns are kept, so a turn costs what its own tokens cost.

    >>> from lbrx.demo.models import demo_models
    >>> with Chat(demo_models().base, template="chatml", max_tokens=4) as chat:
    ...     answer = "".join(chat.reply("Who are you?"))
    >>> [message["role"] for message in chat.messages]
    ['user', 'assistant']
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        system: str | None = None,
        template: str | None = None,
        max_tokens: int = 512,
        context: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        kv_type: str = "f32",
        threads: int | None = None,
        device: str | None = None,
    ) -> None:
        if max_tokens < 1:
            raise UsageError(f"max_tokens is {max_tokens}; expected at least 1")
        self.path = Path(model)
        self.system = system
        self._sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }
        Sampling(**self._sampling, seed=seed)  # check the values first
        self.max_tokens = max_tokens
        self._seed, self._kv_type = seed, kv_type
        self._threads, self._device = threads, device
        self._activation_bits = settings.activation_bits  # of all turns, as keys and values are kept
        self._model = open_model(self.path)
        most = self._model.spec.context_length
        self.context = min(most, DEFAULT_CONTEXT) if context is None else context
        if not 1 < self.context <= most:
            raise UsageError(f"context is {context}; expected 2 to {most}, the limit of {self.path}")
        self._prompter = Prompter(self.path, open_tokenizer(self.path), template)
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process that renders the template, and free the memory of the conversation."""
        self._prompter.close()
        self._forget()

    def reset(self) -> None:
        """Begin a new conversation with the same system message."""
        self.messages: list[dict[str, str]] = []
        self._turns, self._left_out = 0, 0
        self._cut_after: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._cache = self._model.new_cache(0, self._kv_type)
        self._cached: list[int] = []

    @property
    def left_out(self) -> int:
        """The number of messages at the beginning of the conversation that the model no longer sees."""
        return self._left_out

    @property
    def cut_after(self) -> int | None:
        """The number of tokens after which a limit ended the last answer; None if the model ended it.

        >>> from lbrx.demo.models import demo_models
        >>> with Chat(demo_models().base, template="chatml", max_tokens=4) as chat:
        ...     answer = "".join(chat.reply("Who are you?"))
        >>> chat.cut_after
        4
        """
        return self._cut_after

    @property
    def cached_tokens(self) -> int:
        """The number of tokens whose keys and values are kept for the next turn."""
        return self._cache.length

    def reply(self, text: str, *, speed: Speed | None = None) -> Iterator[str]:
        """Say something to the model; yield its answer in pieces. An answer that is not read to its end is cut there.

        ``speed`` is filled in: the tokens of its prompt are those that were not kept from earlier turns.
        """
        message = {"role": "user", "content": text}
        return self._answer(message, self._fitting_ids([*self.messages, message]), speed or Speed())

    def _answer(self, message: dict[str, str], ids: list[int], speed: Speed) -> Iterator[str]:
        self.messages.append(message)
        kept = self._keep(ids)
        new: list[int] = []

        def drawn(token: int) -> int:
            new.append(token)
            return token

        pieces: list[str] = []
        room = min(self.max_tokens, self.context - len(ids))
        sampling = Sampling(**self._sampling, seed=self._seed + self._turns)
        tokens = self._model.generate(
            ids[kept:],
            room,
            sampling,
            stop_ids=self._prompter.stop_ids,
            cache=self._cache,
            before=ids[:kept],
        )
        self._turns += 1
        self._cut_after = None
        timed = map(drawn, speed.measured(len(ids) - kept, tokens))
        answer = text_pieces(self._prompter.tokenizer.decode, timed, before=ids)
        try:
            while True:
                with computing_on(self._device), using(threads=self._threads, activation_bits=self._activation_bits):
                    piece = next(answer, None)
                if piece is None:
                    break
                pieces.append(piece)
                yield piece
            self._cut_after = room if len(new) == room else None
        finally:
            self._cached = [*ids, *new][: self._cache.length]
            self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _keep(self, ids: Sequence[int]) -> int:
        """Shorten the cache to what it has in common with the tokens; return how many those are.

        At least one token is left to compute, because its logits are needed.
        """
        common = 0
        for ours, cached in zip(ids[:-1], self._cached, strict=False):
            if ours != cached:
                break
            common += 1
        if not self._cache.shorten(common):
            self._forget()
            return 0
        return common

    def _fitting_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of the conversation; leave out the oldest turns if it is too long."""
        reserve = min(self.max_tokens, self.context // 4)
        left_out = self._left_out
        while True:
            ids = self._prompter.ids(self._visible(messages, left_out))
            if len(ids) + reserve > self.context and left_out + 2 < len(messages):
                left_out += 2
                continue
            if len(ids) >= self.context:
                raise UsageError(
                    f"{self.path}: the message has {len(ids):,} tokens, but the model sees {self.context:,} at a time; "
                    f"expected a shorter message"
                )
            self._left_out = left_out
            return ids

    def _visible(self, messages: Sequence[Message], left_out: int) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *messages[left_out:]]
