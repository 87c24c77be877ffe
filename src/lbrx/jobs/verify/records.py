"""What a check of a model finds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass


class Severity(StrEnum):
    """``error``: the model is broken. ``warning``: it may be. ``note``: something that could not be checked."""

    error = "error"
    warning = "warning"
    note = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: ``place`` is a file or a tensor."""

    severity: Severity
    place: str
    text: str
    details: str = ""  # several lines, such as a difference of texts


class NotPossible(Exception):
    """Raised by a check that cannot run on this model; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was done, or was not possible.

    >>> Check("values").is_done, Check("values", "weights are not read").is_done
    (True, False)
    """

    name: str
    reason: str | None = None  # why it was not possible, or not for all of the model

    @property
    def is_done(self) -> bool:
        return self.reason is None


def error(place: str, text: str) -> Finding:
    """
    >>> error("lm_head.weight", "has 3 NaN").severity
    <Severity.error: 'error'>
    """
    return Finding(Severity.error, place, text)


def failure(place: str, broken: Exception) -> Finding:
    """An error that stopped a check; a message that begins with the place says it once.

    >>> failure("a.gguf", ValueError("a.gguf: is empty")).text
    'is empty'
    """
    return error(place, str(broken).removeprefix(f"{place}: "))


def warning(place: str, text: str, details: str = "") -> Finding:
    return Finding(Severity.warning, place, text, details)


def note(place: str, text: str) -> Finding:
    return Finding(Severity.note, place, text)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what was found.

    >>> VerifyReport(Path("a.gguf"), "gguf", 1, 8, (Check("structure"),), (error("w", "has 1 NaN"),)).is_good
    False
    """

    path: Path
    format: str | None  # None if it is unknown
    tensors: int
    nbytes: int
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def is_good(self) -> bool:
        """Whether there are no errors; warnings and notes are allowed."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.error)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.warning)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the findings."""
        from lbrx.tensors.display import table_html

        verdict = "good" if self.is_good else f"broken, errors: {len(self.errors)}"
        rows = [(finding.severity.value, finding.place, finding.text) for finding in self.findings]
        return table_html(f"{self.path}: {verdict}", ("found", "where", "what"), rows)

    def as_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has."""
        return {
            "path": str(self.path),
            "format": self.format,
            "is_good": self.is_good,
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "checks": [
                {"name": check.name, "done": check.is_done} | ({} if check.is_done else {"reason": check.reason})
                for check in self.checks
            ],
            "findings": [
                {"severity": finding.severity.value, "place": finding.place, "text": finding.text}
                | ({"details": finding.details} if finding.details else {})
                for finding in self.findings
            ],
        }
