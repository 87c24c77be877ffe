"""LoRA adapters applied while weights are read: a model and a PEFT directory seen as one model.

An adapter is checked against the model before any weight is read. Its products are computed row by row in the pass
that reads the weight, so that there is never a copy of the patched model, in memory or on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, FileError, FormatError, ShapeError, TensorNotFound, UsageError, nearest
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.jobs.lora.config import WEIGHTS_NAME, AdapterConfig, read_config
from lbrx.jobs.lora.low_rank import low_rank_product, matrix_factor
from lbrx.tensors.expr import Coded
from lbrx.tensors.tensor import Tensor, TensorMetadata

PREFIX = "base_model.model."  # how PEFT wraps the names of the model
_PARTS = ("A", "B", "embedding_A", "embedding_B", "magnitude_vector", "bias")
_PATCHED_TYPES = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """``scale * left @ right``, to be added to a weight; with ``magnitude`` the rows of the sum get these lengths."""

    left: Tensor
    right: Tensor
    scale: float
    magnitude: Tensor | None = None

    def added_to(self, weight: Tensor) -> Tensor:
        total = weight + self.scale * low_rank_product(self.left, self.right, weight.shape)
        if self.magnitude is None:
            return total
        return total * (self.magnitude.reshape(-1, 1) / total.norm(axis=-1, keepdims=True))


@dataclass(slots=True)
class Patch:
    """What an adapter does to one tensor of the model: replace it, then add to it."""

    replacement: Tensor | None = None
    product: LowRankProduct | None = None
    bias: Tensor | None = None
    bias_scale: float = 0.0

    def applied_to(self, base: Tensor) -> Tensor:
        """The patched tensor, rounded once to the type of the base."""
        value = base if self.replacement is None else self.replacement
        if self.product is not None:
            value = self.product.added_to(value)
        if self.bias is not None:
            value = value + self.bias_scale * self.bias
        return Tensor(value.to(base.dtype).expr, TensorMetadata(name=base.name))


class PatchedTensors(Mapping[str, Tensor]):
    """The tensors of a model with those that an adapter changes as expressions, made anew when they are asked for."""

    def __init__(self, base: Mapping[str, Tensor], patches: Mapping[str, Patch]) -> None:
        self.base = base
        self.patches = patches

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.base[name]
        patch = self.patches.get(name)
        return tensor if patch is None else patch.applied_to(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self.base)

    def __len__(self) -> int:
        return len(self.base)


def open_with_adapter(base: Mapping[str, Tensor], adapter_directory: Path) -> Mapping[str, Tensor]:
    """The model with a PEFT LoRA adapter on top: same names, shapes and dtypes, values patched as they are read.

    Everything that can be wrong with the adapter is found here, from headers alone.

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
    directory = Path(adapter_directory)
    config = read_config(directory)
    parts = _sorted_parts(_open_weights(directory))
    _check_targets(parts, base, directory)
    return PatchedTensors(base, _Matcher(config, base, directory / WEIGHTS_NAME).patches(parts))


def _open_weights(directory: Path) -> Checkpoint:
    path = directory / WEIGHTS_NAME
    if not path.exists():
        pickled = directory / "adapter_model.bin"
        hint = f" but {pickled.name}, a pickle, which can run code; convert it first" if pickled.exists() else ""
        raise FileError(f"{directory}: has no {WEIGHTS_NAME}{hint}")
    weights = open_checkpoint(path)
    if not len(weights):
        raise FormatError(f"{path}: has no tensors; expected those of a LoRA adapter")
    return weights


@dataclass(slots=True)
class _Parts:
    """The tensors of an adapter: by module and part (``A``, ``B``, ...), and replacements by the name they replace."""

    of_modules: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    replacements: dict[str, Tensor] = field(default_factory=dict)
    file_names: dict[str, str] = field(default_factory=dict)  # of the first part of a module, or of a replacement


def _sorted_parts(weights: Checkpoint) -> _Parts:
    parts = _Parts()
    for name, tensor in weights.items():
        components = name.removeprefix(PREFIX).split(".")
        index = next((index for index, text in enumerate(components) if text.startswith("lora_")), None)
        if index is None:
            target = _replaced_name(components)
            parts.replacements[target] = tensor
            parts.file_names[target] = name
            continue
        module, part, end = ".".join(components[:index]), components[index][len("lora_") :], components[index + 1 :]
        part = "bias" if part == "B" and end[-1:] == ["bias"] else part
        if part not in _PARTS or not module:
            raise FormatError(f"{weights.path}: tensor {name!r} is not part of a LoRA adapter that lbrx can read")
        if part in parts.of_modules.setdefault(module, {}):
            raise FormatError(f"{weights.path}: module {module!r} has two tensors lora_{part}; expected one adapter")
        parts.of_modules[module][part] = tensor
        parts.file_names.setdefault(module + ".weight", name)
    return parts


def _replaced_name(components: list[str]) -> str:
    """The name in the model of a tensor that is saved whole, without the wrappers that PEFT puts around modules."""
    names = [text for text in components if text not in ("base_layer", "modules_to_save")]
    if "modules_to_save" in components and "default" in names:
        names.remove("default")
    return ".".join(names)


