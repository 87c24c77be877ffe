"""``lbrx.verify``: whether a model on disk is what it should be."""

from lbrx.verifying.checking import verify
from lbrx.verifying.records import Finding, Severity, VerifyReport

__all__ = ["Finding", "Severity", "VerifyReport", "verify"]
