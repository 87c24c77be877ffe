"""`lbrx quantize`: files, tables, JSON and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lbrx
from support.cli_running import lbrx_command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantize") / "model.gguf"
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (32, 256), "output.weight": (32, 256)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.attn_{part}.weight": (256, 256) for part in "qkv"}
        shapes |= {f"blk.{layer}.attn_norm.weight": (256,), f"blk.{layer}.ffn_down.weight": (256, 256)}
    metadata = {"general.architecture": "llama", "llama.block_count": 2, "llama.attention.head_count": 4}
    lbrx.save(path, {name: lbrx.normal(shape, 1, name) for name, shape in shapes.items()}, metadata)
    return path


def test_a_file_is_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    outcome = lbrx_command(capsys, "quantize", model, out, "--to", "Q4_K_M", "--tensor-type", "attn_k=q8_0")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{out}: 12 tensors")
    assert lbrx.open(out)["blk.1.attn_k.weight"].type_name == "q8_0"


def test_every_option_is_passed_on(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    options = ["--to", "q5_k_m", "--pure", "--output-type", "q6_k", "--embedding-type", "q8_0", "--prune-layers", "0"]
    keys = ["--override-kv", "general.name=str:small", "--override-kv", "llama.context_length=int:64"]
    outcome = lbrx_command(capsys, "quantize", model, out, *options, *keys, "--threads", "2", "--no-sync", "-q")
    assert outcome == (0, "", "")
    found = lbrx.open(out)
    assert {name: found[name].type_name for name in found} == {
        "token_embd.weight": "q8_0",
        "output.weight": "q6_k",
        "blk.0.attn_norm.weight": "f32",
        **{f"blk.0.attn_{part}.weight": "q5_k" for part in "qkv"},
        "blk.0.ffn_down.weight": "q5_k",
    }
    assert (found.metadata["general.name"], found.metadata["llama.context_length"]) == ("small", 64)
    again = lbrx_command(capsys, "quantize", out, tmp_path / "again.gguf", "--to", "q4_0")
    assert again.code == 1
    assert "--allow-requantize" in again.err
    options = ["--allow-requantize", "--leave-output"]
    assert lbrx_command(capsys, "quantize", out, tmp_path / "again.gguf", "--to", "q4_0", *options).code == 0
    assert lbrx.open(tmp_path / "again.gguf")["output.weight"].type_name == "q6_k"


def test_a_dry_run_shows_types_and_sizes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    outcome = lbrx_command(capsys, "quantize", model, out, "--to", "q8_0", "--dry-run", "--tensors")
    assert outcome.code == 0
    assert not out.exists()
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.strip()}
    assert rows["parameters"][1:] == ["541", "K", "in", "12", "tensors"]
    assert rows["q8_0"][1] == "10"
    lbrx_command(capsys, "quantize", model, out, "--to", "q8_0")
    assert f"({out.stat().st_size:,} bytes)" in outcome.out
    assert "one dimension" in outcome.out


def test_a_dry_run_as_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.gguf"
    outcome = lbrx_command(capsys, "quantize", model, out, "--target-bpw", "5.0", "--dry-run", "--json")
    plan = json.loads(outcome.out)
    assert plan["event"] == "plan"
    assert plan["bits_per_weight"] <= 5.0
    assert plan["measured_error"] > 0
    assert sum(row["tensors"] for row in plan["types"].values()) == len(plan["tensors"]) == 12
    assert sum(row["bytes"] for row in plan["tensors"]) == sum(row["bytes"] for row in plan["types"].values())
    lbrx_command(capsys, "quantize", model, out, "--target-bpw", "5.0")
    assert out.stat().st_size == plan["write_bytes"]
    found = lbrx.open(out)
    assert {row["name"]: row["to"] for row in plan["tensors"]} == {name: found[name].type_name for name in found}


def test_events_as_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "quantize", model, tmp_path / "out.gguf", "--to", "q6_k", "--json")
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert events[-1]["event"] == "done"
    assert events[-1]["tensors"] == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "q4_k_x"], "unknown quantization 'q4_k_x'; did you mean 'q4_k_s'?"),
        ([], "expected one of --to, --target-bpw and --target-size, but none is given"),
        (["--to", "q8_0", "--target-bpw", "4"], "but more than one is given"),
        (["--to", "q8_0", "--tensor-type", "(=q8_0"], "is not a regular expression"),
        (["--to", "q8_0", "--override-kv", "a"], "expected KEY=TYPE:VALUE"),
        (["--to", "q8_0", "--prune-layers", "7"], "layer 7 cannot be removed"),
        (["--to", "q2_k_s"], "needs importances"),
        (["--target-size", "1kB"], "too little for this model"),
        (["--target-bpw", "1.5"], "too little for this model"),
        (["--to", "mlx_4", "--pure"], "--pure is for GGUF files"),
    ],
)
def test_wrong_input_is_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    outcome = lbrx_command(capsys, "quantize", model, tmp_path / "out.gguf", *options)
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = lbrx_command(capsys, "quantize", "--help")
    assert outcome.code == 0
    assert "lbrx quantize Llama-3.2-1B llama.gguf --to q4_k_m" in outcome.out
