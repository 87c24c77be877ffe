"""Recorded passes give the bits of the operations run one by one, for every family and type of weight."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.devices.cpu.build.team import Team
from lbrx.devices.cpu.device import CpuDevice
from lbrx.devices.cpu.ops import codec_products
from lbrx.devices.cpu.recorded.step import Step
from lbrx.errors import TruncatedError
from lbrx.jobs.convert.hf_to_gguf import hf_to_gguf
from lbrx.jobs.convert.reading import read_contents
from lbrx.models.inference import LanguageModel, open_model
from support.tiny_decoders import CONFIGS, VOCABULARY, tiny_arrays, tiny_config, write_tiny

IDS = np.random.default_rng(1).integers(0, VOCABULARY, 33)
PIECES = (1, 1, 1, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1)  # tokens of each pass; the second of a length is recorded
NATIVE_TYPES = ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_k", "q6_k", "q5_1", "q3_k", "iq4_nl", "mxfp4")
Array = npt.NDArray[np.float32]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every run of a recorded pass."""
    tokens: list[int] = []
    run = Step.run

    def counting(step: Step, cache: Any) -> Any:
        tokens.append(step._recording.tokens)
        return run(step, cache)

    monkeypatch.setattr(Step, "run", counting)
    return tokens


def piecewise(model: LanguageModel, kv_type: str = "f32") -> list[Array]:
    cache, logits, start = model.new_cache(capacity=4, kv_type=kv_type), [], 0
    for count in PIECES:
        logits.append(model.logits(IDS[start : start + count], cache))
        start += count
    return logits


def one_by_one(model: LanguageModel, kv_type: str = "f32") -> list[Array]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "compile_step", lambda *_: None)
        return piecewise(model, kv_type)


def assert_same_bits(actual: list[Array], expected: list[Array]) -> None:
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32), err_msg=f"piece {number}")


