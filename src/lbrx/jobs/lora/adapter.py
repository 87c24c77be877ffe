"""LoRA adapters applied while weights are read: a model and a PEFT directory seen as one model.

An adapter is checked against the model before any weight is read. Its products are computed row by row in the pass
that reads the weight, so that there is never a copy of the patched model, in memory or on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, FormatError, ShapeError, TensorNotFound, UsageError, nearest
from lbrx.jobs.lora.fused_experts import divide_experts
from lbrx.jobs.lora.low_rank import low_rank_product, matrix_factor
from lbrx.jobs.lora.parts import AdapterParts, check_rank, factor_prefix, read_parts
from lbrx.tensors.creation import where
from lbrx.tensors.expr import Coded
from lbrx.tensors.tensor import Tensor, TensorMetadata, tensor

_PATCHED_TYPES = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """``scale * left @ right``, to be added to a weight; with ``magnitude`` the rows of the sum get these lengths."""

    left: Tensor
    right: Tensor
    scale: float
    magnitude: Tensor | None = None

    def added_to(self, weight: Tensor) -> Tensor:
        """The weight with the product, in f32."""
        total = weight + self.scale * low_rank_product(self.left, self.right, weight.shape)
        if self.magnitude is None:
            return total
        return total * (self.magnitude.reshape(-1, 1) / total.norm(axis=-1, keepdims=True))


@dataclass(slots=True)
class Patch:
    """What an adapter does to one tensor of the model: replace it or some of its rows, then add to it."""

    replacement: Tensor | None = None
    rows: tuple[tuple[int, ...], Tensor] | None = None
    product: LowRankProduct | None = None
    bias: Tensor | None = None
    bias_scale: float = 0.0

    def applied_to(self, base: Tensor) -> Tensor:
        """The patched tensor, not rounded: sums are f32."""
        value = base if self.replacement is None else self.replacement
        if self.rows is not None:
            value = _with_rows(value, *self.rows)
        if self.product is not None:
            value = self.product.added_to(value)
        if self.bias is not None:
            value = value + self.bias_scale * self.bias
        return value


def _with_rows(value: Tensor, numbers: tuple[int, ...], rows: Tensor) -> Tensor:
    """A matrix with new rows at these numbers."""
    places = np.full(value.shape[0], -1, np.int64)
    places[list(numbers)] = np.arange(len(numbers))
    return where(tensor((places >= 0)[:, None]), rows.rows(np.maximum(places, 0)), value)


class PatchedTensors(Mapping[str, Tensor]):
    """The tensors of a model with those that adapters change as expressions, made anew when they are asked for.

    Patched tensors are rounded to the type of the model once, unless ``rounds`` is false: then they are f32, for those
    that compute with them.
    """

    def __init__(
        self, base: Mapping[str, Tensor], patches: Sequence[Mapping[str, Patch]], *, rounds: bool = True
    ) -> None:
        self.base = base
        self.patches = patches
        self.rounds = rounds

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.base[name]
        patches = [patch for each in self.patches if (patch := each.get(name)) is not None]
        if not patches:
            return tensor
        value = tensor
        for patch in patches:
            value = patch.applied_to(value)
        return Tensor((value.to(tensor.dtype) if self.rounds else value).expr, TensorMetadata(name=tensor.name))

    def new_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of tensors that an adapter replaces by longer ones, for more tokens."""
        whole = {name: patch.replacement for each in self.patches for name, patch in each.items()}
        return {
            name: value.shape
            for name, value in whole.items()
            if value is not None and value.shape != self.base[name].shape
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


def open_with_adapter(
    base: Mapping[str, Tensor], adapter_directory: Path, config: Mapping[str, Any] | None = None
) -> Mapping[str, Tensor]:
    """The model with a LoRA adapter on top: same names, shapes and dtypes, values patched as they are read.

    The adapter is a directory of PEFT or MLX, or a GGUF file. Everything that can be wrong with it is found here, from
    headers alone. ``config`` is that of the model.

    >>> import json, lbrx, tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> _ = (directory / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 2}')
    >>> name = "base_model.model.q_proj.lora_"
    >>> factors = {name + "A.weight": lbrx.tensor([[1, 2]], "f32"), name + "B.weight": lbrx.tensor([[3], [4]], "f32")}
    >>> lbrx.save(directory / "adapter_model.safetensors", factors)
    >>> open_with_adapter({"q_proj.weight": lbrx.full((2, 2), 1, "f32")}, directory)["q_proj.weight"].numpy()
    array([[ 7., 13.],
           [ 9., 17.]], dtype=float32)
    """
    return open_with_adapters(base, [adapter_directory], config)


def open_with_adapters(
    base: Mapping[str, Tensor],
    adapters: Sequence[Path],
    config: Mapping[str, Any] | None = None,
    *,
    rounds: bool = True,
    find: Callable[[str], str | None] | None = None,
) -> PatchedTensors:
    """The model with several adapters on top, one after the other. ``find`` gives the model's name of a tensor."""
    patches = [_patches(base, Path(adapter), config, find or _own_name(base)) for adapter in adapters]
    return PatchedTensors(base, patches, rounds=rounds)


def _own_name(base: Mapping[str, Tensor]) -> Callable[[str], str | None]:
    return lambda name: name if name in base else None


def _patches(
    base: Mapping[str, Tensor], adapter: Path, config: Mapping[str, Any] | None, find: Callable[[str], str | None]
) -> dict[str, Patch]:
    model_type = None if config is None else config.get("model_type")
    parts = divide_experts(read_parts(adapter, config), base, model_type)
    _check_targets(parts, base, find)
    return _Matcher(parts, base, find).patches()


def _check_targets(parts: AdapterParts, base: Mapping[str, Tensor], find: Callable[[str], str | None]) -> None:
    targets = [*parts.of_modules, *parts.replacements, *parts.rows]
    missing = [target for target in targets if find(target) is None and find(target + ".weight") is None]
    if missing:
        name = missing[0] + ".weight" if missing[0] in parts.of_modules else missing[0]
        raise TensorNotFound(
            f"{parts.label}: {len(missing)} of the {len(targets)} tensors that the adapter changes are not in the "
            f"model, such as {name!r} for {parts.file_names[name]!r}{nearest(name, base)}"
        )


class _Matcher:
    """Fits the tensors of an adapter to those of a model."""

    def __init__(self, parts: AdapterParts, base: Mapping[str, Tensor], find: Callable[[str], str | None]) -> None:
        self.parts = parts
        self.config = parts.config
        self.base = base
        self.path = parts.path
        self._find = find

    def patches(self) -> dict[str, Patch]:
        parts = self.parts
        patches: dict[str, Patch] = {}
        for given, whole in parts.replacements.items():
            name = self._name(given)
            self._check_weight(name)
            own = self.base[name].shape
            has_new_rows = len(own) == 2 and whole.shape[1:] == own[1:] and whole.shape[0] > own[0]
            if whole.shape != own and not has_new_rows:
                raise ShapeError(
                    f"{self.path}: {parts.file_names[given]!r} has shape {whole.shape}, "
                    f"but {name!r} of the model has {self.base[name].shape}"
                )
            patches[name] = Patch(replacement=whole)
        for given, (numbers, rows) in parts.rows.items():
            name = self._name(given)
            self._check_rows(given, name, numbers, rows)
            patches.setdefault(name, Patch()).rows = numbers, rows
        for module, tensors in parts.of_modules.items():
            name = self._name(module)
            patches.setdefault(name, Patch()).product = self._product(module, name, tensors)
            if "bias" in tensors:
                self._add_bias(module, tensors["bias"], patches)
        return patches

    def _name(self, module: str) -> str:
        """The tensor of the model that a module's factors, or a tensor that is saved whole, belong to."""
        name = self._find(module) or self._find(module + ".weight")
        assert name is not None  # checked before
        return name

    def _check_weight(self, name: str) -> None:
        weight = self.base[name]
        if isinstance(weight.expr, Coded) or weight.dtype.name not in _PATCHED_TYPES:
            raise DTypeError(
                f"{name!r} of the model is {weight.type_name}; expected one of {', '.join(_PATCHED_TYPES)} to apply "
                f"{self.parts.label} to it"
            )

    def _check_rows(self, given: str, name: str, numbers: tuple[int, ...], rows: Tensor) -> None:
        self._check_weight(name)
        shape = self.base[name].shape
        if len(shape) != 2 or rows.shape[1:] != shape[1:] or max(numbers, default=0) >= shape[0]:
            raise ShapeError(
                f"{self.path}: {self.parts.file_names[given]!r} has shape {rows.shape} for rows up to "
                f"{max(numbers, default=0)}, but {name!r} of the model has shape {shape}"
            )

    def _product(self, module: str, name: str, tensors: Mapping[str, Tensor]) -> LowRankProduct:
        self._check_weight(name)
        prefix = factor_prefix(self.parts, module)
        a, b = tensors[f"{prefix}A"], tensors[f"{prefix}B"]
        if a.ndim == 3 and name == module:  # a stack of experts
            return LowRankProduct(b, a, self.parts.scale_of(module))
        check_rank(self.parts, module, prefix)
        left, right, is_turned = self._oriented(module, name, bool(prefix), a, b)
        magnitude = tensors.get("magnitude_vector")
        if self.config.use_dora != (magnitude is not None):
            expected = "a" if self.config.use_dora else "no"
            raise FormatError(
                f"{self.path}: module {module!r} should have {expected} lora_magnitude_vector, because use_dora is "
                f"{self.config.use_dora} in {self.config.path.name}"
            )
        if magnitude is not None:
            self._check_magnitude(module, name, magnitude, is_turned)
        return LowRankProduct(left, right, self.parts.scale_of(module), magnitude)

    def _oriented(
        self, module: str, name: str, is_embedding: bool, a: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, bool]:
        """The factors in the order in which their product has the shape of the weight, and whether it is transposed.

        An embedding, and with fan_in_fan_out a weight that is stored as (inputs, outputs), is the transposed product.
        PEFT decides by the class of the module, of which only the shape is known here.
        """
        shape = self.base[name].shape
        left, right = matrix_factor(b), matrix_factor(a)
        orders = (True,) if is_embedding else (True, False) if self.config.fan_in_fan_out else (False, True)
        for is_turned in orders:
            first, second = (right.T, left.T) if is_turned else (left, right)
            is_matrix = (first.shape[0], second.shape[1]) == shape
            is_convolution = not is_turned and (b.shape[0], *a.shape[1:]) == shape
            if is_matrix or (is_convolution and all(size == 1 for size in b.shape[2:])):
                return first, second, is_turned
        raise ShapeError(
            f"{self.path}: lora_A {a.shape} and lora_B {b.shape} of {module!r} make no product of shape {shape}, "
            f"which the model's tensor has"
        )

    def _check_magnitude(self, module: str, name: str, magnitude: Tensor, is_turned: bool) -> None:
        weight = self.base[name]
        if weight.ndim != 2 or is_turned:
            raise UsageError(f"{self.path}: DoRA of {module!r} is not that of a linear layer, the only one supported")
        if magnitude.size != weight.shape[0]:
            raise ShapeError(
                f"{self.path}: lora_magnitude_vector of {module!r} has shape {magnitude.shape}; "
                f"expected {weight.shape[0]} elements, one for each row of the weight"
            )

    def _add_bias(self, module: str, bias: Tensor, patches: dict[str, Patch]) -> None:
        name = self._find(module + ".bias")
        if name is None:
            missing = f"{module}.bias"
            raise TensorNotFound(f"{self.path}: module {module!r} has a lora_B.bias, but the model has no {missing!r}")
        self._check_weight(name)
        if bias.shape != self.base[name].shape:
            raise ShapeError(
                f"{self.path}: lora_B.bias of {module!r} has shape {bias.shape}, "
                f"but {name!r} of the model has {self.base[name].shape}"
            )
        patch = patches.setdefault(name, Patch())
        patch.bias, patch.bias_scale = bias, self.parts.scale_of(module)
