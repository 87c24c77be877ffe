"""Add to golden files what mlx_lm makes of their models: names, shapes and logits. Runs in .venv-mlx.

python parity/peer_mlx.py CASE ...
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "parity")]

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from make_family_goldens import GOLDEN, rounded, write_golden  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

import lbrx  # noqa: E402
from lbrx import convert  # noqa: E402
from support.seeded_weights import write_seeded  # noqa: E402

mx.set_default_device(mx.cpu)


def of_mlx(golden: dict[str, Any]) -> dict[str, Any] | None:
    """Return what mlx_lm computes, or None if it does not have the family."""
    with tempfile.TemporaryDirectory() as folder:
        source, directory = Path(folder) / "hf", Path(folder) / "mlx"
        source.mkdir()
        write_seeded(source / "model.safetensors", golden["tensors"])
        (source / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
        convert(source, directory, format="mlx")
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        try:
            model, _ = load_model(directory, strict=True)
        except ValueError as error:
            if "not supported" in str(error):
                return None
            raise
        shapes = {name: list(tensor.shape) for name, tensor in lbrx.open(directory).items()}
        logits = np.array(model(mx.array([golden["ids"]])).astype(mx.float32))[0]
    expected = np.array(golden["values"], np.float32)
    difference = float(np.abs(logits[golden["positions"]] - expected).max() / np.abs(expected).max())
    absent = object()
    return {
        "difference": float(f"{difference:.1g}"),
        "last": rounded(logits[-1:])[0],
        "config": {key: value for key, value in config.items() if golden["config"].get(key, absent) != value},
        "added": {name: shapes[name] for name in sorted(shapes) if golden["tensors"].get(name) != shapes[name]},
        "absent": [name for name in golden["tensors"] if name not in shapes],
    }


def main() -> None:
    for name in sys.argv[1:]:
        golden = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        try:
            golden["mlx"] = of_mlx(golden)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            golden["mlx"] = {"error": re.sub(r"{.*}", "{...}", text)[:160]}  # sets have no order
        golden["versions"]["mlx_lm"] = importlib.metadata.version("mlx-lm")
        write_golden(name, golden)
        print(f"{name}: mlx_lm: {golden['mlx'] and golden['mlx'].get('difference', golden['mlx'])}")


if __name__ == "__main__":
    main()
