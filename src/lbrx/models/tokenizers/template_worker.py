"""Renders chat templates in a separate process, which the caller ends if it takes too long or too much memory.

Run as a program. The first line of standard input has the template and the limits; each further line has the variables
of one rendering. The answer to a line is a line: ``{"text": ...}`` or ``{"error": ..., "message": ...}``. This module
imports nothing from lbrx, so it starts quickly.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from typing import Any

READY = "ready"


def environment() -> Any:
    """Return a sandbox with the filters and functions that chat templates use, as in transformers."""
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """``{% generation %}`` marks what a model wrote. It is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 names the type

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_called"), [], [], body).set_lineno(line)

        def _called(self, caller: Any) -> str:
            return str(caller())

    class PlainNamespace(Namespace):
        """Variables of a template; names that begin with an underscore belong to Python."""

        def __init__(*args: Any, **more: Any) -> None:
            values = dict(*args[1:], **more)
            for name in values:
                _check_name(name)
            Namespace.__init__(args[0], values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            Namespace.__setitem__(self, name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace has the name {name!r}")

    def raise_exception(message: Any) -> None:
        raise TemplateError(str(message))

    def to_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def make_dict(*args: Any, **more: Any) -> dict[Any, Any]:
        return dict(*args, **more)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], cache_size=0
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": make_dict,
        "namespace": PlainNamespace,
    }
    return sandbox


def limit_memory(most_bytes: int) -> None:
    """Have allocations fail beyond a limit, where the system can do that. The caller watches the memory, too."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))


def rendered(template: Any, variables: dict[str, Any], most_characters: int) -> dict[str, str]:
    """Return the answer to one line."""
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError, UndefinedError

    pieces, length = [], 0
    try:
        for piece in template.generate(**variables):
            pieces.append(piece)
            length += len(piece)
            if length > most_characters:
                return {"error": "size", "message": ""}
        return {"text": "".join(pieces)}
    except SecurityError as error:
        return {"error": "security", "message": str(error)}
    except UndefinedError as error:
        return {"error": "undefined", "message": str(error)}
    except TemplateError as error:
        return {"error": "raised", "message": str(error)}
    except MemoryError:
        return {"error": "memory", "message": ""}
    except RecursionError:
        return {"error": "failed", "message": "it calls itself too often"}
    except Exception as error:
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    try:
        import jinja2
    except ImportError as error:
        _answer({"error": "missing", "message": str(error)})
        return
    first = json.loads(sys.stdin.readline())
    sandbox = environment()
    limit_memory(first["memory_bytes"])
    signal.setitimer(signal.ITIMER_REAL, first["seconds"] + 1)  # ends this process if the caller has ended
    try:
        template = sandbox.from_string(first["template"])
    except jinja2.TemplateSyntaxError as error:
        _answer({"error": "syntax", "message": f"line {error.lineno}: {error.message}"})
        return
    except (MemoryError, RecursionError, SyntaxError, ValueError, OverflowError) as error:
        _answer({"error": "syntax", "message": f"cannot be compiled ({type(error).__name__})"})
        return
    _answer({"text": READY})
    for line in iter(sys.stdin.readline, ""):
        signal.setitimer(signal.ITIMER_REAL, first["seconds"] + 1)
        _answer(rendered(template, json.loads(line), first["characters"]))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(answer: dict[str, str]) -> None:
    if "message" in answer:
        answer["message"] = answer["message"][:500]
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