def _check_targets(parts: _Parts, base: Mapping[str, Tensor], directory: Path) -> None:
    targets = [*(module + ".weight" for module in parts.of_modules), *parts.replacements]
    missing = [target for target in targets if target not in base]
    if missing:
        first = missing[0]
        raise TensorNotFound(
            f"{directory}: {len(missing)} of the {len(targets)} tensors that the adapter changes are not in the model, "
            f"such as {first!r} for {parts.file_names[first]!r}{nearest(first, base)}"
        )


class _Matcher:
    """Fits the tensors of an adapter to those of a model."""

    def __init__(self, config: AdapterConfig, base: Mapping[str, Tensor], path: Path) -> None:
        self.config = config
        self.base = base
        self.path = path

    def patches(self, parts: _Parts) -> dict[str, Patch]:
        patches: dict[str, Patch] = {}
        for name, tensor in parts.replacements.items():
            self._check_weight(name)
            if tensor.shape != self.base[name].shape:
                raise ShapeError(
                    f"{self.path}: {parts.file_names[name]!r} has shape {tensor.shape}, "
                    f"but {name!r} of the model has {self.base[name].shape}"
                )
            patches[name] = Patch(replacement=tensor)
        for module, tensors in parts.of_modules.items():
            patches.setdefault(module + ".weight", Patch()).product = self._product(module, tensors)
            if "bias" in tensors:
                self._add_bias(module, tensors["bias"], patches)
        return patches

    def _check_weight(self, name: str) -> None:
        weight = self.base[name]
        if isinstance(weight.expr, Coded) or weight.dtype.name not in _PATCHED_TYPES:
            raise DTypeError(
                f"{name!r} of the model is {weight.type_name}; expected one of {', '.join(_PATCHED_TYPES)} to apply "
                f"{self.path.parent} to it"
            )

    def _product(self, module: str, tensors: Mapping[str, Tensor]) -> LowRankProduct:
        name = module + ".weight"
        self._check_weight(name)
        prefix = "embedding_" if "embedding_A" in tensors or "embedding_B" in tensors else ""
        for part in (f"{prefix}A", f"{prefix}B"):
            if part not in tensors:
                raise FormatError(f"{self.path}: module {module!r} has no lora_{part}")
        a, b = tensors[f"{prefix}A"], tensors[f"{prefix}B"]
        self._check_rank(module, prefix, a, b)
        left, right, is_turned = self._oriented(module, bool(prefix), a, b)
        magnitude = tensors.get("magnitude_vector")
        if self.config.use_dora != (magnitude is not None):
            expected = "a" if self.config.use_dora else "no"
            raise FormatError(
                f"{self.path}: module {module!r} should have {expected} lora_magnitude_vector, because use_dora is "
                f"{self.config.use_dora} in {self.config.path.name}"
            )
        if magnitude is not None:
            self._check_magnitude(module, magnitude, is_turned)
        return LowRankProduct(left, right, self.config.scale(module), magnitude)

    def _check_rank(self, module: str, prefix: str, a: Tensor, b: Tensor) -> None:
        expected = self.config.rank_of(module)
        for part, tensor, axis in (("A", a, 0), ("B", b, 1)):
            where = f"{self.path}: lora_{prefix}{part} of {module!r}"
            if tensor.ndim < 2 or not tensor.dtype.is_float:
                raise ShapeError(f"{where} is {tensor.dtype} of shape {tensor.shape}; expected a matrix of floats")
            if tensor.shape[axis] != expected:
                raise ShapeError(
                    f"{where} has shape {tensor.shape}, but axis {axis} is the rank, "
                    f"which is {expected} in {self.config.path.name}"
                )

    def _oriented(self, module: str, is_embedding: bool, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, bool]:
        """The factors in the order in which their product has the shape of the weight, and whether it is transposed.

        An embedding, and with fan_in_fan_out a weight that is stored as (inputs, outputs), is the transposed product.
        PEFT decides by the class of the module, of which only the shape is known here.
        """
        shape = self.base[module + ".weight"].shape
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

    def _check_magnitude(self, module: str, magnitude: Tensor, is_turned: bool) -> None:
        weight = self.base[module + ".weight"]
        if weight.ndim != 2 or is_turned:
            raise UsageError(f"{self.path}: DoRA of {module!r} is not that of a linear layer, the only one supported")
        if magnitude.size != weight.shape[0]:
            raise ShapeError(
                f"{self.path}: lora_magnitude_vector of {module!r} has shape {magnitude.shape}; "
                f"expected {weight.shape[0]} elements, one for each row of the weight"
            )

    def _add_bias(self, module: str, bias: Tensor, patches: dict[str, Patch]) -> None:
        name = module + ".bias"
        if name not in self.base:
            raise TensorNotFound(f"{self.path}: module {module!r} has a lora_B.bias, but the model has no {name!r}")
        self._check_weight(name)
        if bias.shape != self.base[name].shape:
            raise ShapeError(
                f"{self.path}: lora_B.bias of {module!r} has shape {bias.shape}, "
                f"but {name!r} of the model has {self.base[name].shape}"
            )
        patch = patches.setdefault(name, Patch())
        patch.bias, patch.bias_scale = bias, self.config.scale(module)
