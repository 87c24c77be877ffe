"""What every device of the registry has to do. A new device passes this suite; the GPU is emulated.

Results are compared bit by bit with another device: with the NumPy reference, or with the CPU if that is the one under
test. Products and attention are compared with NumPy in float64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.engine.bind import BoundPass
from lbrx.engine.block_sizes import BINS, TILE
from lbrx.engine.destination import ArrayDestination, CollectState, HistogramState
from lbrx.engine.device import ARRAY_OPERATIONS, CpuFallback, Encoder, fallbacks, recorded_passes
from lbrx.engine.device import device as device_named
from lbrx.errors import ShapeError, UsageError
from lbrx.ops import attention, embedding, linear
from lbrx.registry import CODECS, DEVICES
from lbrx.tensors.codecs.codec import codec
from lbrx.tensors.codecs.integers import integer_codec
from lbrx.tensors.codecs.mlx import FLOAT_MODES, MlxMode, mlx_codec
from lbrx.tensors.coded import SCHEMES, Blocks, Encode, Encoding
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.expr import MAP_OPS, MatMul, Source, apply
from lbrx.tensors.storage import CpuStorage, MmapStorage
from lbrx.tensors.tensor import Tensor
from support.devices import LEFT_TO_THE_CPU, computing_on, device_fixture
from support.references import coded_bound, even_importance, normal, product_bound, wide
from support.strategies import apply_views, assert_same, numpy_type, special_values, values, view_chains, widened

device = device_fixture(DEVICES)
pytestmark = pytest.mark.filterwarnings("ignore::lbrx.engine.device.CpuFallback")

REGISTERS = ("f32", "i64", "i32", "i16", "i8", "u8", "bool")  # f64 apart: a GPU has none
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ON_INTEGERS = ("and", "or", "xor", "not")
NOT_ON_BOOL = ("sub", "neg", "sign")
ROUNDED = {"exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "acos": np.arccos, "tanh": np.tanh}
ROUNDED |= {"erf": np.vectorize(math.erf)}
BINARY = (*COMPARISONS, "add", "sub", "mul", "div", "pow", "floordiv", "mod", "minimum", "maximum", "and", "or", "xor")
SUM_BOUND = 1e-12
MOST_PAIRS = special_values("f32").size ** 2
ENCODABLE = [name for name in CODECS if codec(name).can_encode]
Make = Callable[[], "tuple[Tensor, ...]"]


@pytest.fixture
def no_warnings_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbrx.engine.device._warned", set())


def reference_of(name: str) -> str:
    return "cpu" if name == "numpy" else "numpy"


def assert_same_as_reference(name: str, make: Make) -> None:
    """Tensors have the same values on a device as on the one that it is compared with."""
    got = lbrx.evaluate(*make())
    with computing_on(reference_of(name)):
        want = lbrx.evaluate(*make())
    for left, right in zip(got, want, strict=True):
        assert_same(left, right)


def pairs_of(name: str) -> tuple[Tensor, Tensor]:
    """Every special value of a dtype with every other, as tensors of one shape for all dtypes: they share a pass."""
    chosen = special_values(name)
    pairs = np.repeat(chosen, chosen.size), np.tile(chosen, chosen.size)
    first, second = (lbrx.tensor(np.resize(array, MOST_PAIRS)) for array in pairs)
    return first, second


# -- operations and dtypes --------------------------------------------------------------------------------------------


def registers_of(op: str) -> tuple[str, ...]:
    if op == "div":  # of integers, it is that of f64
        return ("f32",)
    if op in ON_INTEGERS:
        return REGISTERS[1:]
    return REGISTERS[:-1] if op in NOT_ON_BOOL else REGISTERS


def applied(op: str, name: str) -> Tensor:
    x, y = pairs_of(name)
    args = (x != 0, x, y) if op == "where" else (x, y) if op in BINARY else (x,)
    return Tensor(apply(op, *(arg.expr for arg in args)))


@pytest.mark.parametrize("op", sorted(MAP_OPS - set(ROUNDED) - {"cast"}))
def test_operations_of_every_register_type(op: str, device: str) -> None:
    for names in (registers_of(op), () if op in (*ON_INTEGERS, "pow") else ("f64",)):
        assert_same_as_reference(device, lambda names=names: tuple(applied(op, name) for name in names))


@pytest.mark.parametrize("op", ROUNDED)
def test_functions_are_close_to_float64(op: str) -> None:
    array = np.concatenate([special_values("f32"), np.linspace(-6, 6, 997, dtype=np.float32)])
    with np.errstate(all="ignore"):
        want = ROUNDED[op](array.astype(np.float64))
    got = Tensor(apply(op, lbrx.tensor(array).expr)).numpy()
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=5e-7, atol=5e-7 if op in ("sin", "cos") else 1e-37)


def test_powers_are_close_to_numpy() -> None:
    x, y = pairs_of("f64")
    with np.errstate(all="ignore"):
        want = np.power(x.numpy(), y.numpy())
    np.testing.assert_allclose(Tensor(apply("pow", x.expr, y.expr)).numpy(), want, rtol=1e-15, atol=0)


def near_ties(name: str) -> npt.NDArray[Any]:
    """Numbers just above the middle of two neighbours of a short type, which a second rounding would get wrong."""
    middles = np.array([1 + 2.0**-bits for bits in (3, 4, 8, 9, 11, 12)])
    large = np.concatenate([middles * 2**29 + 1, middles * 2**14 + 1, middles + 2.0**-40])
    with np.errstate(all="ignore"):
        return np.concatenate([large, -large]).astype(numpy_type(name))


@pytest.mark.parametrize("source", DTYPES)
def test_casts_between_all_dtypes(source: str, device: str) -> None:
    array = np.concatenate([special_values(source), near_ties(source)])
    for targets in ([name for name in DTYPES if name != "f64"], ["f64"]):
        assert_same_as_reference(device, lambda targets=targets: tuple(lbrx.tensor(array).to(t) for t in targets))


@pytest.mark.parametrize("name", DTYPES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_views_of_every_dtype(name: str, device: str, data: st.DataObject) -> None:
    array = data.draw(values(name, (4, 3, 5)))
    chain = data.draw(view_chains(array.shape))
    moved = lbrx.tensor(array).to_device(device)
    assert_same(apply_views(moved, chain).numpy(), np.asarray(apply_views(array, chain)))


STRUCTURES: dict[str, Callable[..., Any]] = {
    "polynomial": lambda x, y, n: ((x * y + n) * x - y / 3).to("bf16"),
    "choice": lambda x, y, n: lbrx.where((x < y) & (n != 2), x, abs(y)).maximum(-1.5),
    "integers": lambda x, y, n: ((n * 3) ^ 5) + (x > y),
    "rounding": lambda x, y, n: (x.to("f16") + y.to("f8_e4m3")).round().to("i8") - n,
    "with rows": lambda x, y, n: (x - x.max(axis=-1, keepdims=True)) * n + y.min(axis=-1, keepdims=True),
    "with a scalar": lambda x, y, n: x * y.max() - n.sum(),
    "random numbers": lambda x, y, n: lbrx.where(lbrx.uniform((6, 9), 3, "mask") < 0.5, x + y, n),
}


@pytest.mark.parametrize("structure", STRUCTURES)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_expressions(structure: str, device: str, data: st.DataObject) -> None:
    x, y = (lbrx.tensor(data.draw(values("f32", (6, 9)))) for _ in range(2))
    n = lbrx.tensor(data.draw(values("i16", (6, 9))))
    flip = data.draw(st.sampled_from([slice(None), slice(None, None, -1)]))
    assert_same_as_reference(device, lambda: (STRUCTURES[structure](x[:, flip], y, n),))


# -- reductions, order, selection -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "bf16", "i32", "u8", "f64"])
def test_extremes_of_all_and_of_rows(name: str, device: str) -> None:
    numbers = np.random.default_rng(1).integers(-100, 100, (300, 451)).astype(np.float32)
    x = lbrx.tensor(numbers).to(name).realize()

    def make() -> tuple[Tensor, ...]:
        along = (x.min(axis=-1), x.max(axis=-1, keepdims=True), x.argmax(axis=-1))
        return (x.min(), x.max(), x.argmax(), *along)

    assert_same_as_reference(device, make)


def test_extremes_with_nan(device: str) -> None:
    numbers = np.random.default_rng(2).standard_normal((5, 70_000)).astype(np.float32)
    numbers[1, 69_000] = numbers[3, 5] = np.nan
    x = lbrx.tensor(numbers)
    assert_same_as_reference(device, lambda: (x.min(), x.max(), x.argmax(), x.argmax(axis=-1), x.min(axis=-1)))


@pytest.mark.parametrize("name", ["f32", "f16", "i32"])
def test_sums(name: str) -> None:
    x, y = ((lbrx.tensor(normal(3, 70_001, seed=seed)) * 9).to(name).realize() for seed in (1, 2))
    got = lbrx.evaluate(x.sum(), x.dot(y), x.norm(), x.sum(axis=-1), x.dot(y, axis=-1))
    a, b = wide(x), wide(y)
    want = a.sum(), (a * b).sum(), np.sqrt((a * a).sum()), a.sum(-1), (a * b).sum(-1)
    largest = float(abs(a).sum() + abs(a * b).sum())
    for left, right in zip(got[:3], want[:3], strict=True):
        np.testing.assert_allclose(float(left), right, rtol=SUM_BOUND, atol=SUM_BOUND * largest)
    for left, right in zip(got[3:], want[3:], strict=True):
        np.testing.assert_allclose(left, right, rtol=2.0**-23, atol=SUM_BOUND * largest)


@pytest.mark.parametrize("name", ["f32", "bf16", "i16", "f64"])
def test_selection(name: str, device: str) -> None:
    x = (lbrx.tensor(normal(40, 251)) * 30).to(name).realize()
    k = 1234
    assert_same_as_reference(device, lambda: (x.kth_largest(k), x.top_k_mask(k), (x * x).kth_largest(7)))


@pytest.mark.parametrize("default", ["this device", "cpu"])
def test_selection_in_a_large_tensor_on_the_device(default: str, device: str) -> None:
    """Large enough for a sample, with so few distinct values that the sample suggests one."""
    array = np.round(normal(1100, 1000)) / 4
    ordered = np.sort(array, axis=None)[::-1]
    x = lbrx.tensor(array).to_device(device)
    with computing_on(device if default == "this device" else default):
        for k in (1, 300_000):
            assert float(x.kth_largest(k)) == ordered[k - 1]
        mask = x.top_k_mask(300_000).numpy()
    assert int(mask.sum()) == 300_000
    assert array[mask].min() == ordered[299_999]


@pytest.mark.parametrize("name", ["f32", "i8", "f64"])
def test_ranks(name: str, device: str) -> None:
    specials = special_values(name)
    x = lbrx.tensor(np.random.default_rng(3).choice(specials, (3, 500)))
    assert_same_as_reference(device, lambda: (x.rank(), x.rank(descending=True), x.rank() < 4))


def test_gathered_rows_and_joined_tensors(device: str) -> None:
    x, y = lbrx.tensor(normal(7, 5)), lbrx.tensor(normal(4, 5, seed=1))

    def make() -> tuple[Tensor, ...]:
        gathered = x.rows([6, 0, 0, 3])
        joined = lbrx.concatenate([x * 2, y])
        return gathered + y, gathered.T.sum(axis=-1), joined, joined.max(axis=-1, keepdims=True) - joined

    assert_same_as_reference(device, make)


def test_random_streams(device: str) -> None:
    def make() -> tuple[Tensor, ...]:
        whole = lbrx.uniform((3, 1 << 32), 6, "stream")
        around = whole.reshape(3 << 32)[(1 << 32) - 500 : (1 << 32) + 500]
        return lbrx.uniform((300, 300), 1, "a"), lbrx.uniform((300, 300), 1, "a")[7:2:-2, ::3], around, lbrx.arange(9)

    assert_same_as_reference(device, make)
    with computing_on(reference_of(device)):
        want = lbrx.normal((90_000,), 2, "b").numpy()
    np.testing.assert_allclose(lbrx.normal((90_000,), 2, "b").numpy(), want, rtol=4 * 2.0**-23)


# -- the protocol -----------------------------------------------------------------------------------------------------


def recorded(tensor: Tensor, op: str = "") -> BoundPass:
    """The last pass that a value needs, or the last one with a sink of an operation."""
    with recorded_passes() as passes, computing_on("numpy"):
        lbrx.evaluate(tensor)
    return [each for each in passes if op in ("", each.program.sinks[0].op)][-1]


def test_partial_results_are_those_of_blocks_in_order(device: str) -> None:
    x = lbrx.tensor(np.arange(200_000, dtype=np.float32))
    values_found, indices = device_named(device).run_pass(recorded((x + 1).argmax()), [None])[0]
    assert values_found.tolist() == [65536, 131072, 196608, 200000]
    assert indices.tolist() == [65535, 131071, 196607, 199999]
    sums, no_indices = device_named(device).run_pass(recorded((x * 0 + 1).sum()), [None])[0]
    assert (sums.tolist(), no_indices) == ([65536, 65536, 65536, 3392], None)


def test_a_histogram_counts_keys_by_their_bits(device: str) -> None:
    x = lbrx.tensor(np.arange(-50_000, 50_000, dtype=np.int32))
    state = HistogramState(4, -10, np.zeros(BINS, np.int64))
    device_named(device).run_pass(recorded(x.kth_largest(9), "histogram"), [state])
    assert state.counts[:3000].tolist() == [16] * 3000
    assert int(state.counts.sum()) == 16 * 3125 + 8 * 16 + 2 * 16  # from -160 to the largest


def test_collected_keys_have_their_indices_and_those_above_are_counted(device: str) -> None:
    x = lbrx.tensor(np.arange(50_000, dtype=np.int32) % 1000)
    state = CollectState(996, 998, 1000)
    device_named(device).run_pass(recorded(x.kth_largest(9), "collect"), [state])
    assert (state.collected, state.above) == (150, 50)
    assert np.concatenate(state.keys).tolist() == [996, 997, 998] * 50
    assert np.concatenate(state.indices).tolist() == [i for i in range(50_000) if 996 <= i % 1000 <= 998]


def test_keys_that_are_only_counted(device: str) -> None:
    x = lbrx.tensor(np.arange(50_000, dtype=np.int32) % 1000)
    state = CollectState(998, 997, 1000)
    device_named(device).run_pass(recorded(x.kth_largest(9), "collect"), [state])
    assert state.above == 100
    if device_named(device).counts_keys:
        assert int(np.concatenate(state.keys).sum()) == 50
        assert all(997 in x[start : start + TILE].numpy() for start in np.concatenate(state.indices).tolist())
    else:
        assert state.collected == 0


@pytest.mark.parametrize("name", ["i4", "i2"])
def test_elements_that_share_bytes_in_passes_over_rows(name: str, device: str) -> None:
    x = lbrx.tensor(np.random.default_rng(5).integers(-1, 1, (301, 451)).astype(np.int32))
    assert_same_as_reference(device, lambda: ((x - x.max(axis=-1, keepdims=True)).to(name).realize(),))


@pytest.mark.parametrize("name", DTYPES)
def test_passes_store_into_destinations_of_every_device(name: str, device: str) -> None:
    x = lbrx.tensor(np.arange(-70_000, 70_001, dtype=np.int32) % 100 - 50)
    bound = recorded((x * 3).to(name))
    target = device_named(device)
    reason = target.why_not(bound.program)
    if reason is not None:
        assert reason in LEFT_TO_THE_CPU[device]
        return
    whole, elsewhere = target.destination(DTYPES[name], x.size), ArrayDestination(DTYPES[name], x.size)
    target.run_pass(bound, [whole])
    target.run_pass(bound, [elsewhere])
    assert whole.storage.device == device
    stored = target.load(whole.storage)
    with computing_on(reference_of(device)):
        want = (x * 3).to(name).to_device("cpu").storage
    assert want is not None
    bits = want.read_at(0, want.nbytes).tobytes()
    assert stored.read_at(0, stored.nbytes).tobytes() == bits
    assert elsewhere.whole.tobytes() == bits


def test_bytes_are_stored_and_loaded(device: str, tmp_path: Path) -> None:
    data = np.random.default_rng(3).integers(0, 256, 10_007).astype(np.uint8)
    (tmp_path / "bytes").write_bytes(data.tobytes())
    target = device_named(device)
    for storage in (CpuStorage(data), MmapStorage.from_file(tmp_path / "bytes", 3, 9_001)):
        stored = target.store(storage)
        assert (stored.device, stored.nbytes) == (device, storage.nbytes)
        want = storage.read_at(0, storage.nbytes)
        loaded = target.load(stored)
        assert loaded.device == "cpu"
        np.testing.assert_array_equal(loaded.read_at(0, loaded.nbytes), want)
        np.testing.assert_array_equal(stored.read_at(17, 100), want[17:117])
        assert target.store(stored).nbytes == stored.nbytes


def test_tensors_move_between_devices_and_keep_their_names(device: str) -> None:
    with computing_on("metal"), computing_on(device):
        x = lbrx.tensor(normal(3, 5), "bf16", name="weight")
        here = x.to_device(device)
        assert (here.device, here.name) == (device, "weight")
        for other in DEVICES:
            there = here.to_device(other)
            assert (there.device, there.name) == (other, "weight")
            assert_same(there.to_device(device).numpy(), x.numpy())
        computed = (here * 2 + 1).realize()
        assert computed.device == device
        assert_same(computed.numpy(), widened(x.numpy()) * np.float32(2) + np.float32(1))


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(UsageError, match="unknown device 'npu'; expected one of cpu"):
        lbrx.tensor([1.0]).to_device("npu")


# -- blocks, products, attention --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("name", [*ENCODABLE, *SCHEMES])
def test_blocks_of_computed_values(name: str, device: str) -> None:
    def parts() -> list[bytes]:
        quantized = (lbrx.tensor(normal(4, 512)) * 0.5).quantize(name, even_importance(name, 512)).realize()
        decoded = quantized.dequantize().numpy()
        return [decoded.tobytes(), quantized.to_device(device).to_device("cpu").dequantize().numpy().tobytes()]

    got = parts()
    with computing_on("cpu"):
        want = parts()
    assert got == want


ALL_CODECS = {
    **{name: codec(name) for name in ENCODABLE},
    **{name: integer_codec(name, 32, symmetric=False) for name in SCHEMES},
    **{f"mlx {name}": mlx_codec(MlxMode(name, *sizes), ()) for name, sizes in FLOAT_MODES.items()},
    "mlx affine": mlx_codec(MlxMode(), (DTYPES["bf16"], DTYPES["bf16"])),
}


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("name", ALL_CODECS)
def test_an_encoder_takes_what_a_pass_computes(name: str, device: str) -> None:
    """The values are computed, stored as they are, joined, and large enough for several pieces."""
    x, y = lbrx.tensor(normal(70, 2048)), lbrx.tensor(normal(3, 2048, seed=1)).to_device(device)
    rows = (x * 0.5 + x.mean(axis=-1, keepdims=True)).to("bf16")

    def parts(given: Tensor) -> list[bytes]:
        encoding = Encoding(given.expr, ALL_CODECS[name], even_importance(name, 2048))
        blocks = Tensor(Encode(encoding)).to_device(device).expr
        assert isinstance(blocks, Blocks)
        stored = [blocks.storage, *(number.storage for number in blocks.numbers if isinstance(number, Source))]
        assert {each.device for each in stored} == {device}
        return [each.read_at(0, each.nbytes).tobytes() for each in stored]

    for given_values in (x, y, rows, lbrx.concatenate([x * 2, y])):
        got = parts(given_values)
        with computing_on("cpu"):
            assert got == parts(given_values)


@pytest.mark.parametrize("name", ALL_CODECS)
def test_a_device_says_which_codecs_it_cannot_encode(name: str, device: str) -> None:
    reason = device_named(device).why_not(Encoder(ALL_CODECS[name], is_weighted=False))
    assert (reason is None) == (device != "metal" or name in ("q4_0", "q8_0"))
    assert reason is None or "cannot encode" in reason


@pytest.mark.usefixtures("no_warnings_yet")
def test_arithmetic_sees_the_values_of_blocks_that_are_not_made_yet(device: str) -> None:
    quantized = (lbrx.tensor(normal(4, 512)) * 0.5).quantize("q8_0")
    with recorded_passes() as passes:
        got = (quantized * 2 - quantized).numpy()
    assert len(passes) == 2
    np.testing.assert_array_equal(got, quantized.numpy())
    assert_same_as_reference(device, lambda: (lbrx.tensor(normal(4, 512)).quantize("int4") + 1,))


@pytest.mark.usefixtures("no_warnings_yet")
def test_blocks_with_an_importance_matrix(device: str) -> None:
    weights = np.random.default_rng(4).random(512).astype(np.float32)

    def blocks() -> bytes:
        raw = (lbrx.tensor(normal(4, 512)) * 0.5).quantize("q4_k", imatrix=weights).realize().raw()
        return raw.numpy().tobytes()

    got = blocks()
    with computing_on(reference_of(device)):
        assert blocks() == got


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("name", ["f64", "f32", "bf16", "f8_e4m3", "i8", "q8_0", "q4_k", "q5_0"])
@pytest.mark.parametrize("vectors", [1, 9])
def test_linear(name: str, vectors: int) -> None:
    numbers = lbrx.tensor(normal(20, 256, seed=1)) * 9
    weight = (numbers.quantize(name) if name in CODECS else numbers.to(name)).realize()
    x = normal(vectors, 256)
    with computing_on("cpu"):
        rows = wide(weight.dequantize())
    error = abs(linear(x, weight) - wide(x) @ rows.T)
    assert (error <= product_bound(wide(x), rows) + coded_bound(wide(x), rows)).all()


@pytest.mark.parametrize("shapes", [((5, 7), (7, 3)), ((2, 1, 4, 6), (3, 6, 2)), ((6,), (6, 4)), ((4, 6), (6,))])
def test_matmul_of_tensors(shapes: tuple[tuple[int, ...], ...], device: str) -> None:
    a, b = normal(*shapes[0]), normal(*shapes[1], seed=1)
    product = lbrx.tensor(a).to_device(device) @ lbrx.tensor(b, "bf16")
    assert product.device == device
    want = wide(a) @ wide(lbrx.tensor(b, "bf16"))
    np.testing.assert_allclose(product.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_rows", [None, 32])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_panels_of_a_product(block_rows: int | None, transpose_b: bool, device: str) -> None:
    a, b = lbrx.tensor(normal(4500, 8)), lbrx.tensor(normal(8, 12, seed=1))
    right = b.T.realize() if transpose_b else b
    panels = device_named(device).product_rows(a, right, transpose_b, block_rows)
    out, row = np.empty((4500, 12), np.float32), 0
    while row < 4500:
        first, stop = panels.panel(row)
        assert first == row < stop
        assert panels.panel(stop - 1) == (first, stop)
        panels.multiply(first, stop, out[first:stop])
        row = stop
    np.testing.assert_allclose(out, wide(a) @ wide(b), rtol=1e-5, atol=1e-5)


def test_a_bias_an_activation_and_a_residual_after_a_product(device: str) -> None:
    a, b, residual = (lbrx.tensor(normal(*shape, seed=1)).to_device(device) for shape in ((9, 8), (8, 4), (9, 4)))
    for block_rows in (None, 4):
        product = Tensor(MatMul(a.expr, b.expr, block_rows=block_rows))
        got = ((product + residual[0]).maximum(0.0) + residual).numpy()
        want = np.maximum(wide(a) @ wide(b) + wide(residual)[0], 0) + wide(residual)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_matrices_that_do_not_fit_are_an_error(device: str) -> None:
    with pytest.raises(ShapeError):
        lbrx.tensor(normal(3, 4)).to_device(device) @ lbrx.tensor(normal(3, 4))


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 3, "offset": 2}, {"softcap": 2.0, "scale": 0.4}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_attention(options: dict[str, Any]) -> None:
    q, k, v = normal(4, 9, 16), normal(2, 11, 16, seed=1), normal(2, 11, 8, seed=2)
    got = attention(q, k, v, **options)
    scores = wide(q) @ np.repeat(wide(k), 2, 0).transpose(0, 2, 1) * options.get("scale", 0.25)
    cap = options.get("softcap")
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    distance = np.arange(9)[:, None] + options.get("offset", 0) - np.arange(11)
    is_seen = (distance >= 0) | (not options.get("causal", True))
    is_seen &= abs(distance) < options.get("window", 99)
    weights = np.where(is_seen, np.exp(scores), 0)
    want = weights @ np.repeat(wide(v), 2, 0) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_gathered_rows_of_a_weight() -> None:
    weight = lbrx.tensor(normal(9, 64)).quantize("q8_0").realize()
    with computing_on("cpu"):
        rows = weight.dequantize().numpy()
    np.testing.assert_array_equal(embedding([[8, 0], [0, 3]], weight), rows[[[8, 0], [0, 3]]])


def erf(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.vectorize(math.erf)(x)


X64, VECTOR = normal(7, 40).astype(np.float64) * 3, normal(40, seed=9)
TABLES = np.cos(normal(7, 20)), np.sin(normal(7, 20))
LEFT, RIGHT = X64[:, :20], X64[:, 20:]
IN_DOUBLES: dict[str, tuple[tuple[Any, ...], tuple[float, ...], Any]] = {
    "softmax": ((), (), np.exp(X64) / np.exp(X64).sum(-1, keepdims=True)),
    "rms_norm": ((VECTOR,), (0.1,), X64 / np.sqrt((X64**2).mean(-1, keepdims=True) + 0.1) * VECTOR),
    "layer_norm": (
        (VECTOR, VECTOR + 1),
        (0.1,),
        (X64 - X64.mean(-1, keepdims=True)) / np.sqrt(X64.var(-1, keepdims=True) + 0.1) * VECTOR + VECTOR + 1,
    ),
    "rope": (
        TABLES,
        (0.0,),
        np.concatenate([LEFT * TABLES[0] - RIGHT * TABLES[1], RIGHT * TABLES[0] + LEFT * TABLES[1]], axis=-1),
    ),
    "silu": ((), (), X64 / (1 + np.exp(-X64))),
    "gelu": ((), (), X64 * (1 + erf(X64 / math.sqrt(2))) / 2),
    "gelu_tanh": ((), (), X64 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X64 + 0.044715 * X64**3))) / 2),
    "relu": ((), (), np.maximum(X64, 0)),
    "relu_squared": ((), (), np.maximum(X64, 0) ** 2),
    "softcap": ((), (2.5,), 2.5 * np.tanh(X64 / 2.5)),
}
GATED = {f"{name}_mul": ((X64 + 1,), (), IN_DOUBLES[name][2] * (X64 + 1)) for name in ("silu", "gelu", "gelu_tanh")}


@pytest.mark.parametrize("operation", ARRAY_OPERATIONS)
def test_operations_on_arrays(operation: str, device: str) -> None:
    others, numbers, want = (IN_DOUBLES | GATED)[operation]
    given = tuple(np.ascontiguousarray(other, np.float32) for other in others)
    got = device_named(device).apply(operation, X64.astype(np.float32), given, numbers)
    assert (got.dtype, got.shape) == (np.float32, X64.shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# -- what a device leaves to the CPU ----------------------------------------------------------------------------------

X32 = normal(5, 60)
PASSES: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "f32": (lambda: lbrx.tensor(X32) * 3, X32 * 3),
    "f64": (lambda: lbrx.tensor(X32.astype(np.float64)) * 3, X32.astype(np.float64) * 3),
    "ranks": (lambda: lbrx.tensor(X32).rank(), np.argsort(np.argsort(X32, axis=-1), axis=-1)),
    "rows": (lambda: lbrx.tensor(X32).max(axis=-1), X32.max(axis=-1)),
    "selection along rows": (
        lambda: (lbrx.tensor(X32) - lbrx.tensor(X32).max(axis=-1, keepdims=True)).kth_largest(9),
        np.sort((X32 - X32.max(axis=-1, keepdims=True)).reshape(-1))[-9],
    ),
}


@pytest.mark.usefixtures("no_warnings_yet")
@pytest.mark.parametrize("name", PASSES)
def test_what_it_cannot_run_is_right_and_each_reason_is_reported_once(name: str, device: str) -> None:
    make, want = PASSES[name]
    with warnings.catch_warnings(record=True) as caught, recorded_passes() as passes:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_same(make().numpy(), want)
    reasons = {device_named(device).why_not(bound.program) for bound in passes} - {None}
    messages = [str(each.message) for each in caught if issubclass(each.category, CpuFallback)]
    assert sorted(messages) == sorted(f"computed on the CPU instead: {reason}" for reason in reasons)
    assert set(fallbacks()) == reasons
    assert device == "metal" or not reasons


def test_it_is_there_and_knows_its_name(device: str) -> None:
    target = device_named(device)
    target.open()
    assert target.name == device
