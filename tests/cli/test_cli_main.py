"""The entry point: help, version, exit codes, and what a command line does not import."""

from __future__ import annotations

import importlib.metadata
import inspect
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from types import FrameType

import pytest

import lbrx
import support
from lbrx.cli import main as cli
from lbrx.cli.main import COMMANDS
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, KernelError, LbrxError
from lbrx.registry import load
from support.cli_running import lbrx_command
from support.vision_language import write_language_model, write_vision_language


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "--help")
    assert outcome.code == 0
    for name, command in COMMANDS.items():
        assert any(name in line and command.summary in line for line in outcome.out.splitlines())
    assert "lbrx inspect model.gguf" in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_the_docstring(name: str) -> None:
    docstring = inspect.getdoc(load(COMMANDS[name].target))
    assert docstring is not None
    assert docstring.splitlines()[0] == COMMANDS[name].summary


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, name, "--help")
    assert outcome.code == 0
    assert f"lbrx {name}" in outcome.out
    assert COMMANDS[name].summary in outcome.out


@pytest.mark.parametrize("arguments", [[], ["merge"], ["lora"]])
def test_help_is_also_a_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert lbrx_command(capsys, "help", *arguments) == lbrx_command(capsys, *arguments, "--help")


FUNCTIONS = [*sorted(COMMANDS.keys() & set(lbrx.__all__)), "extract_lora", "merge_lora"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_command_calls_the_public_function_of_its_name(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "bench":
        request.getfixturevalue("clang")
    models = demo_models()
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {models.base}}}], parameters: {{weight: 1}}}}")
    searched = tmp_path / "searched.yml"
    weights = f"{{model: {models.base}, parameters: {{weight: {{search: [1, 2]}}}}}}"
    searched.write_text(f"{{merge_method: linear, models: [{weights}]}}")
    mixture = tmp_path / "mixture.yml"
    experts = f"[{{source_model: {models.prose}}}, {{source_model: {models.code}}}]"
    mixture.write_text(f"{{base_model: {models.base}, gate_mode: random, experts: {experts}}}")
    arguments = {
        "bench": ["--emulated", "--only=softmax", "--repeats=1"],
        "compare": [models.base, models.base, "--filter=norm"],
        "diff": [models.base, models.code, "--filter=norm"],
        "doctor": ["--json"],
        "extract_lora": ["extract", models.code, models.base, tmp_path / "adapter", "--modules=q_proj"],
        "generate": [models.base, "--prompt=Once", "--max-tokens=2"],
        "insert": [tmp_path / "text", tmp_path / "parent", tmp_path / "out", "--threads=1"],
        "inspect": [models.base],
        "moe": [mixture, tmp_path / "out", "--threads=1"],
        "merge_lora": ["merge", models.base, tmp_path / "adapter", tmp_path / "out"],
        "merge": [recipe, tmp_path / "out", "--threads=1", "--no-sync"],
        "convert": [models.base, tmp_path / "out", "--strict"],
        "quantize": [models.base, tmp_path / "out.gguf", "--to=q8_0", "--memory=1GiB"],
        "score": [models.base, f"--text={recipe}", "--device=cpu"],
        "search": [searched, tmp_path / "out", f"--text={recipe}", "--candidates=1", "--rungs=1", "--threads=1"],
        "shuffle": [models.code, models.base, "--out", tmp_path / "out", "--threads=1"],
        "upload": [tmp_path / "model", "me/model"],
        "transplant": [models.code, models.base, tmp_path / "out", "--threads=1"],
        "verify": [models.base, "--quick"],
    }
    if name == "merge_lora":
        lbrx.extract_lora(models.code, models.base, tmp_path / "adapter", modules="q_proj")
    if name == "insert":
        write_language_model(tmp_path / "text")
        write_vision_language(tmp_path / "parent")
    if name == "upload":
        request.getfixturevalue("hub")
        copytree(models.base, tmp_path / "model")
    command = "lora" if name.endswith("_lora") else name
    called: list[dict[str, object]] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is getattr(lbrx, name).__code__:
            called.append(dict(frame.f_locals))

    sys.setprofile(profile)
    try:
        assert cli.run([command, *map(str, arguments[name])]) == 0
    finally:
        sys.setprofile(None)
    (given,) = called
    options = {"merge": {"threads": 1, "sync": False}, "convert": {"strict": True}, "quantize": {"memory": "1GiB"}}
    assert options.get(name, {}).items() <= dict(given.get("options", {})).items()  # type: ignore[call-overload]


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "--version")
    assert lbrx_command(capsys, "-V") == outcome
    assert (outcome.code, outcome.out) == (0, f"lbrx {importlib.metadata.version('lbrx')}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspekt",),
        ("inspect",),
        ("inspect", "a", "b"),
        ("inspect", "--no-such-option", "a"),
        ("--no-such-option",),
        ("help", "inspekt"),
        ("bench", "--repeats", "many"),
        ("bench", "--repeats", "0"),
        ("merge", "recipe.yml"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage: lbrx" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("merge", "a", "b", "--method=linear"),
        ("merge", "a", "b", "--out=c"),
        ("convert", "a", "b", "--shard-size=0"),
        ("quantize", "a", "b.gguf", "--to=q4_k_m", "--tensors"),
        ("bench", "--device=abacus"),
        ("inspect", ""),
    ],
)
def test_wrong_values_exit_with_1(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("convert",), "IN"), (("diff", "a"), "B"), (("score",), "MODEL..."), (("lora", "extract"), "PATH...")],
)
def test_a_missing_argument_is_called_as_in_the_help(
    arguments: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = lbrx_command(capsys, *arguments)
    assert outcome.code == 2
    assert f"Error: Missing argument '{name}'." in outcome.err
    assert f" {name}" in outcome.err.splitlines()[0]


def failing_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "_function", lambda _target: command)


