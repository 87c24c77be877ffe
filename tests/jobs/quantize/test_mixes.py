"""Which type every tensor gets: tables worked out by hand from the rules of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import lbrx
from lbrx.errors import UsageError
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FILE_TYPES, file_type
from lbrx.jobs.quantize import Choice, QuantizeOptions, choose_types, parse_options
from support.quantizing_models import gguf_model

MORE = (0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31)  # of 32: both eighths, and every third between
FIRST_EIGHTH = (0, 1, 2, 3)


@dataclass(frozen=True)
class Expected:
    """The types of a file: of layers that a mapping has, that type; of the others, ``rest``."""

    base: str
    output: str = "q6_k"
    embedding: str | None = None
    value: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    value_rest: str | None = None
    down: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    down_rest: str | None = None
    attention_output: str | None = None

    def type_of(self, role: str, layer: int) -> str:
        if role == "attn_output":
            return self.attention_output or self.base
        if role not in ("attn_v", "ffn_down"):
            return self.base
        special, rest = (self.value, self.value_rest) if role == "attn_v" else (self.down, self.down_rest)
        return next((type_name for type_name, layers in special.items() if layer in layers), rest or self.base)


DENSE = {
    "f32": Expected("f32", "f32"),
    "f16": Expected("f16", "f16"),
    "bf16": Expected("bf16", "bf16"),
    "q8_0": Expected("q8_0", "q8_0"),
    "q6_k": Expected("q6_k"),
    "q5_k_m": Expected("q5_k", value={"q6_k": MORE}, down={"q6_k": MORE}),
    "q5_k_s": Expected("q5_k"),
    "q5_1": Expected("q5_1"),
    "q5_0": Expected("q5_0"),
    "q4_k_m": Expected("q4_k", value={"q6_k": MORE}, down={"q6_k": MORE}),
    "q4_k_s": Expected("q4_k", value={"q5_k": (0, 1, 2, 3)}, down={"q5_k": FIRST_EIGHTH}),
    "q4_1": Expected("q4_1"),
    "q4_0": Expected("q4_0"),
    "iq4_nl": Expected("iq4_nl", down={"q5_k": FIRST_EIGHTH}),
    "iq4_xs": Expected("iq4_xs", down={"q5_k": FIRST_EIGHTH}),
    "mxfp4_moe": Expected("q8_0", "q8_0"),
    "q3_k_l": Expected("q3_k", value_rest="q5_k", down_rest="q5_k", attention_output="q5_k"),
    "q3_k_m": Expected(
        "q3_k",
        value={"q5_k": (0, 1)},
        value_rest="q4_k",
        down={"q5_k": (0, 1)},
        down_rest="q4_k",
        attention_output="q4_k",
    ),
    "q3_k_s": Expected("q3_k"),
    "q2_k": Expected("q2_k", value_rest="q3_k", down_rest="q3_k", attention_output="q3_k"),
    "q2_k_s": Expected("q2_k", down={"q4_k": FIRST_EIGHTH}),
    "tq2_0": Expected("tq2_0", embedding="q4_k"),
    "tq1_0": Expected("tq1_0", embedding="q4_k"),
}
OUTPUTS = {name: expected.output for name, expected in DENSE.items()} | {
    **dict.fromkeys(("iq3_m", "iq3_s", "iq3_xs", "q2_0", "q1_0"), "q6_k"),
    **dict.fromkeys(("iq3_xxs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"), "q5_k"),
}
SHARED_KEYS = DENSE | {
    "q2_k": Expected("q2_k", value_rest="q4_k", down_rest="q3_k", attention_output="q3_k"),
    "q2_k_s": Expected("q2_k", value_rest="q4_k", down={"q4_k": FIRST_EIGHTH}),
    "iq4_nl": Expected("iq4_nl", value_rest="q5_k", down={"q5_k": FIRST_EIGHTH}),
    "iq4_xs": Expected("iq4_xs", value_rest="q5_k", down={"q5_k": FIRST_EIGHTH}),
}
ROLES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def types(contents: Contents, name: str, **options: object) -> dict[str, str]:
    return {tensor: choice.type_name for tensor, choice in choices(contents, name, **options).items()}


def choices(contents: Contents, name: str, **options: object) -> dict[str, Choice]:
    return choose_types(contents, file_type(name), parse_options(name, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DENSE)  # `test_type_snapshots` has the others
@pytest.mark.parametrize("key_heads", [32, 8])
def test_a_dense_model_of_32_layers(name: str, key_heads: int) -> None:
    expected = (SHARED_KEYS if key_heads == 8 else DENSE)[name]
    found = types(gguf_model(32, heads=32, key_heads=key_heads), name)
    wanted = {f"blk.{n}.{role}.weight": expected.type_of(role, n) for n in range(32) for role in ROLES}
    wanted |= {"output.weight": expected.output, "token_embd.weight": expected.embedding or expected.base}
    assert {tensor: type_name for tensor, type_name in found.items() if "norm" not in tensor} == wanted
    assert {type_name for tensor, type_name in found.items() if "norm" in tensor} == {"bf16"}


@pytest.mark.parametrize("name", FILE_TYPES)
def test_a_tied_embedding_has_the_type_of_the_output(name: str) -> None:
    assert types(gguf_model(tied=True), name)["token_embd.weight"] == OUTPUTS[name]


EIGHT_EXPERTS = {
    # the file type: the attention's output, then ways down of the first and the third of 32 layers, then the rest
    "q2_k": ("q5_k", "q3_k", "q3_k", "q2_k"),
    "q2_k_s": ("q2_k", "q4_k", "q4_k", "q2_k"),
    "q3_k_s": ("q5_k", "q3_k", "q3_k", "q3_k"),
    "q3_k_m": ("q5_k", "q5_k", "q4_k", "q3_k"),
    "q3_k_l": ("q3_k", "q5_k", "q5_k", "q3_k"),
    "q4_k_s": ("q5_k", "q5_k", "q5_k", "q4_k"),
    "q4_k_m": ("q5_k", "q6_k", "q6_k", "q4_k"),
    "q5_k_m": ("q5_k", "q6_k", "q6_k", "q5_k"),
    "iq4_xs": ("q5_k", "q5_k", "q5_k", "iq4_xs"),
    "q6_k": ("q6_k", "q6_k", "q6_k", "q6_k"),
    "iq3_m": ("q5_k", "q4_k", "q4_k", "iq3_s"),
    "iq3_xs": ("q5_k", "iq3_s", "iq3_s", "iq3_xxs"),
    "iq2_m": ("q5_k", "iq3_s", "iq3_s", "iq2_s"),
    "iq1_s": ("q5_k", "q2_k", "q2_k", "iq1_s"),
    "mxfp4_moe": ("q8_0", "mxfp4", "mxfp4", "mxfp4"),
}


@pytest.mark.parametrize("name", EIGHT_EXPERTS)
def test_a_mixtral_of_eight_experts(name: str) -> None:
    attention_output, first_down, third_down, rest = EIGHT_EXPERTS[name]
    found = types(gguf_model(32, heads=32, key_heads=8, experts=8), name)
    is_small = name in ("iq2_m", "iq1_s")
    assert found["blk.5.attn_v.weight"] == found["blk.5.attn_k.weight"] == ("q4_k" if is_small else "q8_0")
    assert found["blk.5.attn_output.weight"] == attention_output
    assert found["blk.0.ffn_down_exps.weight"] == first_down
    assert found["blk.2.ffn_down_exps.weight"] == third_down
    assert found["blk.5.ffn_up_exps.weight"] == found["blk.5.ffn_gate_exps.weight"] == rest
    assert found["blk.5.attn_q.weight"] == ("q8_0" if name == "mxfp4_moe" else rest)
    assert found["blk.5.ffn_gate_inp.weight"] == "bf16"


def test_other_numbers_of_experts_have_no_rules_of_their_own() -> None:
    found = types(gguf_model(32, heads=32, key_heads=8, experts=4), "q4_k_m")
    assert found["blk.4.attn_v.weight"] == found["blk.4.attn_k.weight"] == found["blk.4.attn_output.weight"] == "q4_k"


def test_the_order_of_tensors_in_a_file_does_not_count() -> None:
    model = gguf_model(32)
    backwards = Contents("gguf", model.tensors[::-1], model.metadata)
    assert types(backwards, "q4_k_m") == types(model, "q4_k_m")


@pytest.mark.parametrize(
    ("architecture", "layers", "key_heads", "value"),
    [("llama", 80, 8, "q5_k"), ("llama", 80, 32, "q4_k"), ("qwen2", 80, 32, "q5_k"), ("llama", 79, 8, "q4_k")],
)
def test_values_of_the_largest_models_get_more_bits(architecture: str, layers: int, key_heads: int, value: str) -> None:
    model = gguf_model(layers, heads=32, key_heads=key_heads, architecture=architecture)
    assert types(model, "q4_k_m")["blk.10.attn_v.weight"] == value  # no layer that gets more bits otherwise


def test_falcon_has_rules_of_its_own() -> None:
    model = gguf_model(32, architecture="falcon")
    found = types(model, "q4_k_m")
    assert found["output.weight"] == "q8_0"
    assert [found[f"blk.{layer}.ffn_down.weight"] for layer in (0, 2, 4)] == ["q6_k", "q5_k", "q4_k"]
    found = types(model, "q3_k_m")
    assert [found[f"blk.{layer}.ffn_down.weight"] for layer in (0, 2, 4)] == ["q5_k", "q4_k", "q3_k"]
    assert types(model, "q3_k_l")["blk.0.attn_output.weight"] == "q4_k"
    assert types(model, "q4_k_s")["blk.0.ffn_down.weight"] == "q4_k"


def test_an_importance_matrix_changes_the_way_down() -> None:
    model = gguf_model(32)
    down = "blk.0.ffn_down.weight"
    assert [types(model, name, imatrix="i.dat")[down] for name in ("q4_0", "q5_0", "iq4_xs")] == [
        "q4_1",
        "q5_1",
        "iq4_xs",
    ]
    assert types(model, "q4_0", imatrix="i.dat")["blk.4.ffn_down.weight"] == "q4_0"
    value = "blk.0.attn_v.weight"
    assert [types(model, "iq3_xxs")[name] for name in (down, value)] == ["q4_k", "iq3_s"]
    assert [types(model, "iq3_xxs", imatrix="i.dat")[name] for name in (down, value)] == ["iq3_xxs", "iq3_xxs"]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("q4_k_s", 96, "q5_0"),
        ("q5_k_s", 96, "q5_1"),
        ("q6_k", 96, "q8_0"),
        ("q3_k_s", 96, "q4_0"),
        ("q2_k", 96, "q4_0"),
        ("tq1_0", 96, "q4_0"),
        ("iq4_xs", 96, "iq4_nl"),
        ("iq1_s", 96, "iq4_nl"),
        ("iq2_xxs", 96, "iq4_nl"),
        ("q2_0", 96, "q4_0"),
        ("q1_0", 96, "f16"),
        ("q8_0", 100, "f16"),
        ("q4_k_s", 100, "f16"),
    ],
)
def test_rows_that_do_not_fit_a_block(name: str, columns: int, expected: str) -> None:
    found = choices(gguf_model(32, columns=columns), name)["blk.9.attn_q.weight"]
    assert found.type_name == expected
    assert found.misfit == file_type(name).base
    assert found.reason == f"rows of {columns} do not fit {found.misfit}"


def test_the_output_falls_back_to_q8_0_where_the_base_does_not_fit() -> None:
    assert types(gguf_model(columns=96), "q4_k_m")["output.weight"] == "q8_0"
    assert types(gguf_model(columns=96), "iq4_nl")["output.weight"] == "q8_0"  # q6_k does not fit either


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (64, 64)),
        ("blk.0.attn_q.bias", (64, 64)),
        ("blk.0.ffn_gate_inp.weight", (8, 64)),
        ("blk.0.ssm_conv1d.weight", (64, 32)),
        ("position_embd.weight", (64, 64)),
        ("blk.0.attn_rel_b.weight", (64, 64)),
        ("rope_freqs.weight", (64,)),
        ("blk.0.ffn_up.weight", (1, 64)),  # a matrix of one row is a vector
    ],
)
def test_what_is_never_quantized(name: str, shape: tuple[int, ...]) -> None:
    import lbrx
    from lbrx.files.output.contents import PlannedTensor

    tensor = PlannedTensor.of(name, lbrx.full(shape, 0.0, "f16"))
    model = Contents("gguf", (tensor,), gguf_model().metadata)
    assert types(model, "q8_0")[name] == "f16"


def test_integers_stay() -> None:
    import lbrx
    from lbrx.files.output.contents import PlannedTensor

    tensor = PlannedTensor.of("blk.0.ffn_up.weight", lbrx.full((64, 64), 0, "i32"))
    model = Contents("gguf", (tensor,), gguf_model().metadata)
    assert choices(model, "q8_0")[tensor.name] == Choice("i32", "not floating point")


def test_aliases_and_numbers() -> None:
    numbers = {name: type_name.number for name, type_name in FILE_TYPES.items()}
    assert numbers == {
        "f32": 0,
        "f16": 1,
        "q4_0": 2,
        "q4_1": 3,
        "q8_0": 7,
        "q5_0": 8,
        "q5_1": 9,
        "q2_k": 10,
        "q3_k_s": 11,
        "q3_k_m": 12,
        "q3_k_l": 13,
        "q4_k_s": 14,
        "q4_k_m": 15,
        "q5_k_s": 16,
        "q5_k_m": 17,
        "q6_k": 18,
        "iq2_xxs": 19,
        "iq2_xs": 20,
        "q2_k_s": 21,
        "iq3_xs": 22,
        "iq3_xxs": 23,
        "iq1_s": 24,
        "iq3_s": 26,
        "iq3_m": 27,
        "iq2_s": 28,
        "iq2_m": 29,
        "iq1_m": 31,
        "q1_0": 40,
        "q2_0": 41,
        "iq4_nl": 25,
        "iq4_xs": 30,
        "bf16": 32,
        "tq1_0": 36,
        "tq2_0": 37,
        "mxfp4_moe": 38,
    }
    assert [file_type(alias).name for alias in ("Q3_K", "q4_k", "Q5_K")] == ["q3_k_m", "q4_k_m", "q5_k_m"]
    assert QuantizeOptions("Q4_K_M").target is FILE_TYPES["q4_k_m"]


# -- options ------------------------------------------------------------------------------------------------------


def test_the_first_pattern_that_matches_decides() -> None:
    found = choices(gguf_model(), "q4_k_m", tensor_types=["blk.0.*down=Q8_0", "ffn_(down|up)=q6_k"])
    assert found["blk.0.ffn_down.weight"] == Choice("q8_0", "--tensor-type blk.0.*down")
    assert found["blk.1.ffn_down.weight"] == Choice("q6_k", "--tensor-type ffn_(down|up)")
    assert found["blk.1.ffn_up.weight"].type_name == "q6_k"
    assert found["blk.1.ffn_gate.weight"].type_name == "q4_k"
    assert found["blk.1.ffn_norm.weight"].type_name == "bf16"


def test_patterns_of_a_file_come_after_those_of_options(tmp_path: Path) -> None:
    path = tmp_path / "types.txt"
    path.write_text("ffn_up=q6_k\nffn_down=q6_k  attn_k=Q8_0\n")
    found = types(gguf_model(), "q4_k_m", tensor_types=["ffn_up=q5_k"], tensor_type_file=path)
    assert [found[f"blk.0.{part}.weight"] for part in ("ffn_up", "ffn_down", "attn_k")] == ["q5_k", "q6_k", "q8_0"]
    path.write_text("ffn_up=q6_k ffn_down")
    with pytest.raises(UsageError, match=r"types.txt: 'ffn_down' is not a choice of types"):
        parse_options("q4_k_m", tensor_type_file=path)
    with pytest.raises(UsageError, match=r"--tensor-type-file .*missing.txt: .*No such file"):
        parse_options("q4_k_m", tensor_type_file=tmp_path / "missing.txt")


def test_tensors_of_a_pattern_are_not_counted() -> None:
    plain = types(gguf_model(32), "q4_k_s")
    found = types(gguf_model(32), "q4_k_s", tensor_types=["blk.0.ffn_down=q8_0"])
    assert [plain["blk.4.ffn_down.weight"], found["blk.4.ffn_down.weight"]] == ["q4_k", "q5_k"]


def test_patterns_hold_in_files_of_floats_too() -> None:
    assert types(gguf_model(), "f16", tensor_types=["ffn_up=q8_0"])["blk.0.ffn_up.weight"] == "q8_0"


def test_types_of_output_and_embedding() -> None:
    found = types(gguf_model(), "q4_k_m", output_type="Q8_0", embedding_type="q2_k")
    assert (found["output.weight"], found["token_embd.weight"]) == ("q8_0", "q2_k")
    tied = gguf_model(tied=True)
    assert types(tied, "q4_k_m", output_type="q8_0")["token_embd.weight"] == "q8_0"
    assert types(tied, "q4_k_m", output_type="q8_0", embedding_type="q5_k")["token_embd.weight"] == "q5_k"


def test_pure_is_one_type() -> None:
    found = types(gguf_model(32), "q4_k_m", pure=True)
    assert {type_name for name, type_name in found.items() if "norm" not in name} == {"q4_k"}
    assert types(gguf_model(), "q4_k_m", pure=True, output_type="q6_k")["output.weight"] == "q6_k"


def test_the_output_can_be_left() -> None:
    assert choices(gguf_model(), "q4_k_m", leave_output=True)["output.weight"] == Choice("bf16", "--leave-output")


def test_stacks_of_bailingmoe3_that_are_no_experts() -> None:
    for architecture, type_name in (("bailingmoe3", "q8_0"), ("llama", "mxfp4")):
        made = gguf_model(1, experts=8, architecture=architecture)
        stack = PlannedTensor.of("blk.0.attn_q.weight", lbrx.full((8, 256, 256), 0.0, "bf16"))
        rest = tuple(each for each in made.tensors if each.name != stack.name)
        chosen = types(replace(made, tensors=(*rest, stack)), "mxfp4_moe")
        assert chosen[stack.name] == type_name
        assert chosen["blk.0.ffn_up_exps.weight"] == "mxfp4"
