"""Apple's offline compiler, as far as the build of the shaders can tell: names of kernels instead of their code.

It preprocesses like the emulator. An object file and a library are lists of names; `metallib` rejects two kernels with
one name.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.emulator.build import _preprocess
from lbrx.devices.metal.emulator.toolchain import find_toolchain


def main(arguments: list[str]) -> int:
    tool, *rest = arguments
    if tool == "metal" and rest == ["--version"]:
        print("Apple metal version 32023.404 (metalfe-32023.404)\nTarget: air64-apple-darwin24")
        return 0
    output = Path(rest[rest.index("-o") + 1]) if "-o" in rest else None
    if tool == "metallib":
        assert output is not None
        names = [name for path in rest[: rest.index("-o")] for name in json.loads(Path(path).read_text())]
        if len(names) != len(set(names)):
            print("error: a kernel is defined twice", file=sys.stderr)
            return 1
        output.write_text(json.dumps({"kernels": names}))
        return 0
    assert {"-std=metal3.1", "-mmacosx-version-min=14.0", "-fno-fast-math"} <= set(rest)
    (source,) = (each for each in rest if each.endswith(".metal"))
    macros = tuple(tuple(each[2:].split("=")) for each in rest if each.startswith("-D"))
    options = CompileOptions(macros)  # type: ignore[arg-type]
    text = _preprocess(find_toolchain(), Path(source).read_text(), options, (3, 1), ())
    if output is None:
        print(text)
        return 0
    names = re.findall(r"\bkernel\s+void\s+(\w+)\s*\(", text)
    for strings in re.findall(r'host_name\(((?:\s*"\w*")+)\s*\)', text):
        names.append("".join(re.findall(r'"(\w*)"', strings)))
    output.write_text(json.dumps(names))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
