"""Which shaders are compiled ahead of time, with which macros."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.prebuilt import shader_digest
from lbrx.devices.metal.ops.linear import MOST_VECTORS
from lbrx.devices.metal.ops.matmul import TILE_TYPES
from lbrx.devices.metal.ops.sources import SHADERS, shader_source

Defines = tuple[tuple[str, str], ...]
HEAD_SIZES = ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256))
"""Sizes of keys and values that models have."""
_HEADS = tuple((("HEAD_SIZE", str(size)), ("VALUE_SIZE", str(value_size))) for size, value_size in HEAD_SIZES)
MACROS: dict[str, tuple[Defines, ...]] = {
    "matmul": tuple((("TILE", tile),) for tile in TILE_TYPES.values()),
    "matvec": tuple((("VECTORS", str(vectors)),) for vectors in range(1, MOST_VECTORS + 1)),
    "attention": tuple((("TILE", tile), *heads) for tile in ("float", "half") for heads in _HEADS),
    "attention_vector": _HEADS,
}
"""The macros of shaders that need some; any other set is compiled from source when it is used."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A shader with its macros."""

    shader: str
    defines: Defines

    @property
    def source(self) -> str:
        return shader_source(self.shader)

    @property
    def digest(self) -> str:
        return shader_digest(self.source, CompileOptions(self.defines))

    @property
    def suffix(self) -> str:
        """What the names of its kernels end with in a library, where names of all variants have to differ.

        >>> Variant("matmul", (("TILE", "half"),)).suffix, Variant("rows", ()).suffix
        ('__TILE_half', '')
        """
        return "".join(f"__{name}_{value}" for name, value in self.defines)


def variants() -> tuple[Variant, ...]:
    """All variants, in the order of their names.

    >>> "matmul__TILE_half" in [variant.shader + variant.suffix for variant in variants()]
    True
    """
    shaders = sorted(path.stem for path in SHADERS.glob("*.metal"))
    return tuple(Variant(shader, defines) for shader in shaders for defines in MACROS.get(shader, ((),)))
