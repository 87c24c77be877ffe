"""Render the chat template of a model: messages to the text that the model continues.

A template is a program that came with a model. It runs in jinja2's sandbox, in a separate process, with limits of
time, memory and output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

import psutil

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import FormatError, LbrxError, UsageError
from lbrx.models.tokenizers import template_worker

Message = Mapping[str, Any]

_STARTING_SECONDS = 60.0  # to start Python on a busy machine; the template does not run yet
_POLL_SECONDS = 0.01
_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a template may use: seconds and bytes of memory of one rendering, and characters of output."""

    seconds: float = 10.0
    memory_bytes: int = 512 << 20
    characters: int = 16 << 20


class ChatTemplate:
    """A chat template, and the process that renders it. Close it, or use it in a ``with`` block.

    ``variables``, such as ``bos_token``, are available to the template besides the messages. Errors begin with
    ``label``.

    >>> with ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}") as template:
    ...     template.render([{"role": "user", "content": "Hello"}])
    'user: Hello;'
    """

    def __init__(
        self,
        template: str,
        variables: Mapping[str, Any] | None = None,
        *,
        label: str = "the model",
        limits: Limits | None = None,
    ) -> None:
        self.template = template
        self.label = label
        self._variables = dict(variables or {})
        self._limits = limits or Limits()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Rendering starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of messages. ``add_generation_prompt`` appends the beginning of the model's answer."""
        given = {
            "documents": None,
            **self._variables,
            **variables,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            line = json.dumps(given)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the messages are not plain JSON values: {error}") from error
        process = self._started()
        answer = self._answer_to(process, line, self._limits.seconds)
        text = answer.get("text")
        if isinstance(text, str):
            return text
        raise self._error(answer)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(template_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        limits = self._limits
        first = {
            "template": self.template,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
            "characters": limits.characters,
        }
        answer = self._answer_to(self._process, json.dumps(first), _STARTING_SECONDS)
        if answer.get("text") != template_worker.READY:
            self.close()
            raise self._error(answer)
        return self._process

    def _answer_to(self, process: subprocess.Popen[str], line: str, seconds: float) -> Mapping[str, Any]:
        """Send a line and return the answer; end the process if it exceeds a limit."""
        answers: list[str] = []

        def talk() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
                answers.append(process.stdout.readline())
            except (OSError, ValueError):  # it has ended
                answers.append("")

        talking = threading.Thread(target=talk, daemon=True)
        talking.start()
        end, problem = monotonic() + seconds, ""
        try:
            talking.join(_POLL_SECONDS)
            while talking.is_alive() and not problem:
                if monotonic() > end:
                    problem = "time"
                elif _resident_bytes(process.pid) > self._limits.memory_bytes:
                    problem = "memory"
                talking.join(_POLL_SECONDS)
        finally:
            if talking.is_alive():
                process.kill()
                talking.join()
                self.close()
        if not problem and answers[0]:
            parsed: Mapping[str, Any] = json.loads(answers[0])
            return parsed
        code = process.wait() if not problem else None
        self.close()
        return {"error": problem or ("time" if code == -signal.SIGALRM else "ended"), "message": ""}

    def _error(self, answer: Mapping[str, Any]) -> LbrxError:
        limits, message = self._limits, answer.get("message", "")
        problems = {
            "time": f"takes more than {limits.seconds:g} seconds",
            "memory": f"needs more than {limits.memory_bytes >> 20} MiB of memory",
            "size": f"makes a text of more than {limits.characters:,} characters",
            "security": f"does what the sandbox forbids: {message}",
            "syntax": f"is not a valid template: {message}",
            "undefined": f"uses a value that does not exist: {message}",
            "failed": f"cannot be rendered: {message}",
            "ended": "ended the process that renders it",
        }
        if answer.get("error") == "raised":
            return UsageError(f"{self.label}: the chat template rejects the messages: {message}")
        if answer.get("error") == "missing":
            return UsageError(f"chat templates need jinja2: {message}; run `pip install jinja2`")
        return FormatError(f"{self.label}: the chat template {problems.get(str(answer.get('error')), message)}")


def _with_reasoning(message: Message) -> dict[str, Any]:
    """Return a message whose reasoning has all names that templates read."""
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
