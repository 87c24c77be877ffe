"""Every command with input that is wrong: one line that says what, and nothing that is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lbrx
from lbrx.cli import main as cli
from lbrx.cli.main import COMMANDS
from lbrx.cli.paths import check_replaced
from lbrx.demo.models import demo_models
from lbrx.errors import MemoryBudgetError, UsageError
from lbrx.memory import budget
from lbrx.memory.limits import limited
from support.cli_running import lbrx_command

SHIPPED = demo_models()
LINEAR = """
merge_method: linear
models:
  - {model: base, parameters: {weight: 1}}
  - {model: code, parameters: {weight: 1}}
"""
MIXTURE = "{base_model: base, gate_mode: random, experts: [{source_model: base}, {source_model: code}]}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, an adapter, and things that are none, in the current directory."""
    shutil.copytree(SHIPPED.base, tmp_path / "base")
    shutil.copytree(SHIPPED.code, tmp_path / "code")
    lbrx.save(tmp_path / "small.safetensors", {"w": lbrx.tensor([1.0, 2.0], "f32")})
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "base"}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("some notes")
    (tmp_path / "cut.safetensors").write_bytes((SHIPPED.base / "model.safetensors").read_bytes()[:1000])
    (tmp_path / "linear.yml").write_text(LINEAR)
    (tmp_path / "mixture.yml").write_text(MIXTURE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The command, and what its one line of error has.
WRONG = [
    ("inspect bas", "bas: cannot be opened: No such file or directory; did you mean 'base'?"),
    ("inspect ./bas", "bas: cannot be opened: No such file or directory; did you mean 'base'?"),
    ("inspect owner/name", "owner/name: cannot be opened: No such file or directory; use 'hf://owner/name' to"),
    ("inspect empty", "empty: holds no .safetensors or .gguf files"),
    ("inspect cut.safetensors", "cut.safetensors: header ends at byte 3112, but the file has 1000"),
    ("merge nothing.yml out", "nothing.yml: the recipe cannot be read"),
    ("merge base out", "base: is a directory; expected a recipe (a YAML file)"),
    ("merge small.safetensors out", "small.safetensors: is a model; expected a recipe (a YAML file)"),
    ("moe small.safetensors out", "small.safetensors: is a model; expected a recipe (a YAML file)"),
    ("merge mixture.yml out", "mixture.yml:1: unknown key 'gate_mode'; it belongs to a recipe of 'lbrx moe'"),
    ("merge linear.yml out.gguf --format mlx", "out.gguf: an MLX model is a directory; expected a name that"),
    ("merge linear.yml out.safetensors", "out.safetensors: the output is a directory; expected a name that does not"),
    ("merge linear.yml out --shard-size 0GB", "--shard-size is 0GB; expected at least 1 byte"),
    ("merge linear.yml . --overwrite", ".: is or contains the current directory, which --overwrite would delete"),
    ("convert adapter out", "adapter: is a LoRA adapter (it has adapter_config.json), not a model; expected a base"),
    ("convert adapter out", "as 'BASE+ADAPTER' in a recipe: 'base+adapter'"),
    ("convert cod out", "cod: cannot be opened: No such file or directory; did you mean 'code'?"),
    ("convert base out.bin", "out.bin: lbrx cannot write PyTorch files; expected a directory, or a name ending in"),
    ("convert base notes.txt", "notes.txt: is a file; expected a directory to write to"),
    ("convert base notes.txt/out.gguf", "notes.txt: is a file; expected a directory to write to"),
    ("quantize cod out.gguf --to q8_0", "did you mean 'code'?"),
    ("quantize base out.gguf --to q8_0 --tensors", "--tensors needs --dry-run"),
    ("quantize base out.gguf --to q8_0 --candidates q4_0", "--candidates needs --target-bpw or --target-size"),
    ("moe linear.yml out", "linear.yml:2: unknown key 'merge_method'; it belongs to a recipe of 'lbrx merge'"),
    (
        "moe mixture.yml out.gguf",
        "out.gguf: expected a directory; use 'lbrx convert' to turn the mixture into a GGUF file",
    ),
    ("moe mixture.yml . --overwrite", ".: is or contains the current directory"),
    ("verify bse", "bse: cannot be opened: No such file or directory; did you mean 'base'?"),
    ("compare base cod", "cod: cannot be opened: No such file or directory; did you mean 'code'?"),
    ("compare base adapter", "adapter: is a LoRA adapter"),
    ("diff base cod", "cod: cannot be opened: No such file or directory; did you mean 'code'?"),
    ("diff base code --base bse", "bse: cannot be opened: No such file or directory; did you mean 'base'?"),
    ("lora extract cod base out", "cod: cannot be opened: No such file or directory; did you mean 'code'?"),
    ("lora extract code base out --modules absent", "29 tensors: its module was not chosen"),
    ("lora extract code base base", "base: exists; expected a new or empty directory for the adapter"),
    ("lora extract code base notes.txt/out", "notes.txt: cannot be made: file exists"),
    ("generate cod -p a", "cod: cannot be opened: No such file or directory; did you mean 'code'?"),
    (
        "generate base -p a --top-k 3",
        "--top-k, --top-p and --min-p have no effect at temperature 0; add a --temperature above 0",
    ),
    ("demo --output notes.txt", "notes.txt: is a file; expected a directory to write to"),
    ("doctor --emulated --only absent", "no test name contains 'absent'; expected part of a name such as "),
]


@pytest.mark.parametrize(("command", "message"), WRONG)
def test_wrong_input_is_one_line(command: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path for path in folder.rglob("*") if ".partial" not in path.name}
    done = lbrx_command(capsys, *command.split())
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    left = {path for path in folder.rglob("*") if not any(".partial" in part for part in path.parts)}
    assert left == before


@pytest.mark.usefixtures("folder")
def test_a_pattern_of_types_that_matches_nothing_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tensor-type", "ffn_down=q8_0", "--tensor-type", "ffn_dwon=q8_0"]
    done = lbrx_command(capsys, "quantize", "base", "out.gguf", "--to", "q4_0", "--dry-run", *options)
    assert done.code == 0
    assert done.err.startswith("warning: --tensor-type ffn_dwon=q8_0: matches none of the 29 names of tensors")
    assert done.err.count("\n") == 1


def test_more_tokens_than_a_model_was_made_for_are_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "base/config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 512', '"max_position_embeddings": 4'))
    assert "warning: base was made for 4 tokens" in lbrx_command(capsys, "generate", "base", "-p", "a", "-n", 4).err
    assert lbrx_command(capsys, "generate", "base", "-p", "a", "-n", 1).err == ""


@pytest.mark.parametrize("command", [("inspect", ""), ("merge", "linear.yml", ""), ("convert", "", "out")])
@pytest.mark.usefixtures("folder")
def test_an_empty_argument_is_not_the_current_directory(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    done = lbrx_command(capsys, *command)
    assert done.code == 1
    assert done.err == "error: an argument is empty; expected a path or a name (is a shell variable unset?)\n"


def test_an_empty_prompt_is_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert lbrx_command(capsys, "generate", SHIPPED.prose, "-p", "", "-n", 1).code == 0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "models/a"), "error: models/a: Permission denied\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (OSError("odd"), "error: odd\n"),
    ],
)
def test_an_error_of_the_system_is_one_line(
    error: OSError, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "_function", lambda _target: command)
    done = lbrx_command(capsys, "inspect")
    assert (done.code, done.out, done.err) == (1, "", text)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_too_little_memory_says_how_much_is_enough() -> None:
    message = (
        "1 KiB of memory are too little: a tile needs 4 KiB .* expected --memory 256MiB, which is enough for 3 threads"
    )
    with pytest.raises(MemoryBudgetError, match=message), limited(3, "1KiB"), budget().reserve(4096, "a tile"):
        pass


