"""`lbrx chat` and `lbrx generate --chat`: messages from a pipe."""

from __future__ import annotations

import io
import signal

import pytest
from rich.console import Console

from lbrx.cli.chat import _columns, _cut_text, _ends, _names, _visible
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.models.inference.chat import Chat
from support.cli_running import in_dialogue, lbrx_command

SHIPPED = demo_models()
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
OPTIONS = ("--template", TEMPLATE, "--max-tokens", 6, "--temperature", 0)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


def answers(*texts: str, model: object = SHIPPED.prose, system: str | None = None) -> list[str]:
    with Chat(str(model), template=TEMPLATE, max_tokens=6, system=system) as chat:
        return ["".join(chat.reply(text)) for text in texts]


def test_lines_of_a_pipe_are_turns(capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch) -> None:
    typed.setattr("sys.stdin", io.StringIO("And the king said\n\nGo on"))
    done = lbrx_command(capsys, "chat", SHIPPED.prose, *OPTIONS)
    note = "note: prose: the answer was cut after 6 tokens; --max-tokens allows more\n"
    assert (done.code, done.err) == (0, 2 * note)
    assert done.out == "".join(f"{text}\n" for text in answers("And the king said", "Go on"))


def test_commands(capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch) -> None:
    typed.setattr("sys.stdin", io.StringIO("a\\\nb\n/reset\na\n/system Be kind.\na\n/system\na\n/exit\nnever\n"))
    done = lbrx_command(capsys, "chat", SHIPPED.prose, *OPTIONS)
    expected = [*answers("a\nb"), *answers("a"), *answers("a", system="Be kind."), *answers("a")]
    assert done.out == "".join(f"{text}\n" for text in expected)
    typed.setattr("sys.stdin", io.StringIO("/help\n"))
    assert "/reset" in lbrx_command(capsys, "chat", SHIPPED.prose, *OPTIONS).out


def test_unknown_commands_are_not_sent_to_the_model(
    capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch
) -> None:
    typed.setattr("sys.stdin", io.StringIO("/rest\n//rest\n/usr/bin\n/systems a\n"))
    done = lbrx_command(capsys, "chat", SHIPPED.prose, *OPTIONS)
    assert done.out == "".join(f"{text}\n" for text in answers("/rest", "/usr/bin"))
    names = [line.split(";")[0] for line in done.err.splitlines() if not line.startswith("note: ")]
    assert names == ["unknown command /rest", "unknown command /systems"]


def test_a_message_that_is_too_long_leaves_the_conversation_as_it_was() -> None:
    with Chat(SHIPPED.prose, template=TEMPLATE, max_tokens=4, context=60) as chat:
        list(chat.reply("one"))
        list(chat.reply("two"))
        with pytest.raises(UsageError, match="expected a shorter message"):
            chat.reply("many words " * 40)
        assert (chat.left_out, len(chat.messages)) == (0, 4)


def test_several_models_answer_one_after_the_other(
    capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch
) -> None:
    typed.setattr("sys.stdin", io.StringIO("the\n"))
    done = lbrx_command(capsys, "chat", SHIPPED.prose, SHIPPED.code, *OPTIONS, "--stats")
    (prose,), (code,) = answers("the"), answers("the", model=SHIPPED.code)
    assert done.out == f"{SHIPPED.prose.name}:\n{prose}\n{SHIPPED.code.name}:\n{code}\n"
    assert done.err.count("written at") == 2


def test_turns_that_are_left_out_are_reported(capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch) -> None:
    typed.setattr("sys.stdin", io.StringIO("a long message of many words\n" * 4))
    done = lbrx_command(capsys, "chat", SHIPPED.prose, *OPTIONS, "--context", 40)
    assert done.code == 0
    assert "no longer sees the first 2 messages" in done.err


