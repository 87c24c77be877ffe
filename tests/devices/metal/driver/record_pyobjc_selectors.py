"""Record what PyObjC's own metadata says of the methods that the native driver calls.

Run by hand with a wheel of pyobjc-framework-Metal (``pip download pyobjc-framework-Metal --no-deps
--platform macosx_11_0_universal2 --only-binary=:all:``); the result is kept beside this file, so that tests need no
download and no Mac.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from lbrx.devices.metal.driver.pyobjc import SELECTORS

RECORD = Path(__file__).parent / "pyobjc_metal_selectors.json"


def signature(metadata: str, selector: str) -> dict[str, Any]:
    """The return type and the argument types; an ``o`` before a type marks an argument that returns something."""
    found = re.search(rf'r\(\s*b"\w+",\s*b"{re.escape(selector)}",\s*', metadata)
    if found is None:
        raise SystemExit(f"PyObjC has no metadata for {selector}")
    depth, end = 0, found.end()
    while depth or end == found.end():
        depth += (metadata[end] in "{(") - (metadata[end] in "})")
        end += 1
    record = eval(metadata[found.end() : end], {"__builtins__": {}})
    arguments = record.get("arguments", {})
    types = [arguments.get(k, {"type": b"@"}) for k in range(2, 2 + selector.count(":"))]
    return {
        "returns": record.get("retval", {"type": b"v"})["type"].decode(),
        "arguments": [each.get("type_modifier", b"").decode() + each["type"].decode() for each in types],
    }


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("Metal/_metadata.py").decode()
    lines = [f"    {json.dumps(name)}: {json.dumps(signature(metadata, name))}" for name in sorted(SELECTORS)]
    source = json.dumps(Path(wheel).name)
    RECORD.write_text(f'{{\n  "source": {source},\n  "selectors": {{\n' + ",\n".join(lines) + "\n  }\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
