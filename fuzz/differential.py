"""Headers that lbrx and the libraries of the formats read differently: ``python -m fuzz.differential``.

Changed SafeTensors and GGUF files are given to both. Every disagreement must be one of `EXPLAINED`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import gguf as gguf_library
import safetensors as safetensors_library

from fuzz.mutations import mutate
from fuzz.targets import TARGETS
from lbrx.errors import LbrxError
from lbrx.files.formats import gguf, safetensors
from lbrx.files.formats.source import open_source

Tensors = dict[str, tuple[str, tuple[int, ...], int, int]]  # type, shape, and the first byte and the number of bytes


@dataclass(frozen=True)
class Explained:
    """A disagreement that is meant: what lbrx says, or the types that differ."""

    format: str
    pattern: str
    reason: str


EXPLAINED = (
    Explained("safetensors", r"^metadata '", "metadata of lbrx (integers, packed types) is checked; others ignore it"),
    Explained("safetensors", r"^i4 is U8", "a tensor that lbrx packed: metadata has its type and shape"),
    Explained("gguf", r"^tensor .* has offset \d+, expected", "gaps and overlaps between tensors are refused"),
    Explained("gguf", r"^key .* is of type", "keys that lbrx reads must have the type that llama.cpp reads"),
    Explained("gguf", r"without NUL$", "NUL in names is refused: llama.cpp's names end there"),
    Explained("gguf", r"is a string of \d+ bytes, expected", "names longer than llama.cpp allows are refused"),
    Explained("gguf", r"expected a whole number|expected at (most|least)", "numbers out of bounds are refused"),
    Explained("gguf", r"^q8_1 is Q8_1", "gguf-py counts 40 bytes for a block of Q8_1; ggml has 36"),
)


def read_own(format: str, path: Path) -> Tensors:
    """What lbrx reads."""
    reader = safetensors if format == "safetensors" else gguf
    with open_source(path) as file:
        header = reader.read_header(path, file)
    return {each.name: (each.type_name, each.shape, each.offset, each.nbytes) for each in header.entries}


def read_safetensors(path: Path) -> Tensors:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors: Tensors = {}
    for name, each in safetensors_library.deserialize(content):
        data, shape = bytes(each["data"]), tuple(each["shape"])
        tensors[name] = each["dtype"], shape, content.find(data, start) if data else start, len(data)
    return tensors


def read_gguf(path: Path) -> Tensors:
    reader = gguf_library.GGUFReader(path)
    return {
        each.name: (
            each.tensor_type.name,
            tuple(int(size) for size in reversed(each.shape)),
            int(each.data_offset),
            int(each.n_bytes),
        )
        for each in reader.tensors
    }


PEERS: dict[str, Callable[[Path], Tensors]] = {"safetensors": read_safetensors, "gguf": read_gguf}


def disagreement(format: str, data: bytes, path: Path) -> tuple[str, str]:
    """How both fare ("both", "neither", "lbrx" or "library" reads it), and what is different: "" if nothing is."""
    path.write_bytes(data)
    own: Tensors | None
    theirs: Tensors | None
    own_error = peer_error = ""
    try:
        own = read_own(format, path)
    except LbrxError as error:
        own, own_error = None, str(error).replace(f"{path}: ", "", 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = PEERS[format](path)
    except Exception as error:  # libraries raise whatever comes
        theirs, peer_error = None, f"{type(error).__name__}: {error}"
    if own is None or theirs is None:
        fared = "neither" if own is None and theirs is None else "library" if own is None else "lbrx"
        return fared, "" if fared == "neither" else own_error or peer_error
    return "both", _difference(format, own, theirs)


def _difference(format: str, own: Tensors, theirs: Tensors) -> str:
    if set(own) != set(theirs):
        return f"the names {sorted(set(own) ^ set(theirs))} are read by one only"
    for name, (type_name, shape, offset, nbytes) in own.items():
        peer = theirs[name]
        is_same = shape == peer[1] and nbytes == peer[3] and (format == "safetensors" or offset == peer[2])
        if not is_same or type_name != peer[0].lower():
            return f"{type_name} is {peer[0]}: {own[name]} and {peer}"
    return ""


def is_explained(format: str, text: str) -> bool:
    """Whether a disagreement is one of the table."""
    return any(each.format == format and re.search(each.pattern, text) for each in EXPLAINED)


def changed_files(format: str, seed: int) -> Iterable[bytes]:
    """The seeds of all targets of a format, then endless changes of them."""
    names = ("gguf", "gguf_model") if format == "gguf" else ("safetensors", "adapter", "quantized")
    seeds = [data for name in names for data in TARGETS[name].seeds()]
    yield from seeds
    number = 0
    while True:
        yield mutate(format, seeds, Random(f"{format} {seed} {number}"))
        number += 1


def compare(format: str, seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """How many files both, neither, or one of them read, and disagreements that nothing explains."""
    fared: Counter[str] = Counter()
    unexplained: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for data in islice(changed_files(format, seed), count):
            which, text = disagreement(format, data, Path(folder) / f"a.{format}")
            fared[which] += 1
            if text and not is_explained(format, text):
                unexplained.append(f"{which}: {text}")
    return fared, unexplained


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.differential", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="files of each format")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found = 0
    for format in PEERS:
        fared, unexplained = compare(format, arguments.seed, arguments.inputs)
        print(f"{format}: {dict(fared)}", *unexplained[:20], sep="\n")
        found += len(unexplained)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
