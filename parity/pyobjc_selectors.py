"""Record what PyObjC's releases know of the methods that the native Metal driver calls.

    python parity/pyobjc_selectors.py WHEEL...            compares the wheels with the record
    python parity/pyobjc_selectors.py --write WHEEL...    writes the record

Wheels of any Python version serve, on any machine:

    pip download --no-deps --only-binary=:all: --platform macosx_11_0_universal2 pyobjc-framework-Metal==12.2.2
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

from lbrx.devices.metal.driver.selectors import PROTOCOL_SELECTORS

RECORD = Path(__file__).parent.parent / "tests/devices/metal/driver/pyobjc_selectors.json"
CLASSES = (b"NSObject", b"MTLCaptureManager", b"MTLCompileOptions")


def main(arguments: list[str]) -> None:
    """Compare or write."""
    writes = "--write" in arguments
    wheels = [Path(argument) for argument in arguments if argument != "--write"]
    found = recorded({_version(wheel): metadata(wheel) for wheel in wheels})
    if writes:
        lines = [f"    {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(found["selectors"].items())]
        head = f'{{\n  "versions": {json.dumps(found["versions"])},\n  "selectors": {{\n'
        RECORD.write_text(head + ",\n".join(lines) + "\n  }\n}\n", encoding="utf-8")
        return
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    differences = [
        f"{name}: the record has {known['selectors'].get(name)}, the wheels have {found['selectors'].get(name)}"
        for name in sorted({*known["selectors"], *found["selectors"]})
        if known["selectors"].get(name) != found["selectors"].get(name)
    ]
    print(
        "\n".join(differences) or f"{len(found['selectors'])} methods are as recorded in {', '.join(found['versions'])}"
    )
    sys.exit(bool(differences))


def metadata(wheel: Path) -> dict[str, dict[str, Any]]:
    """The metadata of the methods in the table, by selector: what a wheel registers when it is imported."""
    registered: dict[str, dict[str, Any]] = {}

    def register(owner: bytes, selector: bytes, fields: dict[str, Any]) -> None:
        if owner in CLASSES and selector.decode() in PROTOCOL_SELECTORS:
            registered[selector.decode()] = fields

    class Stub(ModuleType):
        registerMetaDataForSelector = staticmethod(register)

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    with zipfile.ZipFile(wheel) as archive:
        source = archive.read("Metal/_metadata.py").decode()
    before = sys.modules.get("objc")
    sys.modules["objc"] = Stub("objc")
    try:
        exec(compile(source, f"{wheel.name}/Metal/_metadata.py", "exec"), {"__name__": "_metadata"})
    finally:
        sys.modules.pop("objc")
        if before is not None:
            sys.modules["objc"] = before
    return registered


def recorded(by_version: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Types by selector, with the first version that has them; all versions have to agree."""
    selectors: dict[str, dict[str, Any]] = {}
    for version, methods in by_version.items():
        for name, fields in methods.items():
            types = {"returns": _returns(fields), "arguments": _arguments(name, fields)}
            earlier = selectors.setdefault(name, {"since": version, **types})
            if {key: earlier[key] for key in types} != types:
                earlier.setdefault("later", {})[version] = types
    return {"versions": list(by_version), "selectors": selectors}


def _returns(fields: dict[str, Any]) -> str:
    result = fields.get("retval", {})
    return str(result.get("type", b"v").decode()) + (" retained" if result.get("already_retained") else "")


def _arguments(name: str, fields: dict[str, Any]) -> list[str]:
    arguments = fields.get("arguments", {})
    described = [arguments.get(index, {}) for index in range(2, 2 + name.count(":"))]
    return [(each.get("type_modifier", b"") + each.get("type", b"@")).decode() for each in described]


def _version(wheel: Path) -> str:
    match = re.match(r"pyobjc_framework_metal-([\d.]+)-", wheel.name, re.IGNORECASE)
    if match is None:
        raise SystemExit(f"{wheel}: is not a wheel of pyobjc-framework-Metal")
    return match[1]


if __name__ == "__main__":
    main(sys.argv[1:])
