"""A merge method of your own: python custom_method.py BASE TUNED OUT

The recipe names the function below as FILE:FUNCTION. Its keyword arguments are the parameters of the recipe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import lbrx
from lbrx import Tensor


def clipped(base: Tensor, models: Sequence[Tensor], *, weight: Sequence[float] = (1.0,), limit: float) -> Tensor:
    """Add the difference of each model from the base, but at most ``limit`` per element."""
    result = base
    for model, share in zip(models, weight, strict=True):
        result = result + share * (model - base).clip(-limit, limit)
    return result


def main(base: str, tuned: str, out: str) -> None:
    recipe = f"""
merge_method: {json.dumps(f"{Path(__file__).resolve()}:clipped")}
base_model: {json.dumps(base)}
models:
  - model: {json.dumps(tuned)}
parameters:
  limit: 0.01
dtype: bfloat16
"""
    lbrx.merge(recipe, out, allow_code=True)
    print(out, "has", len(lbrx.open(out)), "tensors")


if __name__ == "__main__":
    main(*sys.argv[1:4])
