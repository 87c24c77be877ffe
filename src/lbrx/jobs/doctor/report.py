"""The report of `lbrx doctor` as plain values, for JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lbrx.jobs.doctor.doctor import DoctorReport, Outcome


def as_json(report: DoctorReport) -> str:
    """Everything in the report."""
    fields = {**asdict(report), "tests": [_test_fields(test) for test in report.tests]}
    return json.dumps(fields, indent=2) + "\n"


def _test_fields(row: Outcome) -> dict[str, Any]:
    numbers = {"error": row.error, "bound": row.bound}
    texts = {name: None if value is None else float(f"{value:.6g}") for name, value in numbers.items()}
    return {"name": row.name, "passed": row.passed, **texts, "detail": row.detail}
