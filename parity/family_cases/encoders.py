"""Encoders, encoder-decoders, and models of images and sound."""

from __future__ import annotations

from family_cases import Case

CASES: dict[str, Case] = {}
