"""The text of this package for calibration: prose, dialogue, code, mathematics, tables and several languages."""

from __future__ import annotations

from importlib.resources import files

CALIBRATION_NAME = "lbrx calibration text"


def calibration_text() -> str:
    """Return the text.

    >>> 10_000 < len(calibration_text()) < 40_000
    True
    """
    return (files("lbrx.jobs.imatrix") / "calibration.txt").read_text(encoding="utf-8")
