"""Error feedback for experts, for the output matrix and for an embedding that is the output matrix as well."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.moe.moe import moe
from lbrx.jobs.quantize import feedback, quantize
from lbrx.jobs.quantize.feedback_pieces import feedback_warnings
from lbrx.jobs.quantize.options import parse_options
from lbrx.jobs.quantize.quantize import plan_quantize
from lbrx.jobs.score.score import score

HELD_OUT = demo_models().prose_text.read_text(encoding="utf-8")[:800]
ROUTER = "model.layers.{}.block_sparse_moe.gate.weight"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(calibration_text()[:4000])
    return path


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like Mixtral with three trained experts."""
    models, folder = demo_models(), tmp_path_factory.mktemp("mixture")
    experts = ", ".join(f"{{source_model: {each}}}" for each in (models.prose, models.code, models.base))
    (folder / "recipe.yml").write_text(f"{{base_model: {models.base}, gate_mode: random, experts: [{experts}]}}")
    moe(folder / "recipe.yml", folder / "model")
    return folder / "model"


def divergence(source: Path, *outputs: Path) -> list[float]:
    """The mean divergences of outputs from their source."""
    scores = score(list(outputs), HELD_OUT, reference=source)[1:]
    return [each.divergence.mean for each in scores if each.divergence is not None]


