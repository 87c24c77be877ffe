"""The oldest versions that the Metal backend works with, as data."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.generations import BFLOAT_LANGUAGE, LANGUAGES, OLDEST_MACOS

NOT_INSTALLED = "not installed"
_BFLOAT_MACOS = min(system for system, language in LANGUAGES.items() if language >= BFLOAT_LANGUAGE)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A version that is needed, or from which on something more is possible."""

    name: str
    least: tuple[int, ...]
    reason: str
    is_needed: bool = True

    def check(self, found: Mapping[str, str]) -> Check:
        """Compare with the versions of this machine."""
        text = found.get(self.name, "")
        is_met = bool(text) and version_of(text)[: len(self.least)] >= self.least
        least = ".".join(map(str, self.least))
        return Check(self.name, least, text or NOT_INSTALLED, is_met, self.is_needed, self.reason)


@dataclass(frozen=True, slots=True)
class Check:
    """A requirement and what this machine has."""

    name: str
    least: str
    found: str
    is_met: bool
    is_needed: bool
    reason: str


REQUIREMENTS = (
    Requirement("macOS", (OLDEST_MACOS,), "the oldest language of the shaders"),
    Requirement("pyobjc-core", (10, 0), "the oldest version whose metadata were checked"),
    Requirement("pyobjc-framework-Metal", (10, 0), "the oldest version whose metadata were checked"),
    Requirement("macOS", (_BFLOAT_MACOS,), "bf16 in shaders, and shaders compiled ahead of time", is_needed=False),
    Requirement("macOS", (15,), "residency sets: weights stay mapped into the GPU", is_needed=False),
)


def version_of(text: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version.

    >>> version_of("12.2.2"), version_of("13.0b1")
    ((12, 2, 2), (13, 0))
    """
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def versions() -> dict[str, str]:
    """The versions of this machine by name; what is not installed is not there."""
    found = {"macOS": platform.mac_ver()[0]}
    for package in ("pyobjc-core", "pyobjc-framework-Metal"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {name: text for name, text in found.items() if text}


def checked(found: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """All requirements against the versions of this machine, or those given.

    >>> [check.is_met for check in checked({"macOS": "14.2", "pyobjc-core": "9.2"})]
    [True, False, False, True, False]
    """
    known = versions() if found is None else found
    return tuple(requirement.check(known) for requirement in REQUIREMENTS)