def test_generate_answers_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--chat", "--template", TEMPLATE, "--system", "Be kind.")
    done = lbrx_command(capsys, "generate", SHIPPED.prose, "-p", "the king", "-n", 6, *options)
    assert done.out == answers("the king", system="Be kind.")[0] + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chat", SHIPPED.prose), "has no chat template, so it is probably not made for chats"),
        (("chat", "missing"), "missing: cannot be opened"),
        (("chat", SHIPPED.prose, "--template", "{% if %}"), "the chat template is not a valid template"),
        (("chat", SHIPPED.prose, "--kv-type", "f8"), "unknown type 'f8' of the KV cache"),
        (("generate", SHIPPED.prose, "-p", "a", "--system", "b"), "--system and --template need --chat"),
        (("generate", SHIPPED.prose, "-p", "a", "--min-p", 0.1), "have no effect at temperature 0"),
        (("generate", SHIPPED.prose, "-p", "a", "--min-p", 3), "min_p is 3.0; expected 0 to 1"),
    ],
)
def test_wrong_input(
    arguments: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str], typed: pytest.MonkeyPatch
) -> None:
    typed.setattr("sys.stdin", io.StringIO("the\n"))
    done = lbrx_command(capsys, *arguments)
    assert done.code == 1
    assert message in done.err


def test_a_terminal_shows_columns_and_survives_an_interrupt() -> None:
    steps: list[tuple[str, str | signal.Signals]] = [
        ("> ", "And the king said\n"),
        ("\u2502", ""),
        ("> ", signal.SIGINT),
        ("press Ctrl-C again, or Ctrl-D, to end", ""),
        ("> ", "/rest\n"),
        ("unknown command /rest", ""),
        ("> ", signal.SIGINT),
        ("press Ctrl-C again, or Ctrl-D, to end", ""),
        ("> ", signal.SIGINT),
    ]
    code, _ = in_dialogue(steps, "-m", "lbrx", "chat", SHIPPED.prose, SHIPPED.code, *OPTIONS, rows=8, columns=60)
    assert code == 130


def test_an_interrupt_stops_an_answer() -> None:
    steps: list[tuple[str, str | signal.Signals]] = [
        ("> ", "And the king said\n"),
        ("and", signal.SIGINT),
        ("\n> ", "/reset\n"),
        ("> ", "/exit\n"),
    ]
    code, printed = in_dialogue(steps, "-m", "lbrx", "chat", SHIPPED.prose, *OPTIONS[:2], "-n", 500)
    assert code == 0
    assert len(printed) < 2000


def test_only_the_ends_of_long_answers_are_shown_while_they_grow() -> None:
    console = Console(width=23, height=6)
    assert _ends(["a\nb\nc\nd", "x" * 25], console) == ["c\nd", f"{'x' * 10}\n{'x' * 5}"]


def test_columns_and_names() -> None:
    from rich.console import Console

    console = Console(width=40, file=io.StringIO(), color_system=None)
    console.print(_columns(["a", "b"], ["one two three", "four"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("a", "b", "one two three", "four"))
    assert _names([SHIPPED.prose, SHIPPED.prose]) == [str(SHIPPED.prose)] * 2


def test_control_characters_of_an_answer_are_visible() -> None:
    assert _visible("a\x1b]0;x\x07\n\tü😀") == "a\\x1b]0;x\\x07\n\tü😀"
    assert _visible("\u202ea\x9b") == "\u202ea\\x9b"


def test_an_answer_says_what_ended_it() -> None:
    """A limit on tokens, the end of the context, or the model itself."""
    with Chat(SHIPPED.prose, template=TEMPLATE, max_tokens=3) as chat:
        list(chat.reply("And the king said"))
        assert chat.cut_after == 3
        answer = chat.reply("Go on")
        next(answer)
        assert chat.cut_after is None
    with Chat(SHIPPED.prose, template=TEMPLATE, max_tokens=50, context=20) as chat:
        list(chat.reply("And the king said"))
        assert chat.cut_after is not None
        assert chat.cut_after < 20
        assert _cut_text(chat.cut_after, 50).endswith("the context is full, /reset begins a new one")
    with Chat(SHIPPED.prose, template=TEMPLATE, max_tokens=50) as chat:
        every_token = tuple(range(chat._model.spec.vocabulary))
        chat._prompter.stop_ids = every_token  # whatever comes first ends the answer
        assert list(chat.reply("And the king said")) == []
        assert chat.cut_after is None
