"""How a model is to be quantized, checked before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError, nearest
from lbrx.files.formats.gguf_encode import encode_pair
from lbrx.files.formats.gguf_values import SCALAR_IDS, Typed
from lbrx.jobs.convert.file_types import FLOAT_TYPES, FileType, tensor_type
from lbrx.jobs.quantize.hf_types import HF_TYPES
from lbrx.jobs.quantize.targets import (
    HfTarget,
    IntegerTarget,
    MlxTarget,
    Target,
    find_mlx_mode,
    find_target,
    target_names,
    uses_importances,
)

DEFAULT_CANDIDATES = ("q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0")
_BOOLS = {"true": True, "false": False}
_KEY_TYPES = {"int": "u32", "float": "f32"}  # the names of llama.cpp, besides those of GGUF


@dataclass(frozen=True, slots=True)
class TypeOverride:
    """Tensors whose names a pattern is found in get this type. Patterns are regular expressions.

    >>> TypeOverride.parse("blk.[01].ffn_down=q6_k")
    TypeOverride(pattern='blk.[01].ffn_down', type_name='q6_k')
    """

    pattern: str
    type_name: str

    @classmethod
    def parse(cls, text: str) -> TypeOverride:
        pattern, equals, type_name = text.rpartition("=")
        if not equals or not pattern or not type_name:
            raise UsageError(f"{text!r} is not a choice of types; expected PATTERN=TYPE, such as ffn_down=q6_k")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{text!r}: {pattern!r} is not a regular expression: {error}") from error
        return cls(pattern, type_name.lower())

    def matches(self, name: str) -> bool:
        return re.search(self.pattern, name) is not None


@dataclass(frozen=True, slots=True)
class KeyOverride:
    """A key of the metadata that is set.

    >>> KeyOverride.parse("llama.context_length=int:8192").typed
    Typed(value=8192, type='u32')
    """

    key: str
    typed: Typed

    @classmethod
    def parse(cls, text: str) -> KeyOverride:
        key, equals, rest = text.partition("=")
        value_type, colon, value = rest.partition(":")
        value_types = [*_KEY_TYPES, "str", *SCALAR_IDS]
        if not key or not equals or not colon:
            raise UsageError(f"{text!r} is not a key with its value; expected KEY=TYPE:VALUE, such as a.b=int:3")
        if value_type not in value_types:
            raise UsageError(
                f"{text!r}: {value_type!r} is not a type of values; "
                f"expected one of {', '.join(value_types)}{nearest(value_type, value_types)}"
            )
        written = _KEY_TYPES.get(value_type, value_type)
        if value_type == "int" and value.startswith("-"):
            written = "i32"
        typed = Typed(_value(text, written, value), written)
        try:
            encode_pair(key, typed)
        except UsageError as error:
            raise UsageError(f"{text!r}: {value!r} does not fit {written}") from error
        return cls(key, typed)


def _value(text: str, value_type: str, value: str) -> Any:
    if value_type == "str":
        return value
    if value_type == "bool":
        if value not in _BOOLS:
            raise UsageError(f"{text!r}: {value!r} is not a bool; expected true or false")
        return _BOOLS[value]
    try:
        return float(value) if value_type[0] == "f" else int(value)
    except ValueError as error:
        expected = "a number" if value_type[0] == "f" else "a whole number"
        raise UsageError(f"{text!r}: {value!r} is not {expected}") from error


@dataclass(frozen=True)
class QuantizeOptions:
    """Everything that decides what a quantized model is.

    ``to`` is a GGUF file type (``"q4_k_m"``), a coding of MLX (``"mlx_4"``, ``"mlx_mxfp4"``, ``"mixed_3_6"``), one for
    transformers and vLLM (``"ct_int4"``, ``"gptq_4"``), or plain integers (``"int4"``). With ``target_bpw`` or
    ``target_bytes`` a type of ``candidates`` is chosen for each tensor instead. Of ``overrides`` the first one that
    matches a name holds. Importances are used for tensors whose names contain one of ``include_weights``, or none
    of ``exclude_weights``.

    >>> QuantizeOptions("Q4_K").target.name
    'q4_k_m'
    """

    to: str | None = None
    overrides: tuple[TypeOverride, ...] = ()
    output_type: str | None = None
    embedding_type: str | None = None
    pure: bool = False
    leave_output: bool = False
    key_overrides: tuple[KeyOverride, ...] = ()
    prune_layers: tuple[int, ...] = ()
    keep_split: bool = False
    allow_requantize: bool = False
    imatrix: Path | None = None
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    feedback: Path | None = None  # a folder of blocks that `lbrx.jobs.quantize.feedback` has encoded
    sensitivity: Path | None = None  # measurements of `lbrx.jobs.quantize.sensitivity`
    group_size: int | None = None
    target_bpw: float | None = None
    target_bytes: int | None = None
    candidates: tuple[str, ...] = DEFAULT_CANDIDATES

    def __post_init__(self) -> None:
        self._check_goal()
        self._check_types()
        self._check_weights()
        if any(layer < 0 for layer in self.prune_layers):
            raise UsageError(f"layer {min(self.prune_layers)} cannot be removed; expected numbers from 0")
        if not isinstance(self.target, FileType):
            self._check_no_gguf_options()

    @cached_property
    def target(self) -> Target:
        """The target type. With a size to meet, it is a placeholder until the types are chosen."""
        return find_target(self.to or self._candidate_target, self.group_size)

    @property
    def _candidate_target(self) -> str:
        """What stands for the target until types are chosen: a coding of MLX if there are any among the candidates."""
        return next((name for name in self.candidates if find_mlx_mode(name) is not None), "q8_0")

    @property
    def has_size(self) -> bool:
        """Whether types are chosen to meet a size."""
        return self.target_bpw is not None or self.target_bytes is not None

    def override_of(self, name: str) -> TypeOverride | None:
        return next((override for override in self.overrides if override.matches(name)), None)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the bytes of the output, as plain values."""
        return {
            "target (--to)": self.to,
            "types (--tensor-type)": [[override.pattern, override.type_name] for override in self.overrides],
            "type of the output matrix (--output-type)": self.output_type,
            "type of the embedding (--embedding-type)": self.embedding_type,
            "--pure": self.pure,
            "--leave-output": self.leave_output,
            "metadata (--override-kv)": [[key.key, key.typed.type, str(key.typed.value)] for key in self.key_overrides],
            "removed layers (--prune-layers)": sorted(self.prune_layers),
            "importances (--include-weights)": list(self.include_weights),
            "importances (--exclude-weights)": list(self.exclude_weights),
            "--keep-split": self.keep_split,
            "--group-size": self.group_size,
            "size (--target-bpw)": self.target_bpw,
            "size (--target-size)": self.target_bytes,
            "candidates (--candidates)": list(self.candidates) if self.has_size else None,
        }

    def _check_goal(self) -> None:
        goals = [self.to is not None, self.target_bpw is not None, self.target_bytes is not None]
        if sum(goals) != 1:
            given = "none" if not any(goals) else "more than one"
            raise UsageError(f"expected one of --to, --target-bpw and --target-size, but {given} is given")
        if self.target_bpw is not None and not 0 < self.target_bpw <= 32:
            raise UsageError(f"{self.target_bpw} bits per weight are not possible; expected more than 0, at most 32")
        if self.target_bytes is not None and not isinstance(self.target, FileType):
            raise UsageError("--target-size is for GGUF files; give --target-bpw for MLX")
        if self.has_size and not self.candidates:
            raise UsageError("there are no types to choose from; expected at least one candidate")

    def _check_weights(self) -> None:
        given = {"--include-weights": self.include_weights, "--exclude-weights": self.exclude_weights}
        used = [name for name, parts in given.items() if parts]
        if len(used) == 2:
            raise UsageError("--include-weights and --exclude-weights cannot be used together")
        if used and self.imatrix is None:
            raise UsageError(f"{used[0]} needs --imatrix")

    def _check_types(self) -> None:
        checked = (
            *((override.type_name, f"--tensor-type {override.pattern}") for override in self.overrides),
            (self.output_type, "--output-type"),
            (self.embedding_type, "--embedding-type"),
            *((name, "--candidates") for name in (self.candidates if self.has_size else ())),
        )
        for name, where in checked:
            if name is not None:
                self._check_type(name, where)

    def _check_type(self, name: str, where: str) -> None:
        target = self.target
        if isinstance(target, FileType):
            tensor_type(name, where)
        elif isinstance(target, HfTarget):
            own = target.type.library
            known = [*FLOAT_TYPES, *(each.name for each in HF_TYPES.values() if each.library == own)]
            if where == "--embedding-type":
                known = [*FLOAT_TYPES]
            if name.lower() not in known:
                raise UsageError(
                    f"{where}: {name!r} does not go with {target.type.name}; "
                    f"expected one of {', '.join(known)}{nearest(name.lower(), known)}"
                )
        elif isinstance(target, IntegerTarget):
            if name.lower() not in (target.scheme, *FLOAT_TYPES):
                raise UsageError(
                    f"{where}: {name!r} does not go with {target.scheme}; "
                    f"expected {target.scheme} or one of {', '.join(FLOAT_TYPES)}"
                )
        elif find_mlx_mode(name.lower()) is None and name.lower() not in FLOAT_TYPES:
            known = [known for known in (*FLOAT_TYPES, *target_names()) if find_mlx_mode(known) or known in FLOAT_TYPES]
            raise UsageError(
                f"{where}: {name!r} is not a coding of MLX; "
                f"expected one of {', '.join(known)}{nearest(name.lower(), known)}"
            )

    def _check_no_gguf_options(self) -> None:
        made_format = "MLX" if isinstance(self.target, MlxTarget) else "SafeTensors"
        given = {
            "--pure": self.pure,
            "--override-kv": bool(self.key_overrides),
            "--keep-split": self.keep_split,
            "--prune-layers": bool(self.prune_layers),
        }
        wrong = [name for name, is_given in given.items() if is_given]
        if wrong:
            raise UsageError(f"{wrong[0]} is for GGUF files, and {self.to} makes {made_format}")
        if self.imatrix is not None and not uses_importances(self.target):
            raise UsageError(
                f"{self.to} is rounded without importances; --imatrix and --calibrate are for GGUF files and for "
                "integers in groups, such as mlx_4 and ct_int4"
            )


