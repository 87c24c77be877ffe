"""Language models with towers for images."""

from __future__ import annotations

from family_cases import Case

CASES: dict[str, Case] = {}
