"""Read and write the ``quantization`` settings in the config.json of an MLX model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.header import quoted
from lbrx.files.output.contents import LatestParts, PlannedTensor
from lbrx.tensors.codecs.mlx import FLOAT_MODES, WORD_BITS, MlxMode, MlxWeight
from lbrx.tensors.tensor import Tensor

SETTING_KEYS = ("quantization", "quantization_config")
_PARTS = ("weight", "scales", "biases")


def described(mode: MlxMode) -> dict[str, Any]:
    """Return a coding as the object that config.json contains.

    >>> described(MlxMode(bits=8))
    {'group_size': 64, 'bits': 8, 'mode': 'affine'}
    """
    return {"group_size": mode.group_size, "bits": mode.bits, "mode": mode.mode}


def settings_of(modes: Mapping[str, MlxMode]) -> dict[str, Any]:
    """Return the settings for modules and their codings: the most frequent one, then each module that differs.

    >>> settings_of({"a": MlxMode(), "b": MlxMode(bits=8), "c": MlxMode()})["b"]["bits"]
    8
    """
    usual = Counter(modes.values()).most_common(1)[0][0]
    return described(usual) | {module: described(mode) for module, mode in modes.items() if mode != usual}


def without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config for unquantized weights."""
    return {key: value for key, value in config.items() if key not in SETTING_KEYS}


def mode_of(settings: Any, module: str, where: str) -> MlxMode:
    """Return the coding of a module.

    >>> mode_of({"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 6}}, "lm_head", "config.json").bits
    6
    """
    if not isinstance(settings, Mapping):
        raise FormatError(f"{where}: 'quantization' is {quoted(settings)}, expected an object with bits and group_size")
    own = settings.get(module)
    chosen = own if isinstance(own, Mapping) else settings
    mode = chosen.get("mode", settings.get("mode", "affine"))
    if not isinstance(mode, str):
        raise FormatError(f"{where}: the mode of {quoted(module)} is {quoted(mode)}, expected a name")
    bits, size = FLOAT_MODES.get(mode, (4, 64))
    numbers = [
        chosen.get("bits", settings.get("bits", bits)),
        chosen.get("group_size", settings.get("group_size", size)),
    ]
    if any(type(number) is not int for number in numbers):
        raise FormatError(f"{where}: bits and group_size of {quoted(module)} are {quoted(numbers)}, expected numbers")
    try:
        return MlxMode(mode, *numbers)
    except UsageError as error:
        raise FormatError(f"{where}: {quoted(module)}: {error}") from error


_latest: LatestParts[MlxWeight] = LatestParts()


def weight_parts(
    tensor: PlannedTensor, mode: MlxMode, code: Callable[[Tensor], MlxWeight], numbers: str
) -> tuple[PlannedTensor, ...]:
    """Return the MLX tensors of a weight; ``code`` computes them, with scales of the type ``numbers``."""
    module = tensor.name.removesuffix(".weight")
    *rows, columns = tensor.shape
    words, groups = (*rows, columns * mode.bits // WORD_BITS), (*rows, columns // mode.group_size)

    def made(part: str) -> PlannedTensor:
        def make() -> Tensor:
            coded_part: Tensor | None = getattr(_latest.of(tensor, lambda: code(tensor.make())), part)
            assert coded_part is not None
            return coded_part

        shape, type_name = (words, "u32") if part == "weight" else (groups, numbers)
        return PlannedTensor(f"{module}.{part}", type_name, shape, make, unit=module)

    return tuple(made(part) for part in (_PARTS if mode.mode == "affine" else _PARTS[:2]))
