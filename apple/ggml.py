"""ggml's products of one row, compiled and counted in the same way; its sources are downloaded when they are needed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

from apple.core import Mix
from apple.machine import Machine

PACKAGE = "llama-cpp-python==0.3.36"
COLUMNS = 4096
# The type of the activations of each type of weights.
ACTIVATIONS = {
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4", "nvfp4"), "q8_0"),
    **dict.fromkeys(("q4_1", "q5_1"), "q8_1"),
    **dict.fromkeys((*(f"q{bits}_K" for bits in range(2, 7)), "tq1_0", "tq2_0", "iq4_xs"), "q8_K"),
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), "q8_K"),
}


def sources(folder: Path) -> Path:
    """The folder of ggml's sources, downloaded the first time."""
    ggml = folder / "source/vendor/llama.cpp/ggml"
    if not ggml.exists():
        download = ["pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", f"--dest={folder}", PACKAGE]
        subprocess.run([sys.executable, "-m", *download], check=True)
        (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.with_suffix("").with_suffix("").rename(folder / "source")
    return ggml


def compiled(ggml: Path, file: str, cpu: str) -> bytes:
    """The object code of one source file."""
    target = ggml.parent / f"{Path(file).stem}-{cpu}.o"
    compiler = ["ziglang", "c++" if file.endswith("cpp") else "cc", "-target", "aarch64-macos"]
    options = [f"-mcpu={cpu.replace('-', '_')}", "-O3", "-DNDEBUG", "-fno-sanitize=all", "-w"]
    folders = [f"-I{ggml / part}" for part in ("include", "src", "src/ggml-cpu")]
    command = [sys.executable, "-m", *compiler, *options, *folders, "-c", str(ggml / "src/ggml-cpu" / file)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target.read_bytes()


def count(folder: Path, cpu: str) -> dict[str, Mix]:
    """What one weight takes, by type: a mix of instructions."""
    ggml, machine = sources(folder), Machine()
    quantized = machine.load(compiled(ggml, "arch/arm/quants.c", cpu)).symbols
    floats = machine.load(compiled(ggml, "vec.cpp", cpu)).symbols
    found = {}
    for name, activations in ACTIVATIONS.items():
        found[name.lower()] = _count(machine, quantized[f"_ggml_vec_dot_{name}_{activations}"])
    for name in ("f32", "f16", "bf16"):
        (symbol,) = (each for each in floats if f"ggml_vec_dot_{name}" in each)
        found[name] = _count(machine, floats[symbol])
    return found


def _count(machine: Machine, function: int) -> Mix:
    weights, vector, result = (np.zeros(8 * COLUMNS, np.uint8) for _ in range(3))
    mixes = []
    for columns in (COLUMNS // 2, COLUMNS):
        addresses = result.ctypes.data, 0, weights.ctypes.data, 0, vector.ctypes.data, 0
        with machine.counting() as counted:
            machine.call(function, columns, *addresses, 1)
        mixes.append(counted.mix())
    return (mixes[1] + mixes[0] * -1) * (2 / COLUMNS)
