"""GGUF models quantized: values, metadata, importance matrices, removed layers."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.errors import FormatError, UsageError
from lbrx.files.formats.gguf_values import Typed
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.quantize import QuantizeOptions, parse_options, plan_contents, quantized
from support.quantizing_models import gguf_model, noise

UP = "blk.1.ffn_up.weight"


def importance_file(path: Path, entries: dict[str, np.ndarray]) -> Path:
    """A legacy importance matrix of one call."""
    pieces = [struct.pack("<i", len(entries))]
    for name, values in entries.items():
        raw = name.encode()
        pieces.append(struct.pack(f"<i{len(raw)}sii", len(raw), raw, 1, values.size))
        pieces.append(values.astype("<f4").tobytes())
    dataset = b"text.txt"
    pieces.append(struct.pack(f"<ii{len(dataset)}s", 7, len(dataset), dataset))
    path.write_bytes(b"".join(pieces))
    return path


def importances(model: Contents, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    weights = [tensor for tensor in model.tensors if "blk" in tensor.name and len(tensor.shape) > 1]
    return {t.name: random.random(int(np.prod(t.shape[:-2])) * t.shape[-1], np.float32) + 0.1 for t in weights}


def same_bytes(a: lbrx.Tensor, b: lbrx.Tensor) -> bool:
    return a.type_name == b.type_name and np.array_equal(a.realize().raw().numpy(), b.realize().raw().numpy())


def test_tensors_are_coded_in_their_types() -> None:
    model = gguf_model(values=noise)
    result = quantized(model, QuantizeOptions("q4_k_m"))
    for before, after in zip(model.tensors, result.tensors, strict=True):
        made = after.make()
        assert (after.name, after.shape, after.type_name) == (before.name, before.shape, made.type_name)
        expected = before.make()
        if after.type_name != before.type_name:
            expected = expected.quantize(after.type_name)
        assert same_bytes(made, expected)


def test_a_file_of_floats() -> None:
    model = gguf_model(values=noise)
    found = quantized(model, QuantizeOptions("bf16")).by_name[UP]
    assert found.type_name == "bf16"
    assert np.array_equal(found.make().numpy(), model.by_name[UP].make().to("bf16").numpy())


def test_the_metadata_says_what_it_is() -> None:
    split = {"split.no": Typed(0, "u16"), "split.count": Typed(2, "u16"), "general.name": "a"}
    metadata = quantized(gguf_model(metadata=split), QuantizeOptions("q5_k_s")).metadata
    assert metadata["general.file_type"] == Typed(16, "u32")
    assert metadata["general.quantization_version"] == Typed(2, "u32")
    assert metadata["general.name"].value == "a"
    assert not any(key.startswith(("split.", "quantize.")) for key in metadata)


def test_keys_are_overridden_in_the_type_that_they_have() -> None:
    own = {"llama.rope.freq_base": Typed(1e4, "f32"), "llama.context_length": Typed(8, "u64")}
    pairs = [
        "llama.context_length=int:4096",
        "llama.rope.freq_base=str:x",
        "new.key=bool:true",
        "general.file_type=int:99",
    ]
    metadata = quantized(gguf_model(metadata=own), parse_options("q8_0", override_kv=pairs)).metadata
    assert metadata["llama.context_length"] == Typed(4096, "u64")
    assert metadata["llama.rope.freq_base"] == Typed("x", "str")
    assert metadata["new.key"] == Typed(True, "bool")
    assert metadata["general.file_type"] == Typed(99, "u32")


def test_an_overridden_key_decides_types_too() -> None:
    options = parse_options("q4_k_m", override_kv=["llama.expert_count=int:8"])
    assert quantized(gguf_model(), options).by_name["blk.0.attn_k.weight"].type_name == "q8_0"


def test_a_quantized_source_is_refused_unless_allowed() -> None:
    coded = quantized(gguf_model(values=noise), QuantizeOptions("q8_0"))
    with pytest.raises(UsageError, match=r"'token_embd.weight' is q8_0 already, .* as q4_k; .* --allow-requantize"):
        quantized(coded, QuantizeOptions("q4_k_s"))
    again = quantized(coded, QuantizeOptions("q4_k_s", allow_requantize=True)).by_name[UP].make()
    assert same_bytes(again, coded.by_name[UP].make().dequantize().quantize("q4_k"))


@pytest.mark.parametrize("float_type", ["f32", "f16", "bf16"])
def test_a_quantized_source_can_be_decoded(float_type: str) -> None:
    coded = quantized(gguf_model(values=noise), QuantizeOptions("q8_0"))
    plain = quantized(coded, QuantizeOptions(float_type)).by_name[UP].make()
    assert plain.type_name == float_type
    assert same_bytes(plain, coded.by_name[UP].make().dequantize().to(float_type))
    with pytest.raises(UsageError, match=r"ffn_up.weight' is q8_0 already, .* as q4_k; .* --allow-requantize"):
        quantized(coded, parse_options(float_type, tensor_types=["ffn_up=q4_k"]))


def test_tensors_that_have_their_type_already_are_copied() -> None:
    coded = quantized(gguf_model(values=noise), QuantizeOptions("q8_0"))
    again = quantized(coded, QuantizeOptions("q8_0"))
    assert [tensor.make is other.make for tensor, other in zip(again.tensors, coded.tensors, strict=True)] == [
        True for _ in coded.tensors
    ]


def test_rows_that_do_not_fit_are_warned_of() -> None:
    warnings = quantized(gguf_model(1, columns=96, hidden=96), QuantizeOptions("q4_k_s")).warnings
    assert set(warnings) == {
        "7 tensors of type q5_0: rows of 96 do not fit q4_k",
        "1 tensor of type q5_1: rows of 96 do not fit q5_k",
    }


# -- importance matrices ------------------------------------------------------------------------------------------


def test_importances_are_used_where_the_type_takes_them(tmp_path: Path) -> None:
    model = gguf_model(values=noise)
    values = importances(model)
    path = importance_file(tmp_path / "imatrix.dat", values)
    result = quantized(model, QuantizeOptions("q4_k_s", imatrix=path))
    made = result.by_name[UP].make()
    assert same_bytes(made, model.by_name[UP].make().quantize("q4_k", values[UP]))
    assert not same_bytes(made, model.by_name[UP].make().quantize("q4_k"))
    plain = quantized(model, QuantizeOptions("q8_0", imatrix=path)).by_name[UP].make()
    assert same_bytes(plain, model.by_name[UP].make().quantize("q8_0"))


def test_each_expert_has_importances_of_its_own(tmp_path: Path) -> None:
    model = gguf_model(1, experts=4, values=noise)
    values = importances(model)
    path = importance_file(tmp_path / "imatrix.dat", values)
    name = "blk.0.ffn_up_exps.weight"
    made = quantized(model, QuantizeOptions("q4_k_s", imatrix=path)).by_name[name].make()
    assert same_bytes(made, model.by_name[name].make().quantize("q4_k", values[name].reshape(4, -1)))


def test_the_file_tells_of_its_importance_matrix(tmp_path: Path) -> None:
    model = gguf_model()
    path = importance_file(tmp_path / "imatrix.dat", importances(model))
    metadata = quantized(model, QuantizeOptions("q4_k_s", imatrix=path)).metadata
    assert {key: typed for key, typed in metadata.items() if key.startswith("quantize.")} == {
        "quantize.imatrix.file": Typed("imatrix.dat", "str"),
        "quantize.imatrix.dataset": Typed("text.txt", "str"),
        "quantize.imatrix.entries_count": Typed(14, "u32"),
        "quantize.imatrix.chunks_count": Typed(7, "u32"),
    }


def test_missing_importances_are_warned_of(tmp_path: Path) -> None:
    model = gguf_model()
    values = importances(model)
    del values[UP]
    result = quantized(model, QuantizeOptions("q4_k_s", imatrix=importance_file(tmp_path / "i.dat", values)))
    assert [warning.split(": ")[1] for warning in result.warnings] == [
        f"has no importances of 2 tensors, such as {UP!r}"  # the output has none either
    ]


def test_a_type_that_needs_importances(tmp_path: Path) -> None:
    model = gguf_model()
    with pytest.raises(UsageError, match=r"'blk.0.attn_q.weight': q2_k in a q2_k_s file needs importances; give"):
        quantized(model, QuantizeOptions("q2_k_s"))
    values = importances(model)
    path = importance_file(tmp_path / "i.dat", values)
    assert quantized(model, QuantizeOptions("q2_k_s", imatrix=path)).by_name[UP].type_name == "q2_k"
    del values[UP]
    with pytest.raises(UsageError, match=rf"{UP}': q2_k in a q2_k_s file needs importances, and .* has none of them"):
        quantized(model, QuantizeOptions("q2_k_s", imatrix=importance_file(tmp_path / "j.dat", values)))


def test_codebook_types_use_importances(tmp_path: Path) -> None:
    model = gguf_model(values=noise)
    values = importances(model)
    path = importance_file(tmp_path / "imatrix.dat", values)
    result = quantized(model, QuantizeOptions("iq2_xxs", imatrix=path))
    assert result.metadata["general.file_type"] == Typed(19, "u32")
    assert same_bytes(result.by_name[UP].make(), model.by_name[UP].make().quantize("iq2_xxs", values[UP]))
    with pytest.raises(UsageError, match=r"'blk.0.attn_q.weight': iq2_xxs in a iq2_xxs file needs importances; give"):
        quantized(model, QuantizeOptions("iq2_xxs"))
    with pytest.raises(UsageError, match=r"'token_embd.weight': iq2_xs in a q8_0 file needs importances"):
        quantized(model, QuantizeOptions("q8_0", embedding_type="iq2_xs"))


def test_importances_of_some_tensors(tmp_path: Path) -> None:
    model = gguf_model(values=noise)
    values = importances(model)
    path = importance_file(tmp_path / "i.dat", values)
    query = "blk.0.attn_q.weight"
    plain, guided = (model.by_name[UP].make().quantize("q4_k", given) for given in (None, values[UP]))
    without = quantized(model, QuantizeOptions("q4_k_s", imatrix=path, exclude_weights=("ffn", "attn_v")))
    assert same_bytes(without.by_name[UP].make(), plain)
    assert same_bytes(without.by_name[query].make(), model.by_name[query].make().quantize("q4_k", values[query]))
    assert without.metadata["quantize.imatrix.entries_count"] == Typed(6, "u32")
    assert [warning.split(": ")[1] for warning in without.warnings] == [
        "has no importances of 1 tensors, such as 'output.weight'"
    ]
    only = quantized(model, QuantizeOptions("q4_k_s", imatrix=path, include_weights=("ffn_up", "attn_v")))
    assert same_bytes(only.by_name[UP].make(), guided)
    assert same_bytes(only.by_name[query].make(), model.by_name[query].make().quantize("q4_k"))
    with pytest.raises(UsageError, match=r"--include-weights ffn_uq: no name in .*i.dat contains it"):
        quantized(model, QuantizeOptions("q4_k_s", imatrix=path, include_weights=("ffn_uq",)))
    with pytest.raises(UsageError, match="--exclude-weights leaves no importances"):
        quantized(model, QuantizeOptions("q4_k_s", imatrix=path, exclude_weights=("blk",)))


def test_importances_of_another_model(tmp_path: Path) -> None:
    path = importance_file(tmp_path / "i.dat", {UP: np.ones(99, np.float32)})
    with pytest.raises(FormatError, match=rf"has 99 importances of '{UP}', expected 256 for its shape"):
        quantized(gguf_model(), QuantizeOptions("q4_k_s", imatrix=path))


def test_importances_that_are_no_numbers(tmp_path: Path) -> None:
    path = importance_file(tmp_path / "i.dat", {UP: np.full(256, np.nan, np.float32)})
    with pytest.raises(FormatError, match="not all finite"):
        quantized(gguf_model(), QuantizeOptions("q4_k_s", imatrix=path))


def test_a_file_that_is_no_importance_matrix(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("    some text, of which the first bytes are a large number")
    with pytest.raises(FormatError, match=r"text.txt: is not an importance matrix; expected a GGUF or legacy"):
        quantized(gguf_model(), QuantizeOptions("q4_k_s", imatrix=path))


def test_the_file_type_of_experts_warns_without_experts() -> None:
    warnings = quantized(gguf_model(), QuantizeOptions("mxfp4_moe")).warnings
    assert warnings == ("the model has no stacks of experts, which mxfp4_moe is for: its matrices become q8_0",)
    assert quantized(gguf_model(experts=4), QuantizeOptions("mxfp4_moe")).warnings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("general.architecture=str:qwen2", "architecture 'llama', which cannot be changed"),
        ("llama.block_count=int:1", "the model has tensors of 2 layers; use --prune-layers"),
    ],
)
def test_keys_that_contradict_the_tensors_are_not_set(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quantized(gguf_model(), parse_options("q8_0", override_kv=[text]))
    same = parse_options("q8_0", override_kv=["general.architecture=str:llama", "llama.block_count=int:2"])
    assert quantized(gguf_model(), same).metadata["llama.block_count"].value == 2


# -- removed layers -----------------------------------------------------------------------------------------------


def test_layers_are_removed_and_the_others_move_up() -> None:
    model = gguf_model(4, values=noise)
    result = quantized(model, QuantizeOptions("q8_0", prune_layers=(0, 2)))
    assert result.metadata["llama.block_count"].value == 2
    layers = {tensor.name.split(".")[1] for tensor in result.tensors if tensor.name.startswith("blk.")}
    assert layers == {"0", "1"}
    for new, old in ((0, 1), (1, 3)):
        made = result.by_name[f"blk.{new}.ffn_up.weight"].make()
        assert same_bytes(made, model.by_name[f"blk.{old}.ffn_up.weight"].make().quantize("q8_0"))


def test_numbers_of_each_layer_follow() -> None:
    keys = {"llama.attention.head_count_kv": Typed(np.array([1, 2, 3, 4], np.int32), "array[i32]")}
    model = gguf_model(4, metadata=keys | {"llama.rope.dimension_sections": [1, 2, 3, 4]})
    metadata = quantized(model, QuantizeOptions("q8_0", prune_layers=(1,))).metadata
    assert metadata["llama.attention.head_count_kv"].value.tolist() == [1, 3, 4]
    assert list(metadata["llama.rope.dimension_sections"].value) == [1, 2, 3, 4]


def test_importances_go_by_the_old_names(tmp_path: Path) -> None:
    model = gguf_model(3, values=noise)
    values = importances(model)
    path = importance_file(tmp_path / "i.dat", values)
    result = quantized(model, QuantizeOptions("q4_k_s", imatrix=path, prune_layers=(0,)))
    old = "blk.2.ffn_up.weight"
    assert same_bytes(result.by_name[UP].make(), model.by_name[old].make().quantize("q4_k", values[old]))


def test_layers_that_cannot_be_removed() -> None:
    with pytest.raises(UsageError, match="layer 2 cannot be removed; expected one of 0 to 1"):
        quantized(gguf_model(2), QuantizeOptions("q8_0", prune_layers=(2,)))
    with pytest.raises(UsageError, match="all 2 layers would be removed"):
        quantized(gguf_model(2), QuantizeOptions("q8_0", prune_layers=(0, 1)))


# -- metadata that says too little --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no 'general.architecture'"),
        ({"general.architecture": "llama"}, "None as 'llama.block_count'"),
        ({"general.architecture": "llama", "llama.block_count": "2"}, "'2' as 'llama.block_count'"),
    ],
)
def test_metadata_without_what_rules_ask_for(metadata: dict[str, object], message: str) -> None:
    model = replace(gguf_model(), metadata=metadata)
    with pytest.raises(FormatError, match=message):
        quantized(model, QuantizeOptions("q4_k_m"))


def test_totals() -> None:
    tensors = (
        PlannedTensor.of("blk.0.ffn_up.weight", lbrx.full((4, 256), 0.0, "f32")),
        PlannedTensor.of("output_norm.weight", lbrx.full((256,), 0.0, "f32")),
    )
    model = Contents("gguf", tensors, gguf_model().metadata)
    plan = plan_contents(model, QuantizeOptions("q8_0"))
    assert (plan.parameters, plan.nbytes) == (1280, 4 * 8 * 34 + 1024)
    assert plan.bits_per_weight == 8 * plan.nbytes / 1280
    assert [(row.type_name, row.tensors, row.nbytes) for row in plan.type_totals()] == [
        ("q8_0", 1, 1088),
        ("f32", 1, 1024),
    ]
