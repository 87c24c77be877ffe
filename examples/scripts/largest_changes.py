"""List the tensors that a fine-tune changed most: python largest_changes.py BASE TUNED"""

from __future__ import annotations

import sys

import lbrx


def main(base_path: str, tuned_path: str) -> None:
    base, tuned = lbrx.open(base_path), lbrx.open(tuned_path)
    changes = {}
    for name in base:
        change, length = lbrx.evaluate((tuned[name] - base[name]).norm(), base[name].norm())  # one pass over both files
        changes[name] = float(change) / float(length)
    for name in sorted(changes, key=changes.__getitem__, reverse=True)[:5]:
        print(f"{changes[name]:8.2%}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
