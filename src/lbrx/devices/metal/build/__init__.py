"""Compiling all shaders ahead of time, into one library with a manifest (see ``driver.prebuilt``).

The library has the shaders of ``shaders/`` in the variants of ``variants``. Kernels of fused passes are not in it: they
are generated from expressions and compiled when they are first used.
"""

from lbrx.devices.metal.build.apple import build_for_apple
from lbrx.devices.metal.build.emulated import build_for_emulator
from lbrx.devices.metal.build.variants import Variant, variants

__all__ = ["Variant", "build_for_apple", "build_for_emulator", "variants"]