def test_work_that_needs_more_than_is_usually_enough_says_how_much() -> None:
    with pytest.raises(MemoryBudgetError) as caught, limited(1, "128MiB"), budget().reserve(1 << 30, "a tile"):
        pass
    assert str(caught.value).startswith("a tile needs 1 GiB of memory, but the limit is 128 MiB")


@pytest.mark.parametrize(
    "command", ["merge linear.yml out", "moe mixture.yml out", "quantize base out.gguf --to q4_k_m"]
)
@pytest.mark.usefixtures("folder")
def test_commands_with_too_little_and_with_enough_memory(command: str) -> None:
    program = [sys.executable, "-m", "lbrx", *command.split(), "--threads", "2", "--memory"]  # with no buffers yet
    failed = subprocess.run([*program, "1"], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "expected --memory 192MiB, which is enough for 2 threads\n" in failed.stderr
    assert subprocess.run([*program, "192MiB"], capture_output=True, check=False).returncode == 0


# -- what --overwrite may not take away -------------------------------------------------------------------------------


def test_overwriting_keeps_inputs_and_the_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "models").mkdir()
    (folder / "base").rename(folder / "models/base")
    (folder / "linear.yml").write_text(LINEAR.replace("model: base", "model: models/base"))
    done = lbrx_command(capsys, "merge", "linear.yml", "models", "--overwrite")
    assert done.code == 1
    assert "models: contains models/base/model.safetensors, which --overwrite would delete" in done.err
    (folder / "out").mkdir()
    (folder / "linear.yml").rename(folder / "out/linear.yml")
    done = lbrx_command(capsys, "merge", "out/linear.yml", "out", "--overwrite")
    assert done.code == 1
    assert "out: contains out/linear.yml, which --overwrite would delete" in done.err
    assert (folder / "models/base/model.safetensors").exists()


