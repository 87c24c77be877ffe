"""How the files of this folder were made: ``python make_files.py`` with PyTorch 2.13 installed."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    import torch

    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    views: OrderedDict[str, Any] = OrderedDict(
        whole=base, transposed=base.T, rows=base[1:], column=base[:, 2], expanded=base[0, :1].expand(5)
    )
    torch.save(views, HERE / "views.pt")
    types = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    types += ["int64", "int32", "int16", "int8", "uint8", "bool"]
    torch.save({name: torch.tensor([0.0, 1.0, 1.0]).to(getattr(torch, name)) for name in types}, HERE / "types.pt")
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.bias.copy_(torch.tensor([5.0, 6.0]))
    torch.save(layer.state_dict(), HERE / "state_dict.bin")
    training = {"state_dict": {"w": torch.nn.Parameter(torch.ones(2))}, "optimizer": {"state": {0: {"m": base}}}}
    torch.save(training | {"epoch": 3, "note": "text", "scalar": torch.tensor(2.5)}, HERE / "flat.pt")
    torch.save({**training, "epoch": 3}, HERE / "training.pt")
    torch.save({"w": base}, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    several = {"bytes": torch.arange(3, dtype=torch.uint8), "half": base.half(), "turned": base.T, "row": base[1]}
    torch.save({"epoch": 3, "state_dict": several}, HERE / "legacy_views.pt", _use_new_zipfile_serialization=False)
    torch.save({"w": base.to(torch.complex64)}, HERE / "complex.pt")
    torch.save(layer, HERE / "module.pt")
    sharded = HERE / "sharded"
    sharded.mkdir(exist_ok=True)
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    torch.save({"a": torch.ones(2, 2, dtype=torch.bfloat16)}, sharded / names[0])
    torch.save({"b": torch.zeros(3)}, sharded / names[1])
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": names[0], "b": names[1]}}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")


if __name__ == "__main__":
    main()
