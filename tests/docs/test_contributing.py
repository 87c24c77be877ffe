"""CONTRIBUTING.md: its examples are added to a copy of the package, and the paths that it names exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_FILE = re.compile(r"<!-- file: (?P<path>\S+) -->\n```text\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE = re.compile(
    r"<!-- line: (?P<path>\S+) (?P<table>\w+) -->\n```text\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_PATH = re.compile(r"`((?:\w+/)*(?:\w+\.(?:py|md)|\w+/))`")
_TABLE = re.compile(r"`([A-Z_]+)` (?:in|of)\s+`([\w/]+\.py)`")
SCRIPT = """
import numpy as np
import lbrx

for name, value in (("base", 0.0), ("a", 2.0), ("b", 6.0)):
    lbrx.save(f"{name}.safetensors", {"w": lbrx.full((4, 8), value, "f32")})
lbrx.merge('''
merge_method: halfway
base_model: base.safetensors
models:
  - model: a.safetensors
  - model: b.safetensors
parameters: {share: 0.25}
''', "out")
print(lbrx.__file__)
print(float(lbrx.open("out")["w"].max()), float(lbrx.open("out")["w"].min()))
coded = lbrx.tensor(np.array([[-3, 2, -1, 0, 5, -6, 7, -8]], np.float32)).quantize("signs").realize()
print(coded.dequantize().numpy().ravel().astype(int).tolist())
"""


def test_the_method_and_the_codec_work_in_a_copy(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for added in _FILE.finditer(PAGE):
        (tmp_path / added["path"]).write_text(added["text"], encoding="utf-8")
    for line in _LINE.finditer(PAGE):
        path = tmp_path / line["path"]
        before, start, after = path.read_text(encoding="utf-8").partition(f"{line['table']}: dict[str, str] = {{\n")
        assert start
        path.write_text(before + start + line["text"] + after, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, merged, signs = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert merged == "1.0 1.0"
    assert signs == "[-1, 1, -1, 1, 1, -1, 1, -1]"


@pytest.mark.parametrize("path", sorted(set(_PATH.findall(PAGE))))
def test_paths_exist(path: str) -> None:
    assert any((folder / path).exists() for folder in (ROOT, ROOT / "src/lbrx"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "examples/README.md"])
def test_links_and_sources_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []
    sources = re.findall(r"`(src/[\w/.]+)`", text)
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_tables_are_in_their_files() -> None:
    tables = _TABLE.findall(PAGE)
    assert len(tables) >= 6
    for name, path in tables:
        assert re.search(rf"^{name}\b", (ROOT / "src/lbrx" / path).read_text(encoding="utf-8"), re.MULTILINE), name