def test_an_input_is_not_replaced_by_the_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "code/model.safetensors").read_bytes()
    outcome = lbrx_command(capsys, "merge", "linear.yml", "code", "--overwrite", "--no-sync")
    assert outcome.code == 1
    assert "which must not be replaced" in outcome.err
    assert (folder / "code/model.safetensors").read_bytes() == before


def test_a_link_to_what_is_replaced_is_followed(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "base")
    with pytest.raises(UsageError, match="which --overwrite would delete"):
        check_replaced(folder, [folder / "link/model.safetensors"])
    check_replaced(folder / "empty", [folder / "link/model.safetensors", folder / "empty/../base/model.safetensors"])


# -- interrupts -------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys
from lbrx.cli import progress
from lbrx.cli.main import run

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it

class Interrupting(progress.JsonReporter if "--json" in sys.argv else progress.Reporter):
    def progress(self, state):
        if state.done_tensors == 3:
            os.kill(os.getpid(), signal.SIGINT)

progress.Reporter = progress.JsonReporter = Interrupting
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "resumed"),
    [
        ("merge linear.yml out --threads 1", "out"),
        ("moe mixture.yml out --threads 1", "out"),
        ("quantize base out.gguf --to q8_0 --threads 1", "out.gguf"),
        ("convert base out --type f32 --threads 1", "out"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_interrupt_says_how_to_go_on(command: str, resumed: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [sys.executable, "-c", INTERRUPTED, *command.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted: run the same command to resume\n"
    assert done.stdout == ""
    assert not Path(resumed).exists()
    again = lbrx_command(capsys, *command.split())
    assert again.code == 0
    assert "of them from an earlier run" in again.out


@pytest.mark.usefixtures("folder")
def test_an_interrupt_is_an_event_for_programs() -> None:
    arguments = [sys.executable, "-c", INTERRUPTED, "merge", "linear.yml", "out", "--threads", "1", "--json"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
    assert '"event": "interrupted"' in done.stdout.splitlines()[-1]


def test_an_interrupted_text_ends_quietly() -> None:
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from lbrx.cli.main import main"
    command = [sys.executable, "-c", f"{script}; main()", "generate", str(SHIPPED.prose), "-p", "And", "-n", "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
    assert process.returncode == 130


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "score"])
def test_every_help_has_examples_that_begin_with_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lbrx_command(capsys, name, "--help").out.splitlines()
    after = lines[lines.index("  Examples:") :]
    assert sum(line.startswith(f"    lbrx {name}") for line in after) >= 2
