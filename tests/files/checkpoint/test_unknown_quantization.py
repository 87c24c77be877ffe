"""Checkpoints whose quantization lbrx cannot decode: every command refuses them, ``--raw`` takes the codes."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.cli.main import READS_WEIGHTS, run
from lbrx.demo.models import demo_models
from lbrx.errors import FormatError

CODES = np.ones((4, 8), np.uint8)
SCALE = lbrx.tensor(np.full((4, 1), 2.0, np.float32))


def directory(path: Path, tensors: dict[str, lbrx.Tensor], config: dict[str, object] | None = None) -> Path:
    path.mkdir()
    lbrx.save(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
    return path


def floats() -> lbrx.Tensor:
    return lbrx.tensor(np.ones((4, 8), np.float32))


REVEALED = {
    "torchao": {"l._weight_qdata": "u8", "l._weight_scale": "scale"},
    "EXL2": {"l.q_weight": "u8", "l.q_scale": "scale"},
    "EXL3": {"l.trellis": "u8", "l.suh": "scale"},
    "VPTQ": {"l.indices": "u8", "l.centroids.weight": "scale"},
    "f8_e4m3 codes and scales 'l.input_scale'": {"l.weight": "f8_e4m3", "l.input_scale": "scale"},
    "f8_e5m2 codes and scales 'l.scale_weight'": {"l.weight": "f8_e5m2", "l.scale_weight": "scale"},
    "GPTQ or AWQ": {"l.qweight": "u8", "l.scales": "scale"},
    "compressed-tensors": {"l.weight_packed": "u8", "l.weight_scale": "scale"},
    "HQQ": {"l.W_q": "u8", "l.scale": "scale"},
    "u8 codes and scales 'l.weight_scale'": {"l.weight": "u8", "l.weight_scale": "scale"},
    "u8 codes without scales (tensor 'l.weight')": {"a.bias": "u8", "l.weight": "u8"},
}


def tensor_of(type_name: str) -> lbrx.Tensor:
    if type_name == "scale":
        return SCALE
    return lbrx.tensor(CODES) if type_name == "u8" else floats().to(type_name)


@pytest.mark.parametrize("scheme", REVEALED)
def test_tensors_reveal_the_quantization(scheme: str, tmp_path: Path) -> None:
    model = directory(tmp_path / "m", {name: tensor_of(each) for name, each in REVEALED[scheme].items()})
    with pytest.raises(FormatError, match=re.escape(f"is quantized with {scheme}")):
        lbrx.open(model)
    assert len(lbrx.open(model, raw=True)) == 2


@pytest.mark.parametrize("section", [None, "text_config"])
def test_the_config_names_the_quantization(section: str | None, tmp_path: Path) -> None:
    settings: dict[str, object] = {"quantization_config": {"quant_method": "quark"}}
    model = directory(tmp_path / "m", {"w": floats()}, {section: settings} if section else settings)
    with pytest.raises(FormatError, match=r"is quantized with the method 'quark' \('quantization_config' of config"):
        lbrx.open(model)
    with lbrx.using(raw=True):
        assert list(lbrx.open(model)) == ["w"]


def test_plain_eight_bit_floats_are_values(tmp_path: Path) -> None:
    lbrx.save(tmp_path / "a.safetensors", {"l.weight": floats().to("f8_e4m3"), "l.bias": floats()})
    assert float(lbrx.open(tmp_path / "a.safetensors")["l.weight"].to("f32").sum()) == 32


def test_whole_numbers_that_are_no_weights_are_values(tmp_path: Path) -> None:
    numbers = {"e.position_ids": "u8", "l.weight": "f32"}
    model = directory(tmp_path / "m", {name: tensor_of(each) for name, each in numbers.items()})
    assert set(lbrx.open(model)) == set(numbers)
    lbrx.save(tmp_path / "a.safetensors", {"l.weight": lbrx.tensor(CODES)})  # of any program, and no model
    assert int(lbrx.open(tmp_path / "a.safetensors")["l.weight"].numpy().sum()) == 32


def test_nvfp4_with_separate_scales_is_refused(tmp_path: Path) -> None:
    values = lbrx.tensor(np.ones((2, 64), np.float32)).quantize("nvfp4")
    metadata = {"general.architecture": "llama"}
    lbrx.save(tmp_path / "plain.gguf", {"blk.0.attn_q.weight": values}, metadata)
    assert lbrx.open(tmp_path / "plain.gguf")["blk.0.attn_q.weight"].type_name == "nvfp4"
    scale = lbrx.tensor([0.5], "f32")
    lbrx.save(tmp_path / "a.gguf", {"blk.0.attn_q.weight": values, "blk.0.attn_q.scale": scale}, metadata)
    with pytest.raises(FormatError, match=r"nvfp4 and separate scales \(tensor 'blk.0.attn_q.scale'\)"):
        lbrx.open(tmp_path / "a.gguf")


@pytest.fixture(scope="module")
def quark_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole demo model that says it is quantized."""
    path, base = tmp_path_factory.mktemp("quark") / "model", demo_models().base
    path.mkdir()
    for file in base.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((base / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "quark"}}))
    return path


COMMANDS = {
    "merge": ["merge", "{recipe}", "{out}"],
    "convert": ["convert", "{model}", "{out}.gguf"],
    "quantize": ["quantize", "{model}", "{out}.gguf", "--to", "q8_0"],
    "moe": ["moe", "{moe}", "{out}"],
    "shuffle": ["shuffle", "{model}", "--out", "{out}"],
    "transplant": ["transplant", "{model}", "{model}", "{out}"],
    "insert": ["insert", "{model}", "{model}", "{out}"],
    "search": ["search", "{search}", "{out}", "--text", "{text}", "--candidates", "1"],
    "verify": ["verify", "{model}"],
    "compare": ["compare", "{model}", "{model}"],
    "diff": ["diff", "{model}", "{model}"],
    "lora": ["lora", "extract", "{model}", "{model}", "{out}", "--rank", "1"],
    "score": ["score", "{model}", "--text", "{text}", "--max-tokens", "8"],
    "chat": ["chat", "{model}", "--max-tokens", "1", "--template", "chatml"],
    "generate": ["generate", "{model}", "--prompt", "In", "--max-tokens", "1"],
}


@pytest.mark.parametrize("name", READS_WEIGHTS)
def test_every_command_refuses_it(
    name: str,
    quark_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe, moe, text, out = tmp_path / "r.yml", tmp_path / "moe.yml", tmp_path / "t.txt", tmp_path / "out"
    search = tmp_path / "search.yml"
    recipe.write_text(f"merge_method: linear\nmodels: [{{model: {quark_model}, parameters: {{weight: 1}}}}]\n")
    search.write_text(recipe.read_text().replace("weight: 1", "weight: {search: [0, 1]}"))
    moe.write_text(
        f"base_model: {quark_model}\ngate_mode: random\n"
        f"experts: [{{source_model: {quark_model}}}, {{source_model: {quark_model}}}]\n"
    )
    text.write_text("In the beginning was the word. " * 8)
    names = {"model": quark_model, "recipe": recipe, "search": search, "moe": moe, "text": text, "out": out}
    arguments = [part.format(**names) for part in COMMANDS[name]]
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert "the method 'quark'" in " ".join((printed.out + printed.err).split())
    assert not out.exists()
    if name not in ("moe", "lora", "insert"):  # this model is not what they need
        assert run([*arguments, "--raw"]) == 0