def test_an_error_is_one_line_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(FileError("a/" + "long " * 60 + "[bold]path: is wrong"), monkeypatch)
    outcome = lbrx_command(capsys, "inspect")
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err == "error: a/" + "long " * 60 + "[bold]path: is wrong\n"


def test_of_an_error_of_many_lines_the_first_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(KernelError("does not compile: x\ndef kernel():\n    pass"), monkeypatch)
    assert lbrx_command(capsys, "inspect").err == "error: does not compile: x (set LBRX_DEBUG=1 for details)\n"


def test_control_characters_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(FileError("\x1b[2Jname"), monkeypatch)
    assert lbrx_command(capsys, "inspect").err == "error: \\x1b[2Jname\n"


def test_debugging_shows_the_error_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBRX_DEBUG", "1")
    failing_with(FileError("wrong"), monkeypatch)
    with pytest.raises(LbrxError, match="wrong"):
        lbrx_command(capsys, "inspect")


def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing_with(KeyboardInterrupt(), monkeypatch)
    assert lbrx_command(capsys, "inspect").code == 130


def test_a_mistake_of_our_own_is_not_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_with(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        lbrx_command(capsys, "inspect")


def in_a_process(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", code] if code else [sys.executable, "-m", "lbrx"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)


def test_a_missing_file_gives_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = in_a_process("inspect", str(tmp_path / "gone.gguf"))
    message = f"error: {tmp_path / 'gone.gguf'}: cannot be opened: No such file or directory\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    import lbrx

    path = tmp_path / "a.safetensors"
    lbrx.save(path, {f"tensor.{number}": lbrx.full((1,), 0, "u8") for number in range(4000)})
    command = [sys.executable, "-m", "lbrx", "inspect", "--tensors", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (1, -signal.SIGPIPE)


HEAVY = """
import sys
from lbrx.cli.main import run
code = run(sys.argv[1:])
print(code, sorted({"numba", "llvmlite", "yaml", "huggingface_hub"} & set(sys.modules)), file=sys.stderr)
"""


def test_help_and_inspect_import_no_compiler() -> None:
    model = support.GOLDEN / "mergekit" / "models" / "a"
    for arguments in (["--help"], ["inspect", str(model)], ["inspect", "--json", str(model)]):
        done = in_a_process(*arguments, code=HEAVY)
        assert done.stderr == "0 []\n"


def test_help_imports_no_command() -> None:
    code = HEAVY.replace('{"numba", "llvmlite", "yaml", "huggingface_hub"}', '{"lbrx.cli.inspect", "lbrx.cli.demo"}')
    assert in_a_process("--help", code=code).stderr == "0 []\n"
