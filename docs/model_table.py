"""Write docs/models.md from the records of families and the golden files of tests: python docs/model_table.py"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lbrx.models.architectures import Family, find_family
from lbrx.models.architectures.table import all_families

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden/families"
PAGE = ROOT / "docs/models.md"

SAME_LOGITS = 1e-3  # relative; mlx_lm has another GELU
COLUMNS = ("family", "merge", "slices", "GGUF", "back", "MLX", "run", "fused experts", "compared models")
TEXT = """# Models

lbrx knows these families of models. It merges other models too, by the names of their tensors.

{counts}

| column | a tiny model of the family |
|---|---|
| merge | is merged as the formula says; every tensor is known by name and shape |
| slices | can be stacked from layers in another order, and config.json describes the result |
| GGUF | becomes a GGUF file with the tensors, bytes and key-values of llama.cpp's converter |
| back | comes back from the GGUF file byte by byte |
| MLX | becomes a directory with which mlx_lm computes the same logits |
| run | gives the logits of transformers (of llama.cpp if only that has the family), also from its GGUF file |
| fused experts | may have one tensor for the experts of a layer, as transformers 5 saves them (families with experts) |

The last column is the number of tiny models in `tests/golden/families/` that the tests compare. A dash means that the
other program does not have the family, or that lbrx cannot do it yet.

{table}
"""


def page() -> str:
    """Return the text of docs/models.md."""
    goldens: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(GOLDEN.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        goldens[find_family(content["config"]).name].append(content)
    families = sorted(all_families(), key=lambda family: family.name)
    rows = [[family.name, *_marks(family, goldens[family.name])] for family in families]
    counts = {title: sum(row[column] == "yes" for row in rows) for column, title in enumerate(COLUMNS)}
    summary = f"{len(rows)} families merge, {counts['GGUF']} convert to GGUF and back, and {counts['run']} run."
    return TEXT.format(counts=summary, table="\n".join(_table([COLUMNS, ["---"] * len(COLUMNS), *rows])))


def _marks(family: Family, goldens: list[dict[str, Any]]) -> Iterator[str]:
    is_converted = family.gguf is not None
    yield "yes"
    yield _mark(bool(family.layer_prefix))
    yield _mark(is_converted)
    yield _mark(is_converted)
    yield _mark(any((golden["mlx"] or {}).get("difference", 1) <= SAME_LOGITS for golden in goldens))
    yield _mark(family.decoder is not None)
    has_fused = any(weight.name.endswith("experts.gate_up_proj") for weight in family.layer)
    yield "" if family.expert_count is None and not has_fused else _mark(has_fused)
    yield str(len(goldens))


def _mark(is_possible: bool) -> str:
    return "yes" if is_possible else "-"


def _table(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
