"""Commands import no job that they do not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lbrx.demo.models import demo_models

SCRIPT = """
import sys
from lbrx.cli.main import run
code = run(sys.argv[1:])
print(*sorted(name for name in sys.modules if name.startswith("lbrx.jobs.")), sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def imported_jobs(*arguments: object) -> set[str]:
    """The folders of jobs that a command imports in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {line.split(".")[2] for line in done.stderr.splitlines() if line.startswith("lbrx.jobs.")}


@pytest.mark.parametrize("options", [["--to", "q4_k_m"], ["--to", "mlx_4"]], ids=["gguf", "mlx"])
def test_quantize_imports_no_merging(tmp_path: Path, options: list[str]) -> None:
    out = tmp_path / ("out.gguf" if "q4_k_m" in options else "out")
    assert imported_jobs("quantize", demo_models().base, out, *options) == {"convert", "imatrix", "quantize"}


@pytest.mark.parametrize(("name", "options"), [("out.gguf", []), ("out", ["--format", "mlx"]), ("out", ["--type=f16"])])
def test_convert_imports_no_other_job(tmp_path: Path, name: str, options: list[str]) -> None:
    assert imported_jobs("convert", demo_models().base, tmp_path / name, *options) == {"convert"}


def test_convert_of_a_gguf_file_imports_no_other_job(tmp_path: Path) -> None:
    assert imported_jobs("convert", demo_models().base, tmp_path / "a.gguf") == {"convert"}
    assert imported_jobs("convert", tmp_path / "a.gguf", tmp_path / "b.gguf", "--type", "bf16") == {"convert"}


def test_a_merge_imports_only_its_family(tmp_path: Path) -> None:
    models = demo_models()
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(f"{{merge_method: linear, models: [{{model: {models.prose}}}], parameters: {{weight: 1}}}}")
    script = SCRIPT.replace("lbrx.jobs.", "lbrx.models.architectures.families.")
    command = [sys.executable, "-c", script, "merge", str(recipe), str(tmp_path / "out"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["lbrx.models.architectures.families.llama"]


MOST_MODULES = 122
TRACED = """
import sys, threading
names = set()
def called(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("lbrx") and frame.f_code.co_name != "<module>":
        names.add(name)
threading.setprofile(called)
sys.setprofile(called)
from lbrx.cli.main import run
code = run(sys.argv[1:])
sys.setprofile(None)
print(len(names))
sys.exit(code)
"""


def test_a_merge_runs_through_few_modules(tmp_path: Path) -> None:
    """Modules in which a function or the body of a class is run, once kernels are compiled."""
    models = demo_models()
    recipe = tmp_path / "recipe.yml"
    inputs = f"models: [{{model: {models.prose}}}, {{model: {models.code}}}]"
    recipe.write_text(f"{{merge_method: linear, {inputs}, parameters: {{weight: 1}}}}")
    counts = []
    for number in range(2):
        command = [sys.executable, "-c", TRACED, "merge", recipe, tmp_path / str(number), "--quiet"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        counts.append(int(done.stdout))
    assert counts[-1] <= MOST_MODULES
