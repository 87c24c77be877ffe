"""Options: what they mean, and what wrong ones say."""

from __future__ import annotations

import pytest

from lbrx.errors import UsageError
from lbrx.files.formats.gguf_values import Typed
from lbrx.jobs.quantize import KeyOverride, QuantizeOptions, TypeOverride, parse_options, target_names
from lbrx.jobs.quantize.targets import IntegerTarget, MlxTarget, find_target, mlx_name
from lbrx.tensors.codecs.mlx import MlxMode


@pytest.mark.parametrize("name", target_names())
def test_every_target_has_a_name_that_finds_it(name: str) -> None:
    target = find_target(name.upper())
    if isinstance(target, MlxTarget) and target.high_mode is None:
        assert mlx_name(target.mode) == name
    elif isinstance(target, IntegerTarget):
        assert target.scheme == name


def test_targets_of_mlx() -> None:
    assert find_target("mixed_3_6") == MlxTarget(MlxMode(bits=3), MlxMode(bits=6))
    assert find_target("mlx_8", 32) == MlxTarget(MlxMode(bits=8, group_size=32))
    assert find_target("mlx_mxfp4") == MlxTarget(MlxMode("mxfp4", 4, 32))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("q4_k_n", "did you mean 'q4_k_"),
        ("mlx4", "did you mean 'mlx_4'"),
        ("nvfp4", "is a tensor type, not a file type"),
        ("", "unknown quantization ''"),
    ],
)
def test_an_unknown_target(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_target(name)


def test_group_sizes_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="q4_k_m has blocks of a fixed size"):
        QuantizeOptions("q4_k_m", group_size=32)
    with pytest.raises(UsageError, match="MLX has no affine encoding with 4 bits in groups of 48"):
        QuantizeOptions("mlx_4", group_size=48)
    with pytest.raises(UsageError, match="MLX has no encoding 'mxfp4' with 4 bits in groups of 64"):
        QuantizeOptions("mlx_mxfp4", group_size=64)


@pytest.mark.parametrize("text", ["ffn_down", "=q6_k", "ffn_down="])
def test_a_choice_of_types_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected PATTERN=TYPE"):
        TypeOverride.parse(text)


def test_a_bad_pattern() -> None:
    with pytest.raises(UsageError, match=r"'ffn_\(down' is not a regular expression"):
        TypeOverride.parse("ffn_(down=q6_k")


def test_a_pattern_can_have_an_equals_sign() -> None:
    assert TypeOverride.parse("a(?=b)=q6_k") == TypeOverride("a(?=b)", "q6_k")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_types": ["ffn=q6k"]}, "--tensor-type ffn: 'q6k' is not a type of tensors.*did you mean 'q6_k'"),
        ({"output_type": "q4_k_m"}, "--output-type: 'q4_k_m' is not a type of tensors"),
        ({"imatrix": "i.dat", "include_weights": ["a"], "exclude_weights": ["b"]}, "cannot be used together"),
        ({"include_weights": ["ffn"]}, "--include-weights needs --imatrix"),
        ({"exclude_weights": ["ffn"]}, "--exclude-weights needs --imatrix"),
        ({"prune_layers": "a"}, "'a' is not a layer"),
        ({"prune_layers": "5-3"}, "'5-3' is not a layer"),
        ({"prune_layers": [-1]}, "layer -1 cannot be removed"),
        ({"target_bpw": 4.0}, "more than one is given"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options("q4_k_m", **options)  # type: ignore[arg-type]


def test_no_goal_or_an_impossible_one() -> None:
    with pytest.raises(UsageError, match="none is given"):
        QuantizeOptions()
    with pytest.raises(UsageError, match=r"0.0 bits per weight are not possible"):
        QuantizeOptions(target_bpw=0.0)
    with pytest.raises(UsageError, match="no types to choose from"):
        parse_options(target_bpw=4.0, candidates="")
    with pytest.raises(UsageError, match="'4 giga' is not a number of bytes"):
        parse_options(target_size="4 giga")
    with pytest.raises(UsageError, match="--candidates: 'q9' is not a type"):
        parse_options(target_bpw=4.0, candidates="q9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pure": True}, "--pure is for GGUF files, and mlx_4 makes MLX"),
        ({"keep_split": True}, "--keep-split"),
        ({"override_kv": ["a=int:1"]}, "--override-kv"),
        ({"prune_layers": "1"}, "--prune-layers"),
        ({"tensor_types": ["v_proj=q6_k"]}, "'q6_k' is not a coding of MLX"),
        ({"output_type": "mlx_7"}, "'mlx_7' is not a coding of MLX.*did you mean 'mlx_"),
    ],
)
def test_options_that_mlx_does_not_have(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_options("mlx_4", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("type_name", ["mlx_mxfp4", "int4", "ct_fp8"])
def test_types_without_importances(type_name: str) -> None:
    with pytest.raises(UsageError, match=f"{type_name} is rounded without importances; --imatrix and --calibrate are"):
        parse_options(type_name, imatrix="i.dat")


def test_types_that_do_not_go_with_integers() -> None:
    with pytest.raises(UsageError, match="'int8' does not go with int4"):
        parse_options("int4", output_type="int8")


@pytest.mark.parametrize(
    ("text", "key", "typed"),
    [
        ("a.b=int:8192", "a.b", Typed(8192, "u32")),
        ("a.b=int:-1", "a.b", Typed(-1, "i32")),
        ("a.b=float:0.5", "a.b", Typed(0.5, "f32")),
        ("a.b=bool:true", "a.b", Typed(True, "bool")),
        ("a.b=str:x=y:z", "a.b", Typed("x=y:z", "str")),
        ("a.b=u64:3", "a.b", Typed(3, "u64")),
    ],
)
def test_keys_with_values(text: str, key: str, typed: Typed) -> None:
    assert KeyOverride.parse(text) == KeyOverride(key, typed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "expected KEY=TYPE:VALUE"),
        ("a.b=3", "expected KEY=TYPE:VALUE"),
        ("=int:3", "expected KEY=TYPE:VALUE"),
        ("a.b=integer:3", "'integer' is not a type of values.*did you mean 'int'"),
        ("a.b=int:three", "'three' is not a whole number"),
        ("a.b=float:x", "'x' is not a number"),
        ("a.b=bool:yes", "'yes' is not a bool"),
        ("a.b=u8:300", "'300' does not fit u8"),
    ],
)
def test_keys_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KeyOverride.parse(text)


def test_the_identity_tells_what_differs() -> None:
    one, other = (parse_options("q4_k_m", tensor_types=types).identity() for types in ([], ["ffn=q6_k"]))
    assert [key for key in one if one[key] != other[key]] == ["types (--tensor-type)"]
