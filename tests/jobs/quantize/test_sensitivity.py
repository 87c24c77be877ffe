"""Types chosen for a size by the divergence of the model's predictions: measured, kept, resumed and used."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import UsageError
from lbrx.jobs.quantize import QuantizeOptions, plan_quantize
from lbrx.jobs.quantize.sensitivity import Trial, _tried, read_sensitivities
from lbrx.models.inference import open_model
from lbrx.models.inference.divergence import DivergenceRun
from lbrx.models.inference.watching import gguf_names, matrices_by_name
from lbrx.models.inference.weights import Matrix
from support.cli_running import lbrx_command

SHIPPED = demo_models()
MLX = "mlx_2,mlx_3,mlx_4,mlx_6,mlx_8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SHIPPED.prose, tmp_path / "prose")
    text = SHIPPED.prose_text.read_text(encoding="utf-8")
    (tmp_path / "calibration.txt").write_text(text[:1500], encoding="utf-8")
    (tmp_path / "held_out.txt").write_text(text[-4000:], encoding="utf-8")
    return tmp_path


def log_shares(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("tensor", ["blk.0.attn_v.weight", "blk.2.ffn_down.weight", "token_embd.weight"])
def test_the_divergence_is_that_of_a_model_with_one_changed_tensor(folder: Path, tensor: str) -> None:
    lbrx.convert(folder / "prose", folder / "a.gguf", type="f32")
    source = lbrx.open(folder / "a.gguf")
    changed = {name: source[name] for name in source}
    changed[tensor] = source[tensor].quantize("q4_0")
    lbrx.save(folder / "b.gguf", changed, source.metadata)
    text = list(range(3, 60))
    expected, found = (log_shares(open_model(folder / name).logits(text)) for name in ("a.gguf", "b.gguf"))
    divergence = float((np.exp(expected) * (expected - found)).sum(axis=1).mean())

    model = open_model(folder / "a.gguf")
    run = DivergenceRun(model, [text])
    if tensor == "token_embd.weight":
        measured = run.with_embedding(model.weights.embedding.quantize("q4_0").realize())
    else:
        for _ in range(int(tensor.split(".")[1])):
            run.advance()
        ((matrix, _),) = matrices_by_name(model.spec, model.weights)[tensor]
        measured = run.with_matrices({id(matrix): Matrix(matrix.weight.quantize("q4_0").realize(), matrix.bias)})
    assert divergence > 1e-5
    assert measured == pytest.approx(divergence, rel=0.02)


def test_names_of_mlx_are_those_of_gguf() -> None:
    model = open_model(SHIPPED.prose)
    names = gguf_names(model.spec, ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight", "other"])
    assert names == {
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.embed_tokens.weight": "token_embd.weight",
    }


def divergence(model: Path, folder: Path) -> float:
    _, coded = lbrx.score(model, folder / "held_out.txt", reference=folder / "prose")
    assert coded.divergence is not None
    return coded.divergence.mean


def test_the_mix_is_better_than_those_of_the_same_size(folder: Path) -> None:
    text, source = folder / "calibration.txt", folder / "prose"
    lbrx.quantize(source, folder / "mix.gguf", "q4_k_m", calibrate=text)
    size = (folder / "mix.gguf").stat().st_size
    lbrx.quantize(source, folder / "errors.gguf", target_size=size, imatrix=folder / "mix.imatrix.gguf")
    lbrx.quantize(source, folder / "chosen.gguf", target_size=size, calibrate=text)
    assert (folder / "chosen.gguf").stat().st_size <= size
    mix, errors, chosen = (divergence(folder / f"{name}.gguf", folder) for name in ("mix", "errors", "chosen"))
    assert chosen < 0.95 * mix
    assert chosen < 0.95 * errors


def test_measurements_are_kept_for_other_sizes_and_resumed(folder: Path) -> None:
    text, source, path = folder / "calibration.txt", folder / "prose", folder / "prose.sensitivity.json"
    lbrx.quantize(source, folder / "a.gguf", target_bpw=5.0, calibrate=text)
    content = path.read_text()
    first = read_sensitivities(path)
    assert {"token_embd.weight", "blk.0.attn_q.weight"} <= set(first)
    assert all(0 < each.divergence < 1 for each in first.values())
    seen: list[str] = []
    lbrx.quantize(
        source, folder / "b.gguf", target_bpw=6.0, calibrate=text, measuring=lambda *state: seen.append(state[2])
    )
    assert path.read_text() == content
    assert len(seen) == len(first)  # samples of rows only

    shortened = json.loads(content)
    dropped = shortened["divergences"].pop("blk.1.ffn_up.weight")
    path.write_text(json.dumps(shortened))
    lbrx.quantize(source, folder / "c.gguf", target_bpw=5.0, calibrate=text, threads=1)
    assert read_sensitivities(path)["blk.1.ffn_up.weight"].divergence == dropped[1]
    assert (folder / "c.gguf").read_bytes() == (folder / "a.gguf").read_bytes()
    text.write_text(text.read_text(encoding="utf-8")[300:], encoding="utf-8")
    lbrx.quantize(source, folder / "d.gguf", target_bpw=5.0, calibrate=text)
    assert json.loads(path.read_text())["identity"] != json.loads(content)["identity"]


def test_measurements_in_the_directory_of_the_model_are_used_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "prose")
    text, measured = folder / "calibration.txt", []
    options = {"calibrate": text, "measuring": lambda *given: measured.append(given)}
    lbrx.quantize(".", "small.gguf", target_bpw=4.5, **options)  # type: ignore[arg-type]
    known = {path.name: path.stat().st_mtime_ns for path in Path().glob("prose.*")}
    assert set(known) == {"prose.imatrix.gguf", "prose.sensitivity.json"}
    lbrx.quantize(".", "large.gguf", target_bpw=5.5, **options)  # type: ignore[arg-type]
    assert {path.name: path.stat().st_mtime_ns for path in Path().glob("prose.*")} == known


def test_codings_of_mlx_are_chosen_for_a_size(folder: Path) -> None:
    source, text = folder / "prose", folder / "calibration.txt"
    lbrx.quantize(source, folder / "mixed", "mixed_3_6")
    packed = sum(path.stat().st_size for path in (folder / "mixed").glob("*.safetensors"))
    plan = plan_quantize(source, folder / "mixed_again", QuantizeOptions("mixed_3_6"))
    bits = plan.quantization.bits_per_weight
    lbrx.quantize(source, folder / "chosen", target_bpw=bits, candidates=MLX, calibrate=text)
    assert sum(path.stat().st_size for path in (folder / "chosen").glob("*.safetensors")) <= packed + 4096
    settings = json.loads((folder / "chosen/config.json").read_text())["quantization"]
    assert len({settings["bits"], *(each["bits"] for each in settings.values() if isinstance(each, dict))}) > 1
    assert divergence(folder / "chosen", folder) < 0.9 * divergence(folder / "mixed", folder)
    assert not (folder / "prose.imatrix.gguf").exists()  # these codings have no use for it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_bpw": 1.0, "candidates": MLX}, "too little for this model; with the codings"),
        ({"target_size": "1MB", "candidates": MLX}, "give --target-bpw for MLX"),
        ({"target_bpw": 5.0, "prune_layers": "0", "calibrate": "calibration.txt"}, "remove the layers first"),
        ({"target_bpw": 5.0, "candidates": "mlx_4,q4_k"}, "'q4_k' is not a coding of MLX"),
    ],
)
def test_wrong_input(folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=message):
        lbrx.quantize("prose", "out.gguf" if "prune_layers" in options else "out", **options)  # type: ignore[arg-type]


def test_the_command_draws_the_front(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    sized = ("quantize", "prose", "out.gguf", "--target-bpw", "5.0")
    outcome = lbrx_command(capsys, *sized, "--calibrate", "calibration.txt", "--plot", "front.png")
    assert outcome.code == 0, outcome.err
    assert Path("front.png").read_bytes()[:4] == b"\x89PNG"
    assert Path("out.gguf").exists()
    refused = lbrx_command(capsys, *sized, "--plot", "front.png")
    assert refused.err == "error: --plot needs --calibrate, and --target-size or --target-bpw\n"
    plan = json.loads(lbrx_command(capsys, *sized[:2], "b.gguf", *sized[3:], "--dry-run", "--json").out)
    found = json.loads(
        lbrx_command(
            capsys, *sized[:2], "b.gguf", *sized[3:], "--calibrate", "calibration.txt", "--dry-run", "--json"
        ).out
    )
    assert found["measured_error"] < plan["measured_error"]  # nats, not shares of squares


def test_predictions_that_are_not_finite() -> None:
    trial = Trial("w", ("q4_0", "q8_0"), lambda _type, values, _item: values)
    with pytest.raises(UsageError, match="predictions with 'w' as q4_0 are not finite"):
        _tried(trial, open_model(SHIPPED.prose), lambda _encode: math.inf)
