"""What the generations of Apple's GPUs can do, and the versions of the shading language, as data.

The emulator enforces these limits; a real device is asked for its own. Numbers are those of the smallest machine of a
generation: larger ones have more memory and cores.
"""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass

Version = tuple[int, int]
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of Apple's GPUs.

    ``max_buffer_bytes`` is what the machine with the least memory allows: three quarters of the working set that Metal
    recommends. ``has_bf16_arithmetic``: earlier GPUs store bf16 numbers and compute in f32. ``has_tensor_units``: there
    is hardware for the tensor operations of Metal 4.
    """

    name: str
    family: int  # MTLGPUFamilyApple7 is 7
    first_macos: int
    cores: int
    memory_bytes: int
    max_buffer_bytes: int
    max_threads_per_threadgroup: int
    threadgroup_memory_bytes: int
    simd_width: int
    has_bf16_arithmetic: bool
    has_tensor_units: bool

    @property
    def oldest_language(self) -> Version:
        """The shading language of the oldest macOS that runs on it and that lbrx supports.

        >>> GENERATIONS["M1"].oldest_language, GENERATIONS["M5"].oldest_language
        ((3, 0), (4, 0))
        """
        return LANGUAGES[max(self.first_macos, OLDEST_MACOS)]


OLDEST_MACOS = 13
LANGUAGES: dict[int, Version] = {13: (3, 0), 14: (3, 1), 15: (3, 2), 26: (4, 0)}
"""The newest version of the shading language that a macOS compiles."""
BFLOAT_LANGUAGE: Version = (3, 1)
"""The first version of the language with the type ``bfloat`` and matrices of it."""

GENERATIONS: dict[str, Generation] = {
    each.name: each
    for each in (
        Generation("M1", 7, 11, 7, 8 * _GIB, 4 * _GIB, 1024, 32 << 10, 32, False, False),
        Generation("M2", 8, 12, 8, 8 * _GIB, 4 * _GIB, 1024, 32 << 10, 32, False, False),
        Generation("M3", 9, 13, 8, 8 * _GIB, 4 * _GIB, 1024, 32 << 10, 32, True, False),
        Generation("M4", 9, 15, 8, 16 * _GIB, 8 * _GIB, 1024, 32 << 10, 32, True, False),
        Generation("M5", 10, 26, 8, 16 * _GIB, 8 * _GIB, 1024, 32 << 10, 32, True, True),
    )
}


def generation_of(family: int) -> Generation:
    """The first generation of a GPU family, or the last one if the family is newer than this table.

    >>> generation_of(9).name, generation_of(11).name
    ('M3', 'M5')
    """
    every = list(GENERATIONS.values())
    return next((each for each in every if each.family == family), every[-1])


def language_of(macos: int) -> Version:
    """The shading language of a macOS; the oldest and the newest known one beyond the ends of the table.

    >>> language_of(14), language_of(27)
    ((3, 1), (4, 0))
    """
    return max((version for system, version in LANGUAGES.items() if system <= macos), default=min(LANGUAGES.values()))
