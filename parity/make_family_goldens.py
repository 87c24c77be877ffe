"""Write tests/golden/families/CASE.json: what transformers, llama.cpp and mlx_lm make of tiny seeded models.

    python parity/make_family_goldens.py [CASE ...]

Needs the environment .venv-mergekit, LLAMA_CPP_SOURCE (see peer_llama_cpp.py) and, for mlx_lm, .venv-mlx. Without one
of the last two, the files keep what they have. A second run writes the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "parity")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from family_cases import VOCABULARY, Case, all_cases  # noqa: E402

Values = npt.NDArray[np.float32]

GOLDEN = ROOT / "tests/golden/families"
IDS = [3, 14, 15, 9, 26, 53, 58, 9, 7, 9, 32, 38, 46, 26, 43, 38, 32, 7, 9, 50]
POSITIONS = [0, 6, 13, 19]
MLX_PYTHON = Path(os.environ.get("LBRX_MLX_PYTHON", ROOT / ".venv-mlx/bin/python"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--only-mlx", action="store_true", help="update what mlx_lm computes, keep the rest")
    options = parser.parse_args()
    known = all_cases()
    unknown = [name for name in options.cases if name not in known]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; expected one of {', '.join(known)}")
    cases = {name: known[name] for name in options.cases or known}
    failed = [] if options.only_mlx else [name for name, case in cases.items() if not _made(name, case)]
    wanted = [name for name, case in cases.items() if has_mlx(case) and name not in failed]
    if (MLX_PYTHON.parent.parent / ".installed").is_file() and wanted:
        subprocess.run([MLX_PYTHON, ROOT / "parity/peer_mlx.py", *wanted], check=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def has_mlx(case: Case) -> bool:
    """Return whether mlx_lm may have the family: it has decoders only."""
    return "mlx" in case.peers and case.auto in (None, "AutoModelForCausalLM", "AutoModelForImageTextToText")


def _made(name: str, case: Case) -> bool:
    try:
        golden = make_golden(name, case)
    except Exception:
        print(f"{name}: failed")
        traceback.print_exc()
        return False
    write_golden(name, golden)
    gguf, llama = golden["gguf"] or {}, golden["llama.cpp"] or {}
    converted = f"{len(gguf['tensors'])} GGUF tensors" if "tensors" in gguf else f"GGUF: {gguf.get('error')}"
    found = llama.get("difference", llama.get("error"))
    print(f"{name}: {len(golden['tensors'])} tensors, {converted}, llama.cpp: {found}")
    return True


def make_golden(name: str, case: Case) -> dict[str, Any]:
    """Return the content of a golden file, with what the present one has of peers that are not installed."""
    import peer_transformers

    path = GOLDEN / f"{name}.json"
    present: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        config, shapes = peer_transformers.make_model(case, directory)
        is_same = present.get("config") == config and present.get("tensors") == shapes
        kept = present if is_same else {}
        values = None
        if case.auto in peer_transformers.DECODERS:
            values = peer_transformers.compute(peer_transformers.load_model(case.auto, directory, case.attention), IDS)
        elif case.packed:
            values = peer_transformers.compute_as_llama(case, directory, IDS)
        gguf, llama, found = _of_llama_cpp(case, directory, values, kept)
        projector = _projector(case, directory, kept)
        values = found if values is None else values
    return {
        "case": name,
        "auto": case.auto,
        "versions": {**kept.get("versions", {}), "transformers": importlib.metadata.version("transformers")},
        "config": config,
        "tensors": shapes,
        "ids": IDS,
        "positions": POSITIONS,
        "values": None if values is None else rounded(values[POSITIONS]),
        "gguf": gguf,
        "llama.cpp": llama,
        "mlx": kept.get("mlx"),
        **({} if projector is None else {"processor": case.processor, "mmproj": projector}),
    }


def _of_llama_cpp(
    case: Case, directory: Path, values: Values | None, kept: dict[str, Any]
) -> tuple[Any, Any, Values | None]:
    """Return what the converter writes, what llama.cpp computes, and its logits; None for what it cannot."""
    import peer_llama_cpp

    if not {"llama.cpp", "converter"} & {*case.peers} or "LLAMA_CPP_SOURCE" not in os.environ:
        return kept.get("gguf"), kept.get("llama.cpp"), None
    peer_llama_cpp.write_tokenizer(directory, VOCABULARY)
    files = {type_name: directory.parent / f"{type_name}.gguf" for type_name in ("f32", "bf16")}
    try:
        is_known = all(
            peer_llama_cpp.convert(directory, path, type_name, more=case.forgotten, dropped=case.dropped)
            for type_name, path in files.items()
        )
    except Exception as error:
        return _error(error), None, None
    if not is_known:
        return None, None, None
    described = peer_llama_cpp.described(files["f32"], files["bf16"])
    if case.packed or "llama.cpp" not in case.peers or (case.auto is not None and values is None):
        return described, None, None
    try:
        found = peer_llama_cpp.logits(files["f32"], IDS)
    except Exception as error:
        return described, _error(error), None
    return described, compared(found, found if values is None else values), found


def _projector(case: Case, directory: Path, kept: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the converter writes with --mmproj; None for models without a projector in llama.cpp."""
    import peer_llama_cpp

    if case.processor is None or "LLAMA_CPP_SOURCE" not in os.environ:
        return kept.get("mmproj")
    files = {type_name: directory.parent / f"mmproj-{type_name}.gguf" for type_name in ("f32", "bf16")}
    for type_name, path in files.items():
        peer_llama_cpp.convert(directory, path, type_name, projector=True)
    return peer_llama_cpp.described(files["f32"], files["bf16"])


def _error(error: Exception) -> dict[str, str]:
    """Return the first line of an error of a peer, without paths."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return {"error": re.sub(r"/\S+/", "", text)[:160]}


def compared(found: Values, expected: Values) -> dict[str, Any]:
    """Return the values of a peer at the last position, and how far all of them are from those of transformers."""
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    return {"difference": float(f"{difference:.1g}"), "last": rounded(found[-1:])[0]}


def rounded(rows: Values) -> list[list[float]]:
    return [[float(f"{value:.8g}") for value in row] for row in rows]


def write_golden(name: str, golden: dict[str, Any]) -> None:
    """Write a golden file: a line for each key, and for each entry of long objects."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    parts = [f"{json.dumps(key)}: {_text(value)}" for key, value in golden.items()]
    (GOLDEN / f"{name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _text(value: Any, depth: int = 2) -> str:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if depth and isinstance(value, dict) and len(compact) > 160:
        return "{\n" + ",\n".join(f"{json.dumps(key)}:{_text(each, depth - 1)}" for key, each in value.items()) + "\n}"
    return compact


if __name__ == "__main__":
    main()
