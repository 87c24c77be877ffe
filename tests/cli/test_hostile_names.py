"""Names and paths from strangers do not control the terminal, and errors are one line whatever the system refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lbrx
from lbrx.cli import main as cli
from lbrx.cli.progress import TerminalReporter
from lbrx.demo.models import demo_models
from lbrx.files.output.options import Progress
from support.cli_running import in_terminal, lbrx_command


@pytest.mark.parametrize("command", ["verify", "compare", "diff"])
def test_names_like_markup_on_a_terminal(command: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    lbrx.save(path, {"a[/b]": lbrx.full((4, 4), 1.0, "f32"), "[bold]c": lbrx.full((4, 4), 1.0, "f32")})
    code, printed = in_terminal("-m", "lbrx", command, path, *([] if command == "verify" else [path]))
    assert "Traceback" not in printed
    assert code == 0, printed


def test_progress_escapes_names(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Bar:
        def update(self, *_: object, item: str, **__: object) -> None:
            shown.append(item)

    reporter = TerminalReporter("merging")
    monkeypatch.setattr(reporter, "started", 0.0)
    monkeypatch.setattr(reporter._bar, "_bar", Bar())
    monkeypatch.setattr(reporter._bar, "_task", 0)
    state = Progress(tensor="a\x1b]0;x\x07", done_tensors=1, total_tensors=2, done_bytes=1, total_bytes=2)
    reporter.progress(state)
    assert shown == ["a\\x1b]0;x\\x07"]


def test_dry_run_escapes_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {demo_models().base}}}], parameters: {{weight: 1}}}}")
    for arguments in (
        ["merge", recipe, tmp_path / "o\x1b[31m", "--dry-run"],
        ["convert", demo_models().base, tmp_path / "o\x1b[31m", "--dry-run"],
    ):
        outcome = lbrx_command(capsys, *arguments)
        assert outcome.code == 0, outcome.err
        assert "\x1b" not in outcome.out
        assert "o\\x1b[31m" in outcome.out


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "error: out of memory: the system refused an allocation"),
        (RuntimeError("can't start new thread"), "error: can't start new thread: the system refused to start a thread"),
        (
            ImportError("\n\nIMPORTANT\n\nOriginal error was: x.so: failed to map segment from shared object\n\n"),
            "error: a library cannot be loaded: Original error was: x.so: failed to map segment from shared object",
        ),
    ],
)
def test_refused_memory_and_threads(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_run_command", refuse)
    outcome = lbrx_command(capsys, "inspect", "a")
    assert outcome.code == 1
    assert outcome.err.startswith(message)
    assert outcome.err.count("\n") == 1


def test_errors_that_follow_from_refused_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as imports that fail in the middle."""

    def refuse(_: object) -> int:
        try:
            raise MemoryError
        except MemoryError:
            raise SystemError("error return without exception set")  # noqa: B904 - as Python does

    monkeypatch.setattr(cli, "_run_command", refuse)
    outcome = lbrx_command(capsys, "inspect", "a")
    expected = (
        "error: out of memory: the system refused an allocation (SystemError: error return without exception set)\n"
    )
    assert (outcome.code, outcome.err.replace("\n", " ").split()) == (1, expected.split())


def test_a_defect_is_not_taken_for_refused_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise SystemError("a defect")

    monkeypatch.setattr(cli, "_run_command", fail)
    with pytest.raises(SystemError, match="a defect"):
        cli.run(["inspect", "a"])


def test_an_error_is_printed_although_nothing_can_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "lbrx.cli.console", None)
    outcome = lbrx_command(capsys, "merge", tmp_path / "none.yml", tmp_path / "out")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "none.yml" in outcome.err


def test_without_a_home(tmp_path: Path) -> None:
    """Containers with a random user id have neither HOME nor an entry in the list of users."""
    script = "import os, pwd, sys\nfrom lbrx.base.system import cache_directory\n"
    script += "def unknown(uid): raise KeyError(uid)\npwd.getpwuid = unknown\nprint(cache_directory())"
    environment = {"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{tmp_path}/lbrx-{os.getuid()}"


@pytest.fixture
def gguf_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LBRX_CACHE_DIR", str(tmp_path / "cache"))
    lbrx.convert(demo_models().base, tmp_path / "base.gguf")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {tmp_path}/base.gguf}}], parameters: {{weight: 1}}}}")
    return recipe


def test_a_damaged_tokenizer_in_the_cache_is_replaced(gguf_recipe: Path, tmp_path: Path) -> None:
    lbrx.merge(gguf_recipe, tmp_path / "first")
    cached = list((tmp_path / "cache/tokenizers").glob("*/tokenizer.json"))
    assert len(cached) == 1
    cached[0].write_text('{"truncated')
    lbrx.merge(gguf_recipe, tmp_path / "second")
    assert (tmp_path / "second/tokenizer.json").read_bytes() == (tmp_path / "first/tokenizer.json").read_bytes()


def test_a_cache_that_cannot_be_written_does_not_stop_a_merge(
    gguf_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LBRX_CACHE_DIR", str(tmp_path / "file/cache"))
    lbrx.merge(gguf_recipe, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").exists()
