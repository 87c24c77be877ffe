"""Self-tests of kernels: small runs on the device, compared with the CPU. `lbrx doctor` runs all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.context import MetalContext
from lbrx.registry import SELF_TESTS, load


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """How far the device was from the CPU. ``bound`` is how far it may be; 0 means bit for bit."""

    error: float
    bound: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound; NaN is not.

        >>> SelfTestResult(error=0.0, bound=0.0).passed, SelfTestResult(error=float("nan"), bound=1.0).passed
        (True, False)
        """
        return self.error <= self.bound


SelfTest: TypeAlias = Callable[[MetalContext], SelfTestResult]


def registered_self_tests() -> dict[str, SelfTest]:
    """All self-tests by name, ``family: test``; a line of the registry gives those of a family."""
    tests: dict[str, SelfTest] = {}
    for family, reference in SELF_TESTS.items():
        tests |= {f"{family}: {name}": test for name, test in load(reference)().items()}
    return tests
