"""``lbrx.verify``: whether a model on disk is what it should be."""

from lbrx.verifying.records import Finding, Severity, VerifyReport
from lbrx.verifying.verify import verify

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]
