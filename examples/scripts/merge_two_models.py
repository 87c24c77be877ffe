"""Merge two models from Python: python merge_two_models.py A B OUT"""

from __future__ import annotations

import json
import sys

import lbrx


def main(first: str, second: str, out: str) -> None:
    recipe = f"""
merge_method: linear
models:
  - {{model: {json.dumps(first)}, parameters: {{weight: 0.5}}}}
  - {{model: {json.dumps(second)}, parameters: {{weight: 0.5}}}}
dtype: bfloat16
"""
    lbrx.merge(recipe, out)
    print(out, "has", len(lbrx.open(out)), "tensors")


if __name__ == "__main__":
    main(*sys.argv[1:4])
