"""Types chosen for a size: sizes are met exactly, errors are the least, and nothing else decides."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lbrx
from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.model_plan import plan_output
from lbrx.jobs.quantize import QuantizeOptions, parse_options, plan_contents
from lbrx.jobs.quantize.allocation import Coding, allocate, hull
from lbrx.jobs.quantize.samples import SAMPLE_ROWS, relative_errors, sample_rows, spread
from support.quantizing_models import gguf_model, noise

CODINGS = st.lists(
    st.lists(
        st.builds(Coding, st.just("t"), st.integers(1, 40), st.floats(0, 10).map(lambda error: round(error, 3))),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


def file_bytes(contents: Contents) -> int:
    return sum(layout.file_bytes for layout in plan_output(contents, Path("a.gguf")).layouts)


def total_error(model: Contents, types: dict[str, str]) -> float:
    """The sum of relative squared errors over whole tensors, with embedding and output counted by their size."""
    usual = 256 * 256
    total = 0.0
    for tensor in model.tensors:
        type_name = types[tensor.name]
        if type_name == tensor.type_name:
            continue
        values = tensor.make().numpy().astype(np.float64)
        coded = tensor.make().quantize(type_name).dequantize().numpy()
        weight = max(values.size / usual, 1.0) if tensor.name in ("output.weight", "token_embd.weight") else 1.0
        total += weight * float(np.square(coded - values).sum() / np.square(values).sum())
    return total


@given(CODINGS, st.integers(0, 120))
@settings(max_examples=400, deadline=None)
def test_an_allocation_fits_and_is_the_best(tensors: list[list[Coding]], limit: int) -> None:
    chosen = allocate(tensors, limit)
    fitting = [choice for choice in product(*tensors) if sum(coding.size for coding in choice) <= limit]
    if not fitting:
        assert chosen is None
        return
    assert chosen is not None
    assert all(coding in codings for coding, codings in zip(chosen, tensors, strict=True))
    assert sum(coding.size for coding in chosen) <= limit
    best = min(sum(coding.error for coding in choice) for choice in fitting)
    assert sum(coding.error for coding in chosen) <= best + 1e-9


@given(CODINGS)
@settings(max_examples=100, deadline=None)
def test_a_hull_is_convex(tensors: list[list[Coding]]) -> None:
    for codings in tensors:
        corners = hull(codings)
        gains = [(a.error - b.error) / (b.size - a.size) for a, b in pairwise(corners)]
        assert all(gain > 0 for gain in gains)
        assert gains == sorted(gains, reverse=True)
        assert corners[-1].error == min(coding.error for coding in codings)


def test_rows_are_spread_over_a_tensor_and_its_matrices() -> None:
    numbers = np.arange(4 * 1000 * 32, dtype=np.float32).reshape(4, 1000, 32)
    sampled, weights = sample_rows(PlannedTensor.of("w", lbrx.tensor(numbers)), np.ones((4, 32), np.float32))
    assert sampled.shape == (4, SAMPLE_ROWS // 4, 32)
    assert weights is not None
    assert weights.shape == (4, 32)
    assert np.array_equal(sampled, numbers[:, spread(1000, SAMPLE_ROWS // 4)])


def test_errors_are_weighted_by_importance() -> None:
    values = np.random.default_rng(1).standard_normal((1, 8, 256)).astype(np.float32)
    importance = np.full((1, 256), 1e-6, np.float32)
    importance[:, :8] = 1.0
    plain, guided = (relative_errors(values, weights, ["q2_k"])[0] for weights in (None, importance))
    decoded = lbrx.tensor(values).quantize("q2_k").dequantize().numpy()
    assert plain == pytest.approx(float(np.square(decoded - values).sum() / np.square(values).sum()), rel=1e-5)
    assert guided < plain


def uneven(name: str, shape: tuple[int, ...]) -> lbrx.Tensor:
    """Some tensors have outliers, and some have two values only."""
    values = lbrx.normal(shape, 3, name)
    if "gate" in name:
        return lbrx.where(values > 0, 1.0, -1.0).to("f32")
    return (values * values * values if "attn" in name else values).to("f32")


@pytest.mark.parametrize("uniform", ["q3_k", "q4_k", "q5_k", "q6_k"])
def test_it_beats_a_single_type_of_the_same_size(uniform: str) -> None:
    model = gguf_model(3, values=uneven)
    single = plan_contents(model, parse_options("q8_0", tensor_types=[f".={uniform}"]))
    size = file_bytes(single.contents)
    chosen = plan_contents(model, parse_options(target_size=size))
    types, own = ({t.source.name: t.choice.type_name for t in plan.coded} for plan in (single, chosen))
    assert set(types.values()) == {"f32", uniform}
    assert 0.99 * size < file_bytes(chosen.contents) <= size
    assert total_error(model, own) < 0.9 * total_error(model, types)


@pytest.mark.parametrize("uniform", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0"])
def test_it_is_never_worse_than_a_single_type(uniform: str) -> None:
    """Tensors that are all alike: then one type is best."""
    model = gguf_model(1, values=lambda name, shape: lbrx.normal(shape, 3, name))
    single = plan_contents(model, parse_options("q8_0", tensor_types=[f".={uniform}"]))
    chosen = plan_contents(model, parse_options(target_size=file_bytes(single.contents)))
    types, own = ({t.source.name: t.choice.type_name for t in plan.coded} for plan in (single, chosen))
    assert total_error(model, own) <= 1.02 * total_error(model, types)  # what rows were not looked at may differ


@pytest.mark.parametrize("bits", [3.0, 4.2, 5.55, 7.0])
def test_bits_per_weight_are_met(bits: float) -> None:
    plan = plan_contents(gguf_model(2, values=noise), QuantizeOptions(target_bpw=bits))
    assert bits - 0.25 < plan.bits_per_weight <= bits
    assert plan.total_error is not None


def test_more_room_makes_less_error() -> None:
    model = gguf_model(2, values=noise)
    errors = [plan_contents(model, QuantizeOptions(target_bpw=bits)).total_error for bits in (3.0, 4.0, 5.0, 6.0, 9.0)]
    assert errors == sorted(errors, reverse=True)  # type: ignore[type-var]


def test_with_all_the_room_nothing_is_lost() -> None:
    plan = plan_contents(gguf_model(1, values=noise), QuantizeOptions(target_bpw=32.0))
    assert {tensor.choice.type_name for tensor in plan.coded} == {"f32"}
    assert plan.total_error == 0.0


def test_threads_and_chunks_do_not_matter() -> None:
    model = gguf_model(2, values=noise)
    found = []
    for threads, chunk in ((1, 1 << 16), (3, 1 << 18)):
        with lbrx.using(threads=threads, chunk_elements=chunk):
            plan = plan_contents(model, QuantizeOptions(target_bpw=4.5))
        found.append(([tensor.choice for tensor in plan.coded], plan.total_error))
    assert found[0] == found[1]


@pytest.mark.parametrize(("bits", "number"), [(32.0, 0), (8.7, 7), (4.7, 15), (2.9, 10)])
def test_the_file_type_is_that_of_most_weights(bits: float, number: int) -> None:
    options = parse_options(target_bpw=bits, candidates="q2_k,q4_k,q8_0")
    plan = plan_contents(gguf_model(values=noise), options)
    assert plan.contents.metadata["general.file_type"].value == number


def test_fixed_types_stay() -> None:
    model = gguf_model(2, values=noise)
    options = parse_options(target_bpw=5.0, tensor_types=["attn_q=q8_0"], output_type="q6_k", embedding_type="q5_k")
    types = {tensor.source.name: tensor.choice.type_name for tensor in plan_contents(model, options).coded}
    assert types["blk.1.attn_q.weight"] == "q8_0"
    assert (types["output.weight"], types["token_embd.weight"]) == ("q6_k", "q5_k")


def test_only_candidates_are_chosen() -> None:
    options = parse_options(target_bpw=6.0, candidates="q4_0, q8_0")
    plan = plan_contents(gguf_model(2, values=noise), options)
    assert {tensor.choice.type_name for tensor in plan.coded if len(tensor.source.shape) > 1} == {"q4_0", "q8_0"}


def test_rows_that_fit_no_large_block() -> None:
    plan = plan_contents(gguf_model(1, columns=96, hidden=96, values=noise), QuantizeOptions(target_bpw=6.5))
    chosen = {tensor.choice.type_name for tensor in plan.coded if len(tensor.source.shape) > 1}
    assert chosen <= {"q4_0", "iq4_nl", "q5_0", "q5_1", "q8_0", "f32"}


def test_importances_move_bits() -> None:
    """A tensor whose large columns do not matter can do with fewer bits."""
    values = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    plain = relative_errors(values[None], None, ["q4_k"])[0]
    importance = np.linspace(0.01, 2.0, 512, dtype=np.float32)[None]
    assert relative_errors(values[None], importance, ["q4_k"])[0] < plain


def test_a_size_that_is_too_small() -> None:
    model = gguf_model(1, values=noise)
    with pytest.raises(
        UsageError, match=r"2\.0000 bits per weight is too little .* the least is 2\.6\d+ bits per weight"
    ):
        plan_contents(model, QuantizeOptions(target_bpw=2.0))
    with pytest.raises(UsageError, match=r"a file of 5,000 bytes .* too little .* the least is a file of") as raised:
        plan_contents(model, parse_options(target_size=5000))
    least = int(str(raised.value).split("the least is a file of ")[1].split(" bytes")[0].replace(",", ""))
    assert file_bytes(plan_contents(model, parse_options(target_size=least)).contents) == least
    with pytest.raises(UsageError, match="too little"):
        plan_contents(model, parse_options(target_size=least - 1))


def test_a_quantized_source_is_refused_before_anything_is_measured() -> None:
    coded = plan_contents(gguf_model(values=noise), QuantizeOptions("q8_0")).contents
    with pytest.raises(UsageError, match="q8_0 already"):
        plan_contents(coded, QuantizeOptions(target_bpw=4.0))
    plan = plan_contents(coded, QuantizeOptions(target_bpw=4.0, allow_requantize=True))
    assert plan.bits_per_weight <= 4.0


def test_values_that_are_not_finite() -> None:
    broken = PlannedTensor.of("blk.0.ffn_up.weight", lbrx.full((64, 256), float("nan"), "f32"))
    with pytest.raises(UsageError, match=r"'blk.0.ffn_up.weight' has values that are not finite"):
        plan_contents(Contents("gguf", (broken,), gguf_model().metadata), QuantizeOptions(target_bpw=4.0))