def parse_options(
    to: str | None = None,
    *,
    tensor_types: Sequence[str] = (),
    tensor_type_file: str | Path | None = None,
    override_kv: Sequence[str] = (),
    prune_layers: str | Iterable[int] = (),
    imatrix: str | Path | None = None,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    target_size: str | int | None = None,
    candidates: str | Sequence[str] | None = None,
    **others: Any,
) -> QuantizeOptions:
    """Options from texts, as a command line has them; the others are fields of `QuantizeOptions`.

    >>> parse_options("q4_k_m", tensor_types=["ffn_down=q6_k"], prune_layers="3,4").prune_layers
    (3, 4)
    """
    from lbrx.base.system import parse_bytes

    chosen = DEFAULT_CANDIDATES if candidates is None else candidates
    names = chosen.split(",") if isinstance(chosen, str) else chosen
    return QuantizeOptions(
        to,
        overrides=(*map(TypeOverride.parse, tensor_types), *_overrides_in(tensor_type_file)),
        key_overrides=tuple(KeyOverride.parse(text) for text in override_kv),
        prune_layers=_layers(prune_layers),
        imatrix=None if imatrix is None else Path(imatrix),
        include_weights=tuple(include_weights),
        exclude_weights=tuple(exclude_weights),
        target_bytes=None if target_size is None else parse_bytes(target_size),
        candidates=tuple(name.strip().lower() for name in names if name.strip()),
        **others,
    )


def _overrides_in(path: str | Path | None) -> Iterator[TypeOverride]:
    """The choices of types in a file, separated by white space."""
    if path is None:
        return
    try:
        words = Path(path).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--tensor-type-file {path}: {error}") from error
    for word in words:
        try:
            yield TypeOverride.parse(word)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


def _layers(given: str | Iterable[int]) -> tuple[int, ...]:
    """The numbers of a text such as ``3,4,7-9``, in order and once each.

    >>> _layers("7-9,3")
    (3, 7, 8, 9)
    """
    if not isinstance(given, str):
        return tuple(sorted(set(given)))
    numbers: set[int] = set()
    for piece in given.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{piece!r} is not a layer; expected numbers and ranges such as 3,4,7-9")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))
