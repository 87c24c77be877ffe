"""Damaged quantized checkpoints end in one error that names the file and the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.quantized_weights import SCHEMES, Quantized, named, write_model

import lbrx
from lbrx.errors import FormatError

Break = Callable[[Quantized], None]


def without(*endings: str) -> Break:
    def change(weight: Quantized) -> None:
        for ending in endings:
            del weight.parts[ending]

    return change


def cut(ending: str) -> Break:
    """Leave out the last of the first axis."""

    def change(weight: Quantized) -> None:
        weight.parts[ending] = np.ascontiguousarray(weight.parts[ending][:-1])

    return change


def with_part(ending: str, part: Any) -> Break:
    def change(weight: Quantized) -> None:
        weight.parts[ending] = part

    return change


def with_group(number: int) -> Break:
    def change(weight: Quantized) -> None:
        weight.parts[".g_idx"][7] = number

    return change


def with_settings(**settings: Any) -> Break:
    def change(weight: Quantized) -> None:
        weight.settings.update(settings)

    return change


GPTQ = "gptq 4 bits v1, act-order"
STATE = ".weight.quant_state.bitsandbytes__nf4"
BROKEN: dict[str, tuple[str, Break, str]] = {
    "fp8 without scales": ("fp8 blocks", without(".weight_scale_inv"), "'l.weight' is f8_e4m3, but has no scales"),
    "fp8 with few scales": (
        "fp8 blocks",
        cut(".weight_scale_inv"),
        "'l.weight_scale_inv' has shape (2, 4), which does not divide 'l.weight' of shape (47, 128) into blocks",
    ),
    "fp8 with scales of another rank": (
        "fp8 blocks",
        with_part(".weight_scale_inv", np.ones((2, 2, 2), np.float32)),
        "'l.weight_scale_inv' has shape (2, 2, 2), expected scales of 'l.weight' of shape (47, 128)",
    ),
    "fp8 with integer scales": (
        "fp8 blocks",
        with_part(".weight_scale_inv", np.ones((3, 4), np.int32)),
        "'l.weight_scale_inv' is i32, expected f32 or f16 or bf16 or f8_e8m0 or u8 as a part of 'l.weight'",
    ),
    "packed codes without scales": (
        "compressed 4 bits",
        without(".weight_scale"),
        "'l.weight_packed' is quantized, but its part 'l.weight_scale' is missing",
    ),
    "packed codes without a shape": (
        "compressed 4 bits",
        without(".weight_shape"),
        "'l.weight_packed' is quantized, but its part 'l.weight_shape' is missing",
    ),
    "packed codes of another shape": (
        "compressed 4 bits",
        with_part(".weight_shape", np.array([48, 1280])),
        "'l.weight_packed' has 16 words in a row, which do not hold 1280 codes of 1 to 8 bits",
    ),
    "packed zero points that are cut": (
        "compressed 4 bits",
        cut(".weight_zero_point"),
        "'l.weight_zero_point' has shape (5, 4), expected (6, 4) as a part of 'l.weight_packed'",
    ),
    "nvfp4 without a global scale": (
        "compressed nvfp4",
        without(".weight_global_scale"),
        "'l.weight_packed' is quantized, but its part 'l.weight_global_scale' is missing",
    ),
    "an index of too many groups": (GPTQ, with_group(4), "'l.g_idx' has the group 4, but 'l.qweight' has 4 groups"),
    "an index of negative groups": (GPTQ, with_group(-1), "'l.g_idx' has the group -1, but 'l.qweight' has 4 groups"),
    "an index that is cut": (GPTQ, cut(".g_idx"), "'l.g_idx' has shape (127,), expected (128,) as a part of"),
    "gptq without scales": (GPTQ, without(".scales"), "'l.qweight' is quantized, but its part 'l.scales' is missing"),
    "gptq with cut zero points": (GPTQ, cut(".qzeros"), "'l.qzeros' has shape (3, 6), expected (4, 6) as a part of"),
    "gptq with other groups": (
        GPTQ,
        with_settings(group_size=64),
        "'l.g_idx' has the group 3, but 'l.qweight' has 2 groups",
    ),
    "gptq with few groups": (GPTQ, with_settings(group_size=16), "'l.scales' has shape (4, 48), expected (8, 48)"),
    "gptq with a group size of text": (
        GPTQ,
        with_settings(group_size="many"),
        "'group_size' of the quantization is 'many', expected a positive number",
    ),
    "awq with codes that are cut": ("awq", cut(".scales"), "'l.scales' has shape (3, 48), expected (4, 48) as a part"),
    "modelopt with other scales": (
        "modelopt nvfp4",
        cut(".weight_scale"),
        "'l.weight_scale' has shape (47, 8), expected (48, 8) as a part of 'l.weight'",
    ),
    "modelopt with scaled inputs": (
        "modelopt nvfp4",
        with_part(".pre_quant_scale", np.ones(128, np.float32)),
        "'l.weight' has scaled inputs ('l.pre_quant_scale'), which cannot be decoded",
    ),
    "bitnet with scales of rows": (
        "bitnet",
        with_part(".weight_scale", np.ones(48, np.float32)),
        "'l.weight_scale' has shape (48,), expected one number",
    ),
    "bitsandbytes without a state": (
        "bitsandbytes",
        without(STATE),
        f"'l.weight' is quantized, but its part 'l{STATE}' is missing",
    ),
    "bitsandbytes with a state that is no JSON": (
        "bitsandbytes",
        with_part(STATE, np.frombuffer(b"{'shape': 1}", np.uint8)),
        f"'l{STATE}' is not a JSON object",
    ),
    "bitsandbytes with another shape": (
        "bitsandbytes",
        with_part(STATE, np.frombuffer(b'{"shape": [48, 64], "blocksize": 128, "dtype": "float16"}', np.uint8)),
        "'l.weight' has 3072 bytes, which do not hold a weight of shape (48, 64)",
    ),
    "bitsandbytes with few blocks": ("bitsandbytes", cut(".weight.absmax"), "'l.weight.absmax' has shape (47,)"),
    "int8 with few scales": ("bitsandbytes int8", cut(".SCB"), "'l.SCB' has shape (47,), expected (48,) as a part of"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_one_error(case: str, tmp_path: Path) -> None:
    scheme, change, message = BROKEN[case]
    shape = (47, 128) if case.startswith("fp8") else (48, 128)
    weight = SCHEMES[scheme](np.random.default_rng(1), shape)
    change(weight)
    path = write_model(tmp_path / "m", named("l", weight), weight.settings)
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        lbrx.open(path)["l.weight"]
    assert str(tmp_path / "m") in str(caught.value)
    report = lbrx.verify(path)
    assert [finding for finding in report.errors if message in f"{finding.place} {finding.text}"]


REFUSED = {
    "version 'gemv_fast'": ("awq", with_settings(version="gemv_fast")),
    "5 bits": (GPTQ, with_settings(bits=5)),
    "checkpoint_format 'marlin'": (GPTQ, with_settings(checkpoint_format="marlin")),
    "format 'marlin'": (GPTQ, with_settings(format="marlin")),
    "contradictory settings: checkpoint_format 'gptq', format 'gptq_v2'": (GPTQ, with_settings(format="gptq_v2")),
    "pack_dtype 'int64'": (GPTQ, with_settings(pack_dtype="int64")),
    "Marlin's layout": (GPTQ, with_settings(is_marlin_format=True)),
    "format 'gemv'": ("awq", with_settings(version=None, format="gemv")),
    "llm-awq's layout": ("awq", with_settings(backend="llm-awq")),
    "sparse weights ('sparse-24-bitmask')": (
        "compressed 4 bits",
        with_settings(sparsity_config={"format": "sparse-24-bitmask"}),
    ),
    "'transform_config': activations are transformed while it runs": (
        "compressed 4 bits",
        with_settings(transform_config={"config_groups": {"u": {"type": "hadamard"}}}),
    ),
    "format 'marlin-24'": ("compressed 4 bits", with_settings(format="marlin-24")),
    "quant_algo 'W4A8_AWQ'": ("modelopt nvfp4", with_settings(quant_algo="W4A8_AWQ")),
    "linear_class 'other'": ("bitnet", with_settings(linear_class="other")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_unknown_formats_of_known_schemes_are_refused(what: str, tmp_path: Path) -> None:
    scheme, change = REFUSED[what]
    weight = SCHEMES[scheme](np.random.default_rng(1), (48, 128))
    change(weight)
    path = write_model(tmp_path / "m", named("l", weight), weight.settings)
    with pytest.raises(FormatError, match=re.escape(f"and {what}, which lbrx cannot decode")):
        lbrx.open(path)


@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_the_second_version_of_gptq_by_either_key(key: str, tmp_path: Path) -> None:
    weight = SCHEMES["gptq 4 bits v2"](np.random.default_rng(1), (48, 128))
    version = weight.settings.pop("checkpoint_format")
    path = write_model(tmp_path / "m", named("l", weight), {**weight.settings, key: version})
    np.testing.assert_array_equal(lbrx.open(path)["l.weight"].to("f32").numpy(), weight.values.astype(np.float32))


def test_settings_of_mlx_do_not_hide_another_quantization(tmp_path: Path) -> None:
    weight = SCHEMES["fp8 blocks"](np.random.default_rng(1), (48, 128))
    mlx = {"quantization": {"group_size": 64, "bits": 4}}
    for number, settings in enumerate((weight.settings, None)):
        path = write_model(tmp_path / str(number), named("l", weight), settings, mlx)
        assert list(lbrx.open(path)) == ["l.weight"]
    weight = SCHEMES["bitnet"](np.random.default_rng(1), (48, 128))
    path = write_model(tmp_path / "bitnet", named("l", weight), None, mlx)
    with pytest.raises(FormatError, match="is quantized with u8 codes and scales"):
        lbrx.open(path)


def test_codes_of_bitsandbytes_in_another_type_are_not_values(tmp_path: Path) -> None:
    weight = SCHEMES["bitsandbytes"](np.random.default_rng(1), (48, 128))
    weight.parts[".weight"] = np.ones((48 * 32, 1), np.float16)
    for number, settings in enumerate((weight.settings, None)):
        source = "names of tensors say" if settings is None else "config.json says"
        with pytest.raises(FormatError, match=f"{source} .* but none of its tensors has the type of its codes"):
            lbrx.open(write_model(tmp_path / str(number), named("l", weight), settings))


def test_a_config_of_a_quantization_that_no_tensor_has(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", {"l.weight": np.ones((4, 4), np.float32)}, {"quant_method": "gptq"})
    with pytest.raises(
        FormatError, match=r"config.json says that the model is quantized with GPTQ, but none of its tensors"
    ):
        lbrx.open(path)


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:" + "(a|a)" * 40 + "$", "*a*a*a*a*b"])
def test_patterns_of_ignored_modules_that_take_for_ever(pattern: str, tmp_path: Path) -> None:
    weight = SCHEMES["fp8 blocks"](np.random.default_rng(1), (48, 128))
    tensors = {**named("l", weight), "a" * 60 + "!.weight": weight.parts[".weight"]}
    path = write_model(tmp_path / "m", tensors, {**weight.settings, "ignore": [pattern]})
    with pytest.raises(
        FormatError, match=r"the list of modules that are not quantized has .* take (too long|for ever)"
    ):
        lbrx.open(path)


def test_a_weight_that_is_stored_twice(tmp_path: Path) -> None:
    weight = SCHEMES[GPTQ](np.random.default_rng(1), (48, 128))
    tensors = {**named("l", weight), "l.weight": np.ones((48, 128), np.float32)}
    with pytest.raises(FormatError, match=r"'l.qweight' is the quantized form of 'l.weight', which is stored, too"):
        lbrx.open(write_model(tmp_path / "m", tensors, weight.settings))
