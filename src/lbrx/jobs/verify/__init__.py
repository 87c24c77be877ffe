"""``lbrx.verify``: whether a model on disk is what it should be."""

from lbrx.jobs.verify.records import Check, Finding, Severity, VerifyReport
from lbrx.jobs.verify.verify import verify

__all__ = ["Check", "Finding", "Severity", "VerifyReport", "verify"]
