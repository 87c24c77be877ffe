"""Kernels for other processors than this one give the same bytes: they run in a process that is told another name."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys

import llvmlite.binding
import pytest

import lbrx
from lbrx.ops import linear
from support.references import normal, weight_of

TYPES = ("q5_0", "q6_k", "iq4_nl")
FEATURES = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+ssse3,+popcnt"
HASWELL = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": FEATURES}
ALDER_LAKE = {"NUMBA_CPU_NAME": "alderlake", "NUMBA_CPU_FEATURES": f"{FEATURES},+avxvnni"}


def digests() -> list[str]:
    """Of products with two vectors of every type, and with six of two of them, coded in 16 and in 8 bits."""
    found = []
    for bits in (16, 8):
        for name, vectors in (*((name, 2) for name in TYPES), (TYPES[0], 6), (TYPES[1], 37)):
            weight = weight_of(name, 11, 1280)
            with lbrx.using(activation_bits=bits):
                found.append(hashlib.sha256(linear(normal(vectors, 1280), weight).tobytes()).hexdigest())
    return found


def _multiplies_bytes_in_256_bits() -> bool:
    return bool(llvmlite.binding.get_host_cpu_features().get("avxvnni", False))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the other processor is an x86 one")
@pytest.mark.parametrize(
    "processor",
    [
        pytest.param(HASWELL, id="haswell"),
        pytest.param(
            ALDER_LAKE,
            id="alderlake",
            marks=pytest.mark.skipif(not _multiplies_bytes_in_256_bits(), reason="this processor lacks AVX-VNNI"),
        ),
    ],
)
def test_processors_without_512_bits_give_the_same_bytes(processor: dict[str, str]) -> None:
    command = [sys.executable, __file__]
    environment = {**os.environ, **processor, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    has_512_bits, *found = made.stdout.split()
    assert has_512_bits == "False"
    assert found == digests()


if __name__ == "__main__":
    from lbrx.devices.cpu.simd.processor import HAS_512_BITS

    sys.stdout.write(" ".join([str(HAS_512_BITS), *digests()]))
