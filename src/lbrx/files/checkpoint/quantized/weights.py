"""The weights of a quantized checkpoint under their plain names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lbrx.errors import DTypeError, FormatError, ShapeError
from lbrx.files.checkpoint.quantized.ignored import IgnoredModules
from lbrx.files.checkpoint.quantized.parts import Parts
from lbrx.files.checkpoint.quantized.schemes import ACTIVATIONS, Codes, Scheme
from lbrx.files.formats.header import FileHeader, TensorEntry, quoted
from lbrx.tensors.dtype import DTYPES, dtype
from lbrx.tensors.expr import cast
from lbrx.tensors.tensor import Tensor, TensorMetadata

_DTYPE_KEYS = ("dtype", "torch_dtype")
_VALUE_TYPES = ("bf16", "f16", "f32")
_WEIGHT = ".weight"


class QuantizedWeights(Mapping[str, Tensor]):
    """All tensors of a quantized checkpoint: decoded weights, and the others as they are stored.

    Weights have the dtype that config.json names, else bf16. Nothing is read before a tensor is looked up, and then
    only small parts; weights are decoded while they are read.
    """

    def __init__(
        self,
        scheme: Scheme,
        settings: Mapping[str, Any] | None,
        config: Mapping[str, Any],
        entries: Mapping[str, tuple[FileHeader, TensorEntry]],
        stored: Callable[[str], Tensor],
        where: str,
    ) -> None:
        self.scheme = scheme
        self._is_named = settings is not None  # by config.json, so that codes without parts are an error
        self._parts = Parts(entries, stored, settings or {}, _value_type(config, where), where)
        self._tensors: dict[str, Tensor] = {}
        self._ignored: IgnoredModules | None = None
        self._decoded: frozenset[str] = frozenset()  # stored names of codes
        self._codes = self._stored_names()

    def _stored_names(self) -> dict[str, str]:
        """The stored name of each tensor; that of the codes for weights."""
        coded: dict[str, str] = {}
        hidden: set[str] = set()
        entries = self._parts.entries
        for name in entries:
            codes = next((each for each in self.scheme.codes if self._has_codes(name, each)), None)
            if codes is not None:
                weight = name[: len(name) - len(codes.ending)] + codes.plain
                if weight != name and weight in entries:
                    raise self._parts.error(name, f"is the quantized form of {quoted(weight)}, which is stored, too")
                coded[name] = weight
                hidden.update(base + part for base in _bases(weight) for part in self.scheme.parts)
                bias = f"{weight.removesuffix(_WEIGHT)}.bias"
                if self.scheme.fills_biases and bias in entries and self._parts.is_zero(bias):
                    hidden.add(bias)
        if not coded:
            source, cure = "names of tensors say", "--raw takes them as they are"
            if self._is_named:
                source, cure = "config.json says", "remove 'quantization_config' if they are plain"
            raise FormatError(
                f"{self._parts.where}: {source} that the model is quantized with {self.scheme.name}, but none of its "
                f"tensors has the type of its codes; expected quantized weights ({cure})"
            )
        self._decoded = frozenset(coded)
        is_hidden = hidden.__contains__
        return {
            coded.get(name, name): name
            for name in entries
            if name in coded or not (is_hidden(name) or name.endswith(ACTIVATIONS))
        }

    def _has_codes(self, name: str, codes: Codes) -> bool:
        parts = self._parts
        if not name.endswith(codes.ending) or parts.type_of(name) not in codes.types:
            return False
        if not codes.beside:
            return True
        weight = name[: len(name) - len(codes.ending)] + codes.plain
        if any(parts.has(base + ending) for base in _bases(weight) for ending in codes.beside):
            return True
        return self._is_named and weight.endswith(_WEIGHT) and not self._is_ignored(weight.removesuffix(_WEIGHT))

    def _is_ignored(self, module: str) -> bool:
        """Whether the settings say that a module is not quantized: by its name, or by a pattern."""
        if self._ignored is None:
            self._ignored = IgnoredModules(self._parts.settings, self._parts.where)
        return module in self._ignored

    def __getitem__(self, name: str) -> Tensor:
        stored = self._codes[name]
        if not self.is_decoded(name):
            return self._parts.stored(stored)
        tensor = self._tensors.get(name)
        if tensor is None:
            try:
                values = self.scheme.decode(stored, self._parts)
            except ShapeError as broken:
                raise self._parts.error(stored, f"cannot be decoded: {broken}") from broken
            expr = cast(values, DTYPES[self._parts.value_type])
            tensor = self._tensors[name] = Tensor(expr, TensorMetadata(name=name))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def __contains__(self, name: object) -> bool:
        return name in self._codes

    @property
    def parts(self) -> Parts:
        """The stored tensors."""
        return self._parts

    def stored_name(self, name: str) -> str:
        """Return the stored name of a tensor; that of the codes for weights."""
        return self._codes[name]

    def is_decoded(self, name: str) -> bool:
        """Whether a tensor is a weight that is decoded."""
        return self._codes[name] in self._decoded

    def entries(self) -> list[TensorEntry]:
        """Return header entries of the tensors, as if weights were stored decoded. Bytes are those of the values."""
        found = []
        for name, stored in self._codes.items():
            entry = self._parts.entries[stored][1]
            if self.is_decoded(name):
                tensor = self[name]
                entry = TensorEntry(
                    name, tensor.type_name, tensor.dtype, tensor.shape, entry.offset, tensor.dtype.nbytes(tensor.size)
                )
            found.append(entry)
        return found

    def stored_weights(self) -> dict[str, int]:
        """Return the number of weights in each stored tensor that has any."""
        return {stored: self[name].size for name, stored in self._codes.items()}


def _bases(weight: str) -> tuple[str, ...]:
    """The names that those of parts begin with."""
    return (weight, weight.removesuffix(_WEIGHT)) if weight.endswith(_WEIGHT) else (weight,)


def _value_type(config: Mapping[str, Any], where: str) -> str:
    """The dtype of weights in a config, or in its section of the language model."""
    sections = [config, *(section for section in config.values() if isinstance(section, Mapping))]
    names = (section[key] for section in sections for key in _DTYPE_KEYS if isinstance(section.get(key), str))
    name = next(names, "bf16")
    try:
        value_type = dtype(name).name
    except DTypeError as error:
        raise FormatError(f"{where}: the dtype of config.json: {error}") from error
    return value_type if value_type in _VALUE_TYPES else "bf16"
