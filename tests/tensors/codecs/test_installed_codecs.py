"""Codecs of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.devices.cpu.build.kernel_cache import imported_modules, source_digest
from lbrx.errors import DTypeError, KernelError, UsageError
from lbrx.ops.linear import linear
from lbrx.ops.shards import shard
from lbrx.tensors.codecs.codec import _installed, codec
from support.packages import install

RECORDS = """
from lbrx.tensors.codecs.codec import Codec

SIGNS = Codec("signs", 8, 8, "lbrx_signs.kernels")
LOST = Codec("lost", 8, 8, "lbrx_signs.absent")
BROKEN = Codec("broken", 8, 8, "lbrx_signs.broken")
"""
KERNELS = """
import numpy as np
from lbrx.devices.cpu.simd.elements import load_byte, load_f32, store_byte, store_f32
from .numbers import UNIT

def encode(values, blocks, count):
    for index in range(8 * count):
        store_byte(blocks, index, np.uint8(load_f32(values, index) >= 0))

def decode(blocks, values, count):
    for index in range(8 * count):
        store_f32(values, index, np.float32(UNIT) if load_byte(blocks, index) else np.float32(-UNIT))
"""
FILES = {
    "lbrx_signs/records.py": RECORDS,
    "lbrx_signs/kernels.py": KERNELS,
    "lbrx_signs/numbers.py": "UNIT = 0.5\n",
    "lbrx_signs/broken.py": "def encode(values, blocks, count): return no_such_name\n",
}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = ("signs", "lost", "broken")
    entries = {name: f"lbrx_signs.records:{name.upper()}" for name in names}
    entries |= {"renamed": entries["signs"], "module": "lbrx_signs.records", "gone": "lbrx_signs.records:GONE"}
    install(tmp_path, monkeypatch, "lbrx_signs", FILES, {"lbrx.codecs": entries})
    yield
    codec.cache_clear()
    _installed.clear()


def test_a_tensor_is_quantized_with_a_codec_of_a_package() -> None:
    values = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    coded = lbrx.tensor(values).quantize("Signs").realize()
    assert coded.type_name == "signs"
    assert coded.nbytes == values.size
    np.testing.assert_array_equal(coded.dequantize().numpy(), np.where(values >= 0, 0.5, -0.5).astype(np.float32))
    part = shard(coded, 4, axis=1)[1]
    assert part.type_name == "signs"
    np.testing.assert_array_equal(part.dequantize().numpy(), coded.dequantize().numpy()[:, 16:32])
    rows = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    product = linear(rows, coded)
    np.testing.assert_allclose(product, rows @ coded.dequantize().numpy().T, rtol=1e-5, atol=1e-5)


def test_a_changed_import_makes_compiled_kernels_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.replace("lbrx_signs", "lbrx_stale"): source for path, source in FILES.items()}
    install(tmp_path, monkeypatch, "lbrx_stale", files, {})
    before = source_digest("lbrx_stale.kernels")
    (tmp_path / "lbrx_stale" / "numbers.py").write_text("UNIT = 2.0\n")
    source_digest.cache_clear()
    assert source_digest("lbrx_stale.kernels") != before
    assert imported_modules("lbrx_stale.kernels")[-2:] == ("lbrx_stale.kernels", "lbrx_stale.numbers")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "gone",
            UsageError,
            r"package lbrx_signs 1\.2: gone = 'lbrx_signs\.records:GONE' in lbrx\.codecs cannot be loaded",
        ),
        (
            "module",
            UsageError,
            r"package lbrx_signs 1\.2: 'lbrx_signs\.records' is a module; expected a Codec named 'mod",
        ),
        (
            "renamed",
            UsageError,
            r"package lbrx_signs 1\.2: .* is a codec named 'signs'; expected a Codec named 'renamed'",
        ),
        ("sings", DTypeError, r"unknown quantization 'sings'; .* did you mean 'signs'"),
    ],
)
def test_names_that_give_no_codec(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        codec(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lost", r"there is no module lbrx_signs\.absent to compile"),
        ("broken", r"the kernel lbrx_signs\.broken\.encode does not compile: "),
    ],
)
def test_kernels_that_cannot_be_compiled(name: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        lbrx.tensor(np.zeros(8, np.float32)).quantize(name).realize()
