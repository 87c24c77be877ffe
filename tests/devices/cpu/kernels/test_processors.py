"""Kernels for other processors than this one give the same bytes: they run in a process that is told another name."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys

import pytest

from lbrx.ops import linear
from support.references import normal, weight_of

TYPES = ("q5_0", "q6_k", "iq4_nl")
HASWELL = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+ssse3,+popcnt"}


def digests() -> list[str]:
    """Of products with two vectors of every type, and with six of one of them."""
    found = []
    for name, vectors in (*((name, 2) for name in TYPES), (TYPES[0], 6)):
        weight = weight_of(name, 11, 1280)
        found.append(hashlib.sha256(linear(normal(vectors, 1280), weight).tobytes()).hexdigest())
    return found


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the other processor is an x86 one")
def test_processors_without_512_bits_give_the_same_bytes() -> None:
    command = [sys.executable, __file__]
    environment = {**os.environ, **HASWELL, "PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    has_512_bits, *found = made.stdout.split()
    assert has_512_bits == "False"
    assert found == digests()


if __name__ == "__main__":
    from lbrx.devices.cpu.simd.processor import HAS_512_BITS

    sys.stdout.write(" ".join([str(HAS_512_BITS), *digests()]))
