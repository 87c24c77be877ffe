"""``python -m lbrx.devices.metal.build [DIRECTORY] [--emulated]``: compile all shaders ahead of time.

Without a directory the files go into the package, where they are found at the next start. ``--emulated`` compiles for
the emulator, on any machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lbrx.devices.metal.build import build_for_apple, build_for_emulator
from lbrx.devices.metal.driver.shader_cache import PREBUILT_DIRECTORY
from lbrx.errors import LbrxError


def main(arguments: list[str] | None = None) -> int:
    """Build, and print what was made."""
    parser = argparse.ArgumentParser(prog="python -m lbrx.devices.metal.build", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=PREBUILT_DIRECTORY)
    parser.add_argument("--emulated", action="store_true", help="compile for the emulator")
    options = parser.parse_args(arguments)
    build = build_for_emulator if options.emulated else build_for_apple
    try:
        manifest = build(options.directory, progress=lambda name: print(name, file=sys.stderr))
    except LbrxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    kernels = sum(len(shader.kernels) for shader in manifest.shaders)
    print(f"{options.directory / manifest.library}: {len(manifest.shaders)} shaders, {kernels} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
