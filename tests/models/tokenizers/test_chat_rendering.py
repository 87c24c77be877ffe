"""Chat templates are rendered in a process with limits, and cannot reach out of their sandbox."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from lbrx.errors import FileError, FormatError, LbrxError, UsageError
from lbrx.models.tokenizers.chat import chosen_template
from lbrx.models.tokenizers.chat_rendering import ChatTemplate, Limits
from lbrx.models.tokenizers.chat_templates import TEMPLATES

HELLO = [{"role": "user", "content": "Hello"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"


def rendered(template: str, limits: Limits | None = None, **variables: object) -> str:
    with ChatTemplate(template, {"bos_token": "<s>"}, label="a model", limits=limits) as chat:
        return chat.render(HELLO, **variables)


def test_templates_have_what_transformers_gives_them() -> None:
    template = """
{{- bos_token }}
{%- for message in messages %}
    {%- if loop.index > 1 %}{% break %}{% endif %}
    {% generation %}{{ message.role }}: {{ message | tojson }}{% endgeneration %}
{%- endfor %}
{%- set seen = namespace(count=1) %}
{%- set seen.count = seen.count + 1 %}
{{- seen.count }} {{ dict(a=1) }} {{ tools is none }} {{ strftime_now("%Y") | length }} {{ missing }}|"""
    assert rendered(template) == '<s>user: {"role": "user", "content": "Hello"}2 {\'a\': 1} True 4 |'


def test_one_process_renders_many_conversations() -> None:
    with ChatTemplate("{{ messages[-1].content }}{{ '>' if add_generation_prompt }}{{ extra }}") as chat:
        texts = [chat.render([{"role": "user", "content": f"ü{number}"}], extra=number) for number in range(30)]
        assert texts == [f"ü{number}>{number}" for number in range(30)]
        assert chat.render(HELLO, add_generation_prompt=False) == "Hello"


def test_json_is_not_escaped_for_html() -> None:
    assert rendered("{{ '<ü&>' | tojson }}{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == (
        '"<ü&>"{\n "a": 2,\n "b": 1\n}'
    )


def test_thoughts_have_every_name() -> None:
    with ChatTemplate("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}") as chat:
        assert chat.render([{"role": "assistant", "content": "a", "reasoning": "so"}]) == "soso"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "does what the sandbox forbids: access to attribute '__class__'",
        ),
        (
            "{{ lipsum.__globals__['os'].system('id') }}",
            "does what the sandbox forbids: access to attribute '__globals__'",
        ),
        ("{{ messages.append(1) }}", "does what the sandbox forbids: access to attribute 'append'"),
        ("{{ namespace(__class__=1) }}", "does what the sandbox forbids: a namespace has the name '__class__'"),
        ("{{ range(999999999) | list }}", "does what the sandbox forbids|cannot be rendered: OverflowError"),
        ("{% include '/etc/passwd' %}", "cannot be rendered: TypeError: no loader"),
        ("{{ a.b.c }}", "uses a value that does not exist: 'a' is undefined"),
        ("{% if %}", "is not a valid template: line 1: Expected an expression"),
        ("{{" + "(" * 100_000 + ")" * 100_000 + "}}", "is not a valid template: cannot be compiled"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered: it calls itself too often"),
        ("{{ 1 / 0 }}", "(is not a valid template|cannot be rendered)"),
    ],
)
def test_templates_that_fail(template: str, message: str) -> None:
    with pytest.raises(FormatError, match=rf"^a model: the chat template {message}"):
        rendered(template)


@pytest.mark.parametrize("template", ["{{ messages[0] | attr('__class__') }}", "{{ '{0.__class__}'.format('a') }}"])
def test_attributes_of_python_are_undefined(template: str) -> None:
    assert rendered(template) == ""


def test_a_template_may_reject_messages() -> None:
    with pytest.raises(UsageError, match="a model: the chat template rejects the messages: take turns"):
        rendered("{{ raise_exception('take turns') }}")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (ENDLESS, "takes more than 0.3 seconds"),
        ("{{ 9999999999999999999999999 ** 99999999 }}", "takes more than 0.3 seconds"),
        (DOUBLING, "(needs more than 200 MiB of memory|takes more than 0.3 seconds)"),
        ("{{ 'a' * 10000000000 }}", "needs more than 200 MiB of memory"),
        ("{{ ['a'] * 10000000000 }}", "needs more than 200 MiB of memory"),
        ("{{ 'a' | center(10000000000) }}", "needs more than 200 MiB of memory"),
        ("{{ '%9999999999d' % 1 }}", "(needs more than 200 MiB of memory|cannot be rendered)"),
        ("{{ 'a' * 2000000 }}", "makes a text of more than 1,000,000 characters"),
    ],
)
def test_templates_without_an_end(template: str, message: str) -> None:
    limits = Limits(seconds=0.3, memory_bytes=200 << 20, characters=1_000_000)
    start = time.monotonic()
    with pytest.raises(FormatError, match=f"^a model: the chat template {message}"):
        rendered(template, limits)
    assert time.monotonic() - start < 30  # on a busy machine; Python has to start


def test_the_process_ends_with_its_template() -> None:
    with ChatTemplate("{{ 1 }}") as chat:
        assert chat.render(HELLO) == "1"
        children = psutil.Process(os.getpid()).children()
        assert chat._process is not None
        worker = chat._process.pid
        assert worker in {child.pid for child in children}
    assert worker not in {child.pid for child in psutil.Process(os.getpid()).children()}


def test_a_template_that_failed_can_be_rendered_again() -> None:
    with ChatTemplate("{% if long %}" + ENDLESS + "{% endif %}ok", limits=Limits(seconds=0.3)) as chat:
        with pytest.raises(FormatError, match="takes more than"):
            chat.render(HELLO, long=True)
        assert chat.render(HELLO, long=False) == "ok"


def test_messages_are_plain_values() -> None:
    with pytest.raises(UsageError, match="the messages are not plain JSON values"):
        rendered("{{ a }}", a=object())


def test_which_template_is_chosen(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (tmp_path / "mine.jinja").write_text("{{ c }}")
    assert chosen_template(tmp_path) == "{{ a }}"
    assert chosen_template(tmp_path, "tool_use") == "{{ b }}"
    assert chosen_template(tmp_path, "chatml") == TEMPLATES["chatml"]
    assert chosen_template(tmp_path, str(tmp_path / "mine.jinja")) == "{{ c }}"
    assert chosen_template(tmp_path, "{{ d }}") == "{{ d }}"
    with pytest.raises(
        UsageError, match="there is no chat template 'nothing'; expected a file, or one of default, tool_use"
    ):
        chosen_template(tmp_path, "nothing")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UsageError, match="has no chat template, so it is probably not made for chats"):
        chosen_template(tmp_path)
    (tmp_path / "mine.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="cannot be read as text"):
        chosen_template(tmp_path, str(tmp_path / "mine.jinja"))


def test_every_error_is_one_of_ours() -> None:
    for template in ("{{ messages[0].content.format_map }}", "{{ strftime_now(5) }}", "{{ messages[9] }}"):
        try:
            rendered(template)
        except LbrxError:
            continue
