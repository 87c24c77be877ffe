"""Shared by tests: models, files, servers and devices."""

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
