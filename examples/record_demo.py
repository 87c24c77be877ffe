"""Run the demo and write its terminal output as a picture: python examples/record_demo.py.

Writes docs/assets/demo.svg and docs/assets/heat_map.png.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
WIDTH = 100


def terminal_output(command: list[str], folder: Path) -> str:
    """What a command prints on a color terminal of WIDTH columns."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def as_svg(command: str, output: str) -> str:
    """A terminal window with a command and its output. No fonts are loaded from the network."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), command))
    console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title="lbrx demo", unique_id="demo")
    svg = re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "lbrx", "demo"]
        terminal_output(command, folder)  # the first run compiles kernels
        output = terminal_output(command, folder)
        ASSETS.mkdir(exist_ok=True)
        (ASSETS / "demo.svg").write_text(as_svg("lbrx demo", output), encoding="utf-8")
        shutil.copy(folder / "demo-output" / "changes.png", ASSETS / "heat_map.png")


if __name__ == "__main__":
    main()
