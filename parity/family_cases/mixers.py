"""Decoders with other mixers than attention: state spaces, linear attention, short convolutions."""

from __future__ import annotations

from family_cases import Case

CASES: dict[str, Case] = {}
