"""The file types of llama.cpp's ``llama-quantize``: what a GGUF file as a whole is called, and its usual tensor type.

A file of a type mixes several tensor types; ``lbrx.jobs.quantize.mixes`` has the rules.
"""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.tensors.codecs.codec import encodable

FLOAT_TYPES = ("f32", "f16", "bf16")
QUANTIZATION_VERSION = 2  # of ggml's block layouts


@dataclass(frozen=True, slots=True)
class FileType:
    """A file type: ``number`` is its ``general.file_type``, ``base`` the type of tensors without a rule of their own.

    >>> file_type("Q4_K_M").number, file_type("q4_k").name
    (15, 'q4_k_m')
    """

    name: str
    number: int
    base: str
    summary: str

    @property
    def is_quantized(self) -> bool:
        return self.base not in FLOAT_TYPES


_ROWS = (
    FileType("f32", 0, "f32", "32 bits, no loss"),
    FileType("f16", 1, "f16", "16 bits"),
    FileType("bf16", 32, "bf16", "16 bits with the range of f32"),
    FileType("q8_0", 7, "q8_0", "8.5 bits, nearly no loss"),
    FileType("q6_k", 18, "q6_k", "6.6 bits, very small loss"),
    FileType("q5_k_m", 17, "q5_k", "5.7 bits, small loss"),
    FileType("q5_k_s", 16, "q5_k", "5.5 bits, small loss"),
    FileType("q5_1", 9, "q5_1", "6 bits, older coding"),
    FileType("q5_0", 8, "q5_0", "5.5 bits, older coding"),
    FileType("q4_k_m", 15, "q4_k", "4.9 bits, the usual choice"),
    FileType("q4_k_s", 14, "q4_k", "4.6 bits"),
    FileType("q4_1", 3, "q4_1", "5 bits, older coding"),
    FileType("q4_0", 2, "q4_0", "4.5 bits, older coding"),
    FileType("iq4_nl", 25, "iq4_nl", "4.5 bits, values from a table"),
    FileType("iq4_xs", 30, "iq4_xs", "4.3 bits, values from a table"),
    FileType("mxfp4_moe", 38, "mxfp4", "experts of 4.25 bits, the rest of 8.5"),
    FileType("q3_k_l", 13, "q3_k", "4.3 bits"),
    FileType("q3_k_m", 12, "q3_k", "3.9 bits"),
    FileType("q3_k_s", 11, "q3_k", "3.5 bits, high loss"),
    FileType("q2_k", 10, "q2_k", "3.2 bits, very high loss"),
    FileType("q2_k_s", 21, "q2_k", "2.8 bits, needs an importance matrix"),
    FileType("iq3_m", 27, "iq3_s", "3.7 bits, groups of values from a codebook"),
    FileType("iq3_s", 26, "iq3_s", "3.4 bits, groups of values from a codebook"),
    FileType("iq3_xs", 22, "iq3_s", "3.3 bits, needs an importance matrix"),
    FileType("iq3_xxs", 23, "iq3_xxs", "3.1 bits, needs an importance matrix"),
    FileType("iq2_m", 29, "iq2_s", "2.7 bits, needs an importance matrix"),
    FileType("iq2_s", 28, "iq2_xs", "2.5 bits, needs an importance matrix"),
    FileType("iq2_xs", 20, "iq2_xs", "2.3 bits, needs an importance matrix"),
    FileType("iq2_xxs", 19, "iq2_xxs", "2.1 bits, needs an importance matrix"),
    FileType("iq1_m", 31, "iq1_m", "1.8 bits, needs an importance matrix"),
    FileType("iq1_s", 24, "iq1_s", "1.6 bits, needs an importance matrix"),
    FileType("q2_0", 41, "q2_0", "2.3 bits, for models trained with three values"),
    FileType("q1_0", 40, "q1_0", "1.1 bits, for models trained with two values"),
    FileType("tq2_0", 37, "tq2_0", "2.1 bits, for models trained with three values"),
    FileType("tq1_0", 36, "tq1_0", "1.7 bits, for models trained with three values"),
)
FILE_TYPES: dict[str, FileType] = {row.name: row for row in _ROWS}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4": "mxfp4_moe"}


def find_file_type(name: str) -> FileType | None:
    """The file type of a name or an alias, in capitals or not; None if there is none."""
    lowered = name.lower()
    return FILE_TYPES.get(ALIASES.get(lowered, lowered))


def file_type(name: str) -> FileType:
    """The file type of a name or an alias, in capitals or not."""
    row = find_file_type(name)
    if row is None:
        raise UsageError(
            f"{name!r} is not a file type; expected one of {', '.join(FILE_TYPES)}{nearest(name.lower(), FILE_TYPES)}"
        )
    return row


def tensor_type(name: str, where: str) -> str:
    """The type of a tensor in lower case, if tensors can be made of it.

    >>> tensor_type("Q6_K", "--output-type")
    'q6_k'
    """
    lowered = name.lower()
    known = [*FLOAT_TYPES, *encodable()]
    if lowered in known:
        return lowered
    raise UsageError(
        f"{where}: {name!r} is not a type of tensors; expected one of {', '.join(known)}{nearest(lowered, known)}"
    )


def file_type_of_base(base: str) -> FileType:
    """The plainest name for a file that is mostly of one tensor type.

    >>> file_type_of_base("q4_k").name, file_type_of_base("q8_0").name
    ('q4_k_m', 'q8_0')
    """
    preferred = FILE_TYPES.get(ALIASES.get(base, base))
    return preferred if preferred is not None and preferred.base == base else FILE_TYPES["q8_0"]
