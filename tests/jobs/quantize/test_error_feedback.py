"""Quantizing with error feedback: better models of the same size, layer by layer, resumable."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from importlib import import_module
from pathlib import Path

import pytest

import lbrx
from lbrx.cli.main import run as run_command
from lbrx.demo.models import demo_models
from lbrx.errors import FileError, UsageError
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.quantize import quantize
from lbrx.jobs.quantize.feedback import encode_layers
from lbrx.jobs.quantize.options import parse_options
from lbrx.jobs.quantize.quantize import plan_quantize
from lbrx.jobs.score.score import score

HELD_OUT = (
    "And the LORD spake unto Moses, saying, Speak unto the children of Israel, and say unto them, When a man or woman "
    "shall separate themselves to vow a vow of a Nazarite, he shall separate himself from wine and strong drink."
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(calibration_text()[:2500])
    return path


@pytest.mark.parametrize("name", ["q4_0", "q3_k_m"])
def test_the_model_is_closer_to_the_original_at_the_same_size(tmp_path: Path, text: Path, name: str) -> None:
    base, plain, better = demo_models().base, tmp_path / "plain.gguf", tmp_path / "better.gguf"
    quantize(base, plain, name, calibrate=text)
    quantize(base, better, name, calibrate=text, feedback=True)
    first, second = lbrx.open(plain), lbrx.open(better)
    types = {key: (first[key].type_name, first[key].shape) for key in first}
    assert {key: (second[key].type_name, second[key].shape) for key in second} == types
    divergences = [one.divergence for one in score([plain, better], HELD_OUT, reference=base)[1:]]
    assert divergences[0] is not None
    assert divergences[1] is not None
    assert divergences[1].mean < 0.75 * divergences[0].mean
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "better.gguf",
        "better.imatrix.gguf",
        "plain.gguf",
        "plain.imatrix.gguf",
    ]


@pytest.mark.parametrize("name", ["q3_k_m", "iq2_m"])
def test_threads_do_not_matter(tmp_path: Path, text: Path, name: str) -> None:
    found = []
    for threads in (1, 3):
        out = tmp_path / f"of_{threads}.gguf"
        quantize(demo_models().base, out, name, calibrate=text, feedback=True, threads=threads)
        found.append(_values(out))
    assert found[0] == found[1]


def test_a_stopped_run_encodes_only_the_rest(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lbrx.jobs.quantize.feedback_encoding as module

    original, calls = module.encode_with_feedback, []

    def counted(*given: object) -> object:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "encode_with_feedback", counted)
    arguments = (demo_models().base, tmp_path / "b.gguf", "q4_0")
    with pytest.raises(KeyboardInterrupt):
        quantize(*arguments, calibrate=text, feedback=True)
    assert len(list((tmp_path / ".b.gguf.feedback").glob("*.blocks"))) == 4
    seen: list[tuple[int, int, str]] = []
    quantize(*arguments, calibrate=text, feedback=True, measuring=lambda *given: seen.append(given))
    assert seen == [(number, 3, f"layer {number}") for number in range(3)]
    resumed = lbrx.open(tmp_path / "b.gguf")
    matrices = [name for name in resumed if name.startswith("blk.") and resumed[name].type_name in ("q4_0", "q4_1")]
    assert len(calls) == 1 + len(matrices) + 1  # the call that was stopped, and the output matrix
    assert not (tmp_path / ".b.gguf.feedback").exists()


@pytest.mark.parametrize("types", [("q4_0", "q4_0", [r"blk\.0\..*=q8_0"]), ("mlx_8", "mlx_4", [])])
def test_blocks_of_a_stopped_run_with_other_types_are_not_used(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, types: tuple[str, str, list[str]]
) -> None:
    """The blocks of a layer depend on the types of the layers before it."""
    module = import_module("lbrx.jobs.quantize.quantize")

    def stopped(*_given: object, **_options: object) -> None:
        raise KeyboardInterrupt

    name, other_name, tensor_types = types
    ending = "" if tensor_types == [] else ".gguf"
    other = {"tensor_types": tensor_types, "calibrate": text, "feedback": True}
    quantize(demo_models().base, tmp_path / f"whole{ending}", other_name, **other)  # type: ignore[arg-type]
    with monkeypatch.context() as context:
        context.setattr(module, "plan_and_execute", stopped)
        with pytest.raises(KeyboardInterrupt):
            quantize(demo_models().base, tmp_path / f"b{ending}", name, calibrate=text, feedback=True)
    quantize(demo_models().base, tmp_path / f"b{ending}", other_name, **other)  # type: ignore[arg-type]
    assert _values(tmp_path / f"b{ending}") == _values(tmp_path / f"whole{ending}")


def _values(path: Path) -> list[bytes]:
    """Of a directory the weights, of a GGUF file its tensors: their metadata have the name of the importance matrix."""
    if path.is_dir():
        return [(path / "model.safetensors").read_bytes()]
    return [tensor.dequantize().numpy().tobytes() for tensor in lbrx.open(path).values()]


def test_feedback_needs_a_text_and_a_gguf_file(tmp_path: Path, text: Path) -> None:
    base = demo_models().base
    with pytest.raises(UsageError, match="--feedback needs --calibrate"):
        quantize(base, tmp_path / "a.gguf", "q4_0", feedback=True)
    with pytest.raises(UsageError, match="cannot be used with --prune-layers"):
        quantize(base, tmp_path / "a.gguf", "q4_0", calibrate=text, feedback=True, prune_layers="1")
    with pytest.raises(UsageError, match="--shrink needs --feedback"):
        quantize(base, tmp_path / "a.gguf", "q4_0", calibrate=text, shrink=0.3)
    with pytest.raises(UsageError, match="shrinkage of 2"):
        quantize(base, tmp_path / "a.gguf", "q4_0", calibrate=text, feedback=True, shrink=2)


def test_the_command(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out = str(demo_models().base), str(tmp_path / "a.gguf")
    command = ["quantize", base, out, "--to", "q4_0", "--calibrate", str(text)]
    assert run_command([*command, "--dry-run"]) == 0
    assert run_command([*command, "--feedback", "--shrink", "0.4"]) == 0
    assert run_command([*command, "--imatrix", str(tmp_path / "a.imatrix.gguf"), "--overwrite"]) == 1
    assert "cannot be used together" in capsys.readouterr().err


def test_an_output_that_exists_is_reported_before_anything_is_measured(tmp_path: Path, text: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(FileError, match="--overwrite replaces it"):
        quantize(demo_models().base, tmp_path / "a.gguf", "q4_0", calibrate=text)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_a_model_writes_the_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lbrx.jobs.imatrix.generated as module

    monkeypatch.setattr(module, "_TEXTS", 3)
    monkeypatch.setattr(module, "_TOKENS", 40)
    monkeypatch.chdir(tmp_path)
    base, text = demo_models().prose, tmp_path / "a.generated.txt"
    quantize(base, "a.gguf", "q4_0", calibrate="generated", feedback=True)
    written = text.read_text()
    assert written.endswith(calibration_text())
    own = written.removesuffix(calibration_text())
    assert own.startswith(calibration_text()[:4])
    assert 150 < len(own) < 800
    names = ["a.gguf", "a.imatrix.gguf", "a.generated.txt", ".a.generated.txt.json"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    before = text.stat().st_mtime_ns
    quantize(base, "a.gguf", "q4_1", calibrate=["generated"], overwrite=True)
    assert text.stat().st_mtime_ns == before
    quantize(demo_models().code, "a.gguf", "q4_0", calibrate="generated", overwrite=True)
    assert text.read_text() != written
    Path("generated").write_text(HELD_OUT)
    quantize(base, "b.gguf", "q4_0", calibrate="generated")
    assert not (tmp_path / "b.generated.txt").exists()


def test_ternary_types_are_encoded_without_feedback(tmp_path: Path, text: Path) -> None:
    base = demo_models().base
    quantize(base, tmp_path / "a.gguf", "q4_0", calibrate=text, feedback=True, tensor_types=["ffn_down=tq2_0"])
    quantize(base, tmp_path / "b.gguf", "q4_0", calibrate=text, tensor_types=["ffn_down=tq2_0"])
    first, second = (lbrx.open(tmp_path / name) for name in ("a.gguf", "b.gguf"))
    changed = {name for name in first if not (first[name].numpy() == second[name].numpy()).all()}
    assert any("attn_q" in name for name in changed)
    assert not any("ffn_down" in name for name in changed)


def deeper(folder: Path, layers: int) -> Path:
    """The base model with its first layer so many times."""
    base = demo_models().base
    folder.mkdir()
    for path in Path(base).iterdir():
        if path.suffix in (".json", ".model", ".jinja"):
            shutil.copy(path, folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor for name, tensor in lbrx.open(base).items() if ".layers." not in name}
    first = {name: tensor for name, tensor in lbrx.open(base).items() if ".layers.0." in name}
    for number in range(layers):
        tensors |= {name.replace(".layers.0.", f".layers.{number}."): tensor for name, tensor in first.items()}
    lbrx.save(folder / "model.safetensors", tensors)
    return folder


def test_memory_does_not_grow_with_layers(tmp_path: Path, text: Path) -> None:
    source, out = deeper(tmp_path / "deep", 7), tmp_path / "a.gguf"
    planned, short = plan_quantize(source, out, parse_options("q4_0")).quantization, tmp_path / "short.txt"
    short.write_text(text.read_text()[:600])
    encode_layers(source, tmp_path / "first.gguf", planned, [short])  # loads kernels
    in_use: list[int] = []

    def measure(_done: int, _total: int, name: str) -> None:
        if name.startswith("layer"):
            in_use.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    encode_layers(source, out, planned, [short], progress=measure)
    tracemalloc.stop()
    blocks = list((tmp_path / ".a.gguf.feedback").glob("blk.1.*.blocks"))
    assert (len(in_use), len(blocks)) == (7, 7)
    assert min(in_use[5:]) - in_use[2] < sum(path.stat().st_size for path in blocks)  # of one layer; three were encoded


def test_chunks_are_not_longer_than_the_context_of_the_model(tmp_path: Path) -> None:
    """GPT-2 has a learned vector for each position, and no more of them."""
    sizes = {"wte": (1024, 32), "wpe": (64, 32), "ln_f": (32,), "h.0.ln_1": (32,), "h.0.ln_2": (32,)}
    sizes |= {"h.0.attn.c_attn": (32, 96), "h.0.attn.c_proj": (32, 32)}
    sizes |= {"h.0.mlp.c_fc": (32, 128), "h.0.mlp.c_proj": (128, 32)}
    tensors = {}
    for name, shape in sizes.items():
        tensors[f"transformer.{name}.weight"] = lbrx.normal(shape, seed=1, stream=name) * 0.1
        if not name.startswith("w"):
            tensors[f"transformer.{name}.bias"] = lbrx.normal(shape[-1:], seed=2, stream=name) * 0.1
    folder = tmp_path / "gpt2"
    shutil.copytree(demo_models().base, folder, ignore=shutil.ignore_patterns("model.safetensors", "config.json"))
    lbrx.save(folder / "model.safetensors", tensors, {"format": "pt"})
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 1024, "n_positions": 64}
    config |= {"n_embd": 32, "n_layer": 1, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    text = tmp_path / "text.txt"
    text.write_text(calibration_text()[:2500])
    quantize(folder, tmp_path / "out.gguf", "q4_0", calibrate=text, feedback=True)
    assert lbrx.open(tmp_path / "out.gguf")["blk.0.ffn_up.weight"].type_name == "q4_0"
