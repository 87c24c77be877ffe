"""``lbrx.verify``: whether a model on disk is what it should be."""

from lbrx.jobs.verify.records import Finding, Severity, VerifyReport
from lbrx.jobs.verify.verify import verify

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]