@pytest.mark.parametrize("name", ["q4_0", "mlx_4", "ct_int4"])
def test_mixtures_are_closer_to_the_original_at_the_same_size(
    tmp_path: Path, mixture: Path, text: Path, name: str
) -> None:
    ending = ".gguf" if name == "q4_0" else ""
    plain, better = tmp_path / f"plain{ending}", tmp_path / f"better{ending}"
    quantize(mixture, plain, name, calibrate=text)
    quantize(mixture, better, name, calibrate=text, feedback=True)
    first, second = divergence(mixture, plain, better)
    assert second < 0.6 * first
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def like_qwen3(mixture: Path, folder: Path, *, is_stacked: bool) -> Path:
    """The same experts in a model like Qwen3-MoE: each is three tensors, or all are two stacks."""
    shutil.copytree(mixture, folder)
    (folder / "model.safetensors").unlink()
    tensors = {name: tensor.numpy() for name, tensor in lbrx.open(mixture).items()}
    config = json.loads((mixture / "config.json").read_text())
    experts, own = config.pop("num_local_experts"), dict[str, np.ndarray]()
    for name, values in tensors.items():
        block, found, rest = name.partition(".block_sparse_moe.")
        if not found:
            own[name] = values
        elif rest == "gate.weight":
            own[f"{block}.mlp.gate.weight"] = values
        else:
            _, number, part, _ = rest.split(".")
            own[f"{block}.mlp.experts.{number}.{PROJECTIONS[part]}.weight"] = values
    for layer in range(config["num_hidden_layers"]):
        own |= {f"model.layers.{layer}.self_attn.{part}_norm.weight": np.ones(64, np.float32) for part in "qk"}
        if is_stacked:
            mlp = f"model.layers.{layer}.mlp.experts"
            gate, up, down = (
                [own.pop(f"{mlp}.{number}.{part}.weight") for number in range(experts)]
                for part in ("gate_proj", "up_proj", "down_proj")
            )
            own[f"{mlp}.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            own[f"{mlp}.down_proj"] = np.stack(down)
    config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": experts}
    config |= {"moe_intermediate_size": config["intermediate_size"], "norm_topk_prob": True, "decoder_sparse_step": 1}
    (folder / "config.json").write_text(json.dumps({**config, "mlp_only_layers": []}))
    lbrx.save(folder / "model.safetensors", {name: lbrx.tensor(values) for name, values in own.items()})
    return folder


@pytest.mark.parametrize(("name", "is_stacked"), [("q4_0", False), ("q4_0", True), ("mlx_4", True), ("ct_int4", True)])
def test_experts_like_those_of_qwen3_gain(
    tmp_path: Path, mixture: Path, text: Path, name: str, is_stacked: bool
) -> None:
    source = like_qwen3(mixture, tmp_path / "source", is_stacked=is_stacked)
    ending = ".gguf" if name == "q4_0" else ""
    plain, better = tmp_path / f"plain{ending}", tmp_path / f"better{ending}"
    quantize(source, plain, name, calibrate=text)
    quantize(source, better, name, calibrate=text, feedback=True)
    first, second = divergence(source, plain, better)
    assert second < 0.6 * first


def test_experts_alone_gain(tmp_path: Path, mixture: Path, text: Path) -> None:
    """Tensors of experts are the only ones that are quantized."""
    outputs = []
    for has_feedback in (False, True):
        outputs.append(tmp_path / f"{has_feedback}.gguf")
        types = ["exps=q4_0", "output=f16"]
        quantize(mixture, outputs[-1], "f16", tensor_types=types, calibrate=text, feedback=has_feedback)
    first, second = divergence(mixture, *outputs)
    assert second < 0.6 * first


@pytest.mark.parametrize("name", ["q4_0", "mlx_4"])
def test_some_experts_at_a_time_have_the_same_bytes(
    tmp_path: Path, mixture: Path, text: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []
    for most_bytes in (1 << 30, 1):
        monkeypatch.setattr(feedback, "MOST_GRAM_BYTES", most_bytes)
        out = tmp_path / (f"{most_bytes}.gguf" if name == "q4_0" else str(most_bytes))
        quantize(mixture, out, name, calibrate=text, feedback=True)
        encoded.append(_bytes_of_tensors(out))
    assert encoded[0] == encoded[1]


def _bytes_of_tensors(path: Path) -> list[bytes]:
    """Of a directory the weights, of a GGUF file its values: the metadata have the name of the importance matrix."""
    if path.is_dir():
        return [(path / "model.safetensors").read_bytes()]
    return [tensor.dequantize().numpy().tobytes() for tensor in lbrx.open(path).values()]


def test_a_stopped_run_continues_within_a_stack(
    tmp_path: Path, mixture: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, stored = feedback.store_piece, []

    def stopping(*given: object) -> None:
        original(*given)  # type: ignore[arg-type]
        stored.append(given)
        if len(stored) == 9:
            raise KeyboardInterrupt

    arguments = {"calibrate": text, "feedback": True}
    quantize(mixture, tmp_path / "whole.gguf", "q4_0", **arguments)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(feedback, "store_piece", stopping)
        with pytest.raises(KeyboardInterrupt):
            quantize(mixture, tmp_path / "b.gguf", "q4_0", **arguments)  # type: ignore[arg-type]
    items = [path.name for path in (tmp_path / ".b.gguf.feedback").glob("*].q4_0.blocks")]
    assert "blk.0.ffn_gate_exps.weight[0].q4_0.blocks" in items
    quantize(mixture, tmp_path / "b.gguf", "q4_0", **arguments)  # type: ignore[arg-type]
    whole, resumed = lbrx.open(tmp_path / "whole.gguf"), lbrx.open(tmp_path / "b.gguf")
    assert all(np.array_equal(whole[name].numpy(), resumed[name].numpy()) for name in whole)


def test_experts_without_tokens_are_encoded_with_a_warning(tmp_path: Path, mixture: Path, text: Path) -> None:
    """Routers never choose the last expert, because its scores are those of the first one."""
    source = tmp_path / "model"
    shutil.copytree(mixture, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 1}))
    tensors = dict(lbrx.open(mixture).items())
    for layer in range(config["num_hidden_layers"]):
        rows = tensors[ROUTER.format(layer)].numpy()
        tensors[ROUTER.format(layer)] = lbrx.tensor(rows[[0, 1, 0]])
    lbrx.save(source / "model.safetensors", {name: tensor.realize() for name, tensor in tensors.items()})
    out = tmp_path / "a.gguf"
    plan = plan_quantize(source, out, parse_options("q4_0"))
    folder = feedback.encode_layers(source, out, plan.quantization, [text])
    layers = range(config["num_hidden_layers"])
    expected = tuple(f"layer {layer}: 1 of 3 experts gets no token of the texts: 2" for layer in layers)
    assert feedback_warnings(folder) == expected
    with_feedback = plan_quantize(source, out, parse_options("q4_0", feedback=folder))
    assert set(expected) <= set(with_feedback.output.warnings)
    values = {tensor.name: tensor.make() for tensor in with_feedback.quantization.contents.tensors}
    given = {tensor.source.name: tensor.source.make() for tensor in plan.quantization.coded}
    for name, most in (("blk.0.ffn_up_exps.weight", 1.3), ("blk.0.ffn_down_exps.weight", 1.01)):
        exact, coded = (each[name].dequantize().numpy()[2].astype(np.float32) for each in (given, values))
        plain = lbrx.tensor(exact).quantize("q4_0").numpy()
        assert 0 < np.square(coded - exact).mean() < most * np.square(plain - exact).mean()


@pytest.mark.parametrize("is_tied", [False, True])
def test_output_matrices_gain(tmp_path: Path, text: Path, is_tied: bool) -> None:
    """The output matrix, or the embedding that is one, is the only tensor that is quantized."""
    source = tmp_path / "model"
    shutil.copytree(demo_models().base, source)
    config = json.loads((source / "config.json").read_text())
    tensors = dict(lbrx.open(demo_models().base).items())
    if is_tied:
        tensors.pop("lm_head.weight", None)
    else:
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": is_tied}))
    (source / "model.safetensors").unlink()
    lbrx.save(source / "model.safetensors", tensors)
    outputs = []
    for has_feedback in (False, True):
        outputs.append(tmp_path / f"{has_feedback}.gguf")
        wanted = "token_embd=q4_0" if is_tied else "output.weight=q4_0"
        quantize(source, outputs[-1], "f16", tensor_types=[wanted], calibrate=text, feedback=has_feedback)
    first, second = divergence(source, *outputs)
    assert second < 0.85 * first
