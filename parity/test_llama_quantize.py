"""Types and bytes of quantized files against llama.cpp's own ``llama_model_quantize``."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import lbrx
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.jobs.convert.file_types import FILE_TYPES
from lbrx.jobs.quantize import quantize

COLUMNS, HIDDEN, VOCABULARY = 256, 256, 96
EXACT = {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "tq1_0", "tq2_0", "q1_0", "q2_0"}
LEAST_SHARE_OF_EQUAL_BLOCKS = 0.99
NEEDS_IMATRIX = {"q2_k_s", "iq3_xs", "iq3_xxs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"}


def write_model(
    path: Path, *, experts: int = 0, key_heads: int = 8, tied: bool = False, columns: int = COLUMNS, kind: str = "f32"
) -> Path:
    layers = 8 if experts else 16
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, columns), "output_norm.weight": (columns,)}
    if not tied:
        shapes["output.weight"] = (VOCABULARY, columns)
    stack = (experts,) if experts else ()
    suffix = "_exps" if experts else ""
    for layer in range(layers):
        prefix = f"blk.{layer}"
        shapes |= {f"{prefix}.{norm}_norm.weight": (columns,) for norm in ("attn", "ffn")}
        shapes |= {f"{prefix}.attn_{part}.weight": (columns, columns) for part in ("q", "output")}
        shapes |= {f"{prefix}.attn_{part}.weight": (columns * key_heads // 8, columns) for part in "kv"}
        shapes |= {f"{prefix}.ffn_{part}{suffix}.weight": (*stack, HIDDEN, columns) for part in ("gate", "up")}
        shapes[f"{prefix}.ffn_down{suffix}.weight"] = (*stack, columns, HIDDEN)
        if experts:
            shapes[f"{prefix}.ffn_gate_inp.weight"] = (experts, columns)
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 64,
        "llama.embedding_length": columns,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": key_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": VOCABULARY,
    }
    if experts:
        metadata |= {"llama.expert_count": experts, "llama.expert_used_count": 2}
    tensors = {
        name: lbrx.normal(shape, 5, name).to(kind if len(shape) > 1 else "f32") for name, shape in shapes.items()
    }
    lbrx.save(path, tensors, metadata)
    return path


def importances(model: Path) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    found = lbrx.open(model)
    matrices = {name: found[name].shape for name in found if name.startswith("blk.") and len(found[name].shape) > 1}
    return {
        name: random.random(int(np.prod(shape[:-2])) * shape[-1], np.float32) + np.float32(0.05)
        for name, shape in matrices.items()
    }


def write_importances(path: Path, entries: dict[str, np.ndarray]) -> Path:
    tensors = {f"{name}.in_sum2": lbrx.tensor(values.reshape(1, -1)) for name, values in entries.items()}
    tensors |= {f"{name}.counts": lbrx.tensor(np.ones((1, 1), np.float32)) for name in entries}
    lbrx.save(path, tensors, {"general.type": "imatrix", "imatrix.datasets": ["a"], "imatrix.chunk_count": 1})
    return path


def llama_quantize(
    source: Path, out: Path, name: str, entries: dict[str, np.ndarray] | None = None, **fields: object
) -> None:
    """llama.cpp's quantization; fields of its parameters are set as given."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[name].number
    params.nthread = 2
    for field, value in fields.items():
        setattr(params, field, value)
    if entries is not None:
        floats = ctypes.POINTER(ctypes.c_float)
        rows = [(tensor.encode(), values.ctypes.data_as(floats), values.size) for tensor, values in entries.items()]
        params.imatrix = (llama_cpp.llama_model_imatrix_data * (len(rows) + 1))(*rows)
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params))
    assert status == 0


def compare(ours: Path, theirs: Path) -> None:
    """Same names and types, and the same bytes, or nearly all blocks where rounding depends on how ggml was built."""
    own, other = lbrx.open(ours), lbrx.open(theirs)
    assert {name: own[name].type_name for name in own} == {name: other[name].type_name for name in other}
    equal = total = 0
    for name in own:
        kind = GGML_TYPES[own[name].type_name]
        a, b = (model[name].raw().numpy().reshape(-1, kind.block_bytes) for model in (own, other))
        same = (a == b).all(axis=1)
        if kind.name in EXACT:
            assert same.all(), name
        else:
            equal, total = equal + int(same.sum()), total + same.size
    assert equal >= LEAST_SHARE_OF_EQUAL_BLOCKS * total, f"{equal} of {total} blocks are the same"
    keys = ("general.file_type", "general.quantization_version", "llama.block_count")
    assert {key: own.metadata[key] for key in keys} == {key: other.metadata[key] for key in keys}


MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "shared_keys": {"key_heads": 2},
    "mixtral": {"experts": 8},
    "tied": {"tied": True},
}


@pytest.fixture(scope="module", params=MODELS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("source") / "source.gguf", **MODELS[request.param])


@pytest.mark.parametrize("name", sorted(set(FILE_TYPES) - NEEDS_IMATRIX))
def test_every_file_type(source: Path, tmp_path: Path, name: str) -> None:
    llama_quantize(source, tmp_path / "theirs.gguf", name)
    quantize(source, tmp_path / "ours.gguf", name)
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_precision_sources(tmp_path: Path, kind: str) -> None:
    source = write_model(tmp_path / "source.gguf", kind=kind)
    llama_quantize(source, tmp_path / "theirs.gguf", "q4_k_m")
    quantize(source, tmp_path / "ours.gguf", "q4_k_m")
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize("name", ["q2_k", "q3_k_m", "q4_k_m", "q5_k_s", "q6_k", "iq4_xs", "iq4_nl", "tq2_0", "q2_0"])
def test_rows_that_do_not_fit(tmp_path: Path, name: str) -> None:
    source = write_model(tmp_path / "source.gguf", columns=96)
    llama_quantize(source, tmp_path / "theirs.gguf", name)
    quantize(source, tmp_path / "ours.gguf", name)
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize(
    "name",
    [
        *("q2_k", "q3_k_m", "q4_k_m", "q4_0", "q5_0", "q6_k", "iq4_xs", "iq4_nl", "iq3_m", "iq3_s"),
        *sorted(NEEDS_IMATRIX),
    ],
)
@pytest.mark.parametrize("experts", [0, 4])
def test_importance_matrices(tmp_path: Path, name: str, experts: int) -> None:
    source = write_model(tmp_path / "source.gguf", experts=experts)
    entries = importances(source)
    llama_quantize(source, tmp_path / "theirs.gguf", name, entries)
    quantize(source, tmp_path / "ours.gguf", name, imatrix=write_importances(tmp_path / "imatrix.gguf", entries))
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


OPTIONS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "pure": ({"pure": True}, {"pure": True}),
    "leave output": ({"quantize_output_tensor": False}, {"leave_output": True}),
    "output type": ({"output_tensor_type": GGML_TYPES["q8_0"].id}, {"output_type": "q8_0"}),
    "embedding type": ({"token_embedding_type": GGML_TYPES["q5_k"].id}, {"embedding_type": "q5_k"}),
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("tied", [False, True])
def test_options(tmp_path: Path, case: str, tied: bool) -> None:
    theirs, ours = OPTIONS[case]
    source = write_model(tmp_path / "source.gguf", tied=tied)
    llama_quantize(source, tmp_path / "theirs.gguf", "q4_k_m", **theirs)
    quantize(source, tmp_path / "ours.gguf", "q4_k_m", **ours)
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


def test_patterns(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source.gguf")
    rows = [(b"blk\\.[0-3]\\.ffn_down", GGML_TYPES["q8_0"].id), (b"ffn_(up|down)", GGML_TYPES["q5_k"].id)]
    patterns = (llama_cpp.llama_model_tensor_override * 3)(*rows)
    llama_quantize(source, tmp_path / "theirs.gguf", "q4_k_m", tt_overrides=patterns)
    types = [f"{pattern.decode()}={kind}" for (pattern, _), kind in zip(rows, ("q8_0", "q5_k"), strict=True)]
    quantize(source, tmp_path / "ours.gguf", "q4_k_m", tensor_types=types)
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


def test_removed_layers(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source.gguf")
    llama_quantize(source, tmp_path / "theirs.gguf", "q6_k", prune_layers=(ctypes.c_int32 * 4)(2, 3, 9, -1))
    quantize(source, tmp_path / "ours.gguf", "q6_k", prune_layers="2,3,9")
    compare(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
