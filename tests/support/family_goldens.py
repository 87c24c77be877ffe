"""Golden files of model families: what transformers, llama.cpp and mlx_lm make of tiny models with seeded weights.

``parity/make_family_goldens.py`` writes them; ``parity/family_cases`` lists the models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lbrx
from lbrx.models.architectures import Family, find_family
from support.seeded_weights import seeded_model

Array = npt.NDArray[np.float32]

FOLDER = Path(__file__).parent.parent / "golden/families"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@dataclass(frozen=True, eq=False)
class Golden:
    """One tiny model: ``gguf``, ``llama_cpp`` and ``mlx`` are None if that program does not have its family."""

    name: str
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    ids: list[int]
    positions: list[int]
    values: Array | None  # logits at the positions, of decoders
    gguf: dict[str, Any] | None
    llama_cpp: dict[str, Any] | None
    mlx: dict[str, Any] | None
    processor: dict[str, Any] | None
    mmproj: dict[str, Any] | None  # the file of the converter's option --mmproj

    @property
    def family(self) -> Family:
        return find_family(self.config)

    def arrays(self, copy: int = 0) -> dict[str, Array]:
        return seeded_model(self.shapes, copy)

    def write(self, folder: Path, copy: int = 0) -> Path:
        """Write the model as a Hugging Face directory."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        if self.processor is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(self.processor), encoding="utf-8")
        tensors = {name: lbrx.tensor(array) for name, array in self.arrays(copy).items()}
        lbrx.save(folder / "model.safetensors", tensors, {"format": "pt"})
        return folder


@cache
def golden(name: str) -> Golden:
    """Read a golden file."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Golden(
        content["case"],
        content["config"],
        {name: tuple(shape) for name, shape in content["tensors"].items()},
        content["ids"],
        content["positions"],
        None if content["values"] is None else np.array(content["values"], np.float32),
        content["gguf"],
        content["llama.cpp"],
        content["mlx"],
        content.get("processor"),
        content.get("mmproj"),
    )


def all_goldens() -> list[Golden]:
    return [golden(name) for name in NAMES]