def tiny(folder: Path, model_type: str = "llama", **changes: Any) -> Path:
    config = tiny_config(model_type, **changes)
    return write_tiny(folder, config, tiny_arrays(config))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_recorded_passes_have_the_same_bits(model_type: str, tmp_path: Path, runs: list[int]) -> None:
    path = tiny(tmp_path, model_type)
    expected = one_by_one(open_model(path))
    assert not runs
    assert_same_bits(piecewise(open_model(path)), expected)
    assert runs == [1, 1, 9, 3, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_half_caches_have_the_same_bits_and_half_the_bytes(model_type: str, kv_type: str, tmp_path: Path) -> None:
    path = tiny(tmp_path, model_type)
    assert_same_bits(piecewise(open_model(path), kv_type), one_by_one(open_model(path), kv_type))
    model = open_model(path)
    half, whole = (model.new_cache(8, name).layers[0] for name in (kv_type, "f32"))
    assert 2 * (half.keys.nbytes + half.values.nbytes) == whole.keys.nbytes + whole.values.nbytes


def coded(folder: Path, type_name: str) -> Path:
    """A GGUF file with weights of a type. Its rows are 256 elements, as K-quants need."""
    path = tiny(folder / "hf", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    contents = hf_to_gguf(read_contents(path), tokenizer_metadata={})
    tensors = {tensor.name: tensor.make() for tensor in contents.tensors}
    is_float = type_name in ("f32", "f16", "bf16")
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            tensors[name] = tensor.to(type_name) if is_float else tensor.quantize(type_name)
    lbrx.save(folder / "coded.gguf", tensors, contents.metadata)
    return folder / "coded.gguf"


@pytest.mark.parametrize("type_name", NATIVE_TYPES)
def test_all_types_of_weights_have_the_same_bits(type_name: str, tmp_path: Path, runs: list[int]) -> None:
    path = coded(tmp_path, type_name)
    assert_same_bits(piecewise(open_model(path)), one_by_one(open_model(path)))
    assert runs


@pytest.mark.parametrize("type_name", ["bf16", "q4_0", "q8_0", "q4_k", "q6_k", "mxfp4"])
def test_activations_of_8_bits_have_the_same_bits(type_name: str, tmp_path: Path, runs: list[int]) -> None:
    path = coded(tmp_path, type_name)
    with lbrx.using(activation_bits=8):
        expected = one_by_one(open_model(path))
        assert_same_bits(piecewise(open_model(path)), expected)
    assert runs


def test_passes_of_one_precision_are_not_run_for_another(tmp_path: Path, runs: list[int]) -> None:
    model = open_model(coded(tmp_path, "q4_0"))
    in_16_bits = piecewise(model)
    with lbrx.using(activation_bits=8):
        in_8_bits = piecewise(model)
    assert runs
    assert not any(np.array_equal(fine, coarse) for fine, coarse in zip(in_16_bits, in_8_bits, strict=True))
    assert_same_bits(piecewise(model), in_16_bits)


def test_weights_that_are_decoded_have_the_same_bits(
    tmp_path: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in (codec_products.FEW_VECTORS, codec_products.CODED_JOBS, codec_products.MANY_VECTORS):
        monkeypatch.delitem(table, "q5_1")
    path = coded(tmp_path, "q5_1")
    assert_same_bits(piecewise(open_model(path)), one_by_one(open_model(path)))
    assert runs


@pytest.mark.parametrize("to", ["mlx_4", "int8"])
def test_groups_with_scales_have_the_same_bits(to: str, tmp_path: Path, runs: list[int]) -> None:
    from lbrx.jobs.quantize import quantize

    quantize(tiny(tmp_path / "hf"), tmp_path / to, to=to, group_size=32)
    assert_same_bits(piecewise(open_model(tmp_path / to)), one_by_one(open_model(tmp_path / to)))
    assert runs


def test_the_native_types_need_no_python_in_a_token(tmp_path: Path) -> None:
    for type_name in NATIVE_TYPES:
        model = open_model(coded(tmp_path / type_name, type_name))
        piecewise(model)
        (step,) = (each._step for key, each in model._passes._recorded.items() if key[0] == "logits")
        assert isinstance(step, Step)
        assert all(task.function for task in step._tasks), type_name


@pytest.mark.parametrize("threads", [2, 7])
def test_threads_change_nothing(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = coded(tmp_path, "q4_0")
    with lbrx.using(threads=1):
        expected = piecewise(open_model(path))
    fresh = Team()
    fresh.fast_processors = threads
    monkeypatch.setattr("lbrx.devices.cpu.recorded.step.team", lambda: fresh)
    with lbrx.using(threads=threads):
        for _ in range(5):
            assert_same_bits(piecewise(open_model(path)), expected)
    assert fresh._helpers == threads - 1


def test_refused_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = coded(tmp_path, "q8_0")
    expected = piecewise(open_model(path))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fresh = Team()
    fresh.fast_processors = 4
    monkeypatch.setattr("lbrx.devices.cpu.recorded.step.team", lambda: fresh)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with lbrx.using(threads=4):
        assert_same_bits(piecewise(open_model(path)), expected)
    assert fresh._helpers == 0


def test_a_forked_process_runs_the_recorded_pass(tmp_path: Path) -> None:
    model = open_model(coded(tmp_path, "q4_0"))
    expected = piecewise(model)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(piecewise(model)))
    child.start()
    assert_same_bits(results.get(), expected)
    child.join()


def test_callers_on_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    model = open_model(coded(tmp_path, "q4_0"))
    expected = piecewise(model)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(10):
            if any(not np.array_equal(ours, theirs) for ours, theirs in zip(piecewise(model), expected, strict=True)):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("type_name", ["q4_0", "f16"])
def test_activations_that_are_not_finite_have_the_same_bits(value: float, type_name: str, tmp_path: Path) -> None:
    """The embedding of a token is not finite. Coded products cannot compute with it and leave it to decoded ones."""
    stored = lbrx.open(coded(tmp_path, type_name))
    tensors = {name: tensor.dequantize() if "token_embd" in name else tensor for name, tensor in stored.items()}
    embedding = tensors["token_embd.weight"].to("f32").numpy().copy()
    embedding[IDS[8], 5] = value
    tensors["token_embd.weight"] = lbrx.tensor(embedding)
    with pytest.warns(RuntimeWarning, match="NaN|infinite"):
        lbrx.save(tmp_path / "bad.gguf", tensors, stored.metadata)
    path = tmp_path / "bad.gguf"
    ours, expected = piecewise(open_model(path)), one_by_one(open_model(path))
    assert any(not np.isfinite(logits).all() for logits in expected)
    for actual, wanted in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("type_name", ["f16", "q8_0"])
def test_a_truncated_file_is_an_error_between_tokens(type_name: str, tmp_path: Path) -> None:
    path = coded(tmp_path, type_name)
    tokens = open_model(path).generate([1, 2, 3], 20)
    for _ in range(5):
        next(tokens)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(TruncatedError, match="when it was opened"):
        next(tokens)


def test_few_passes_are_kept(tmp_path: Path) -> None:
    model = open_model(tiny(tmp_path))
    for count in range(2, 12):
        for _ in range(2):
            model.logits(IDS[:count], model.new_cache(16))
    assert len(model._passes._recorded) == 4
