"""`lbrx lora extract` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import lbrx
from lbrx.cli.main import run
from lbrx.demo.models import demo_models
from lbrx.jobs.compare.diff import diff_models
from lbrx.jobs.lora import open_with_adapter
from lbrx.memory import budget
from support.cli_running import lbrx_command
from support.peft_fixture import base_arrays, random_array

Q_WEIGHT = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    arrays = {name: values.astype(np.float32) for name, values in base_arrays().items()}
    for name in ("base", "tuned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    save_file(arrays, tmp_path / "base" / "model.safetensors")
    arrays[Q_WEIGHT] = arrays[Q_WEIGHT] + random_array(1, 80, 5) @ random_array(2, 5, 48)
    arrays["model.layers.0.input_layernorm.weight"] = arrays["model.layers.0.input_layernorm.weight"] + 1
    save_file(arrays, tmp_path / "tuned" / "model.safetensors")
    return tmp_path / "tuned", tmp_path / "base"


def extract(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run(["lora", "extract", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_an_adapter_is_written_and_described(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = extract(capsys, *models, tmp_path / "out", "--rank", 5)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if Q_WEIGHT in line]
    assert rows == [["5", "80", "x", "48", rows[0][4], "100.00%", "0.00%", Q_WEIGHT]]
    assert "changed, but not captured: 1 tensor" in out
    assert "not a weight of a linear layer: model.layers.0.input_layernorm.weight\n" in out
    assert "1 matrix, 4 tensors unchanged" in out
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(models[1])
    tuned, base = (lbrx.open(path) for path in models)
    restored = open_with_adapter(base, tmp_path / "out")
    np.testing.assert_allclose(restored[Q_WEIGHT].numpy(), tuned[Q_WEIGHT].numpy(), atol=1e-4)


def test_options_reach_the_extraction(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = budget().limit_bytes
    options = (
        "--max-error",
        0.001,
        "--rank",
        2,
        "--save-modules",
        "--dtype",
        "bf16",
        "--threads",
        1,
        "--memory",
        "1GiB",
    )
    code, out, _ = extract(capsys, *models, tmp_path / "out", *options)
    assert budget().limit_bytes == limit
    assert code == 0
    assert "1 matrix would need more than rank 2 for an error of 0.001" in out
    assert "stored in full: 1 tensor" in out
    weights = lbrx.open(tmp_path / "out" / "adapter_model.safetensors")
    factor = weights["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    assert (factor.shape, factor.dtype.name) == ((2, 48), "bf16")
    assert "base_model.model.model.layers.0.input_layernorm.weight" in weights


def test_too_little_memory_is_told(
    models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = extract(capsys, *models, tmp_path / "out", "--memory", 100)
    assert (code, out) == (1, "")
    assert "the singular vectors of 'model.layers.0.self_attn.q_proj.weight' needs " in err
    assert "but the limit is 100 B" in err


def test_errors_are_one_line(models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = extract(capsys, models[1], models[1], tmp_path / "out")
    assert (code, out) == (1, "")
    assert err == "error: nothing to extract: 6 tensors: equal in both models\n"
    assert not (tmp_path / "out").exists()
    assert run(["lora", "explode", "a", "b", "c"]) == 2


def test_an_adapter_is_merged_and_a_poor_one_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = demo_models()
    poor = lbrx_command(capsys, "lora", "extract", shipped.prose, shipped.base, tmp_path / "poor", "--rank", "1")
    assert poor.code == 0
    assert "warning: the adapter captures little of the fine-tune" in poor.err
    good = lbrx_command(
        capsys, "lora", "extract", shipped.prose, shipped.base, tmp_path / "good", "--rank", "128", "--save-modules"
    )
    assert "warning" not in good.err
    assert "captured 99.4% of the change" in good.out
    merged = lbrx_command(capsys, "lora", "merge", shipped.base, tmp_path / "good", tmp_path / "deep" / "merged")
    assert (merged.code, merged.err) == (0, "")
    difference = diff_models(lbrx.open(shipped.prose), lbrx.open(tmp_path / "deep" / "merged"))
    assert difference.total.relative_change < 0.03


def test_an_extraction_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = demo_models()
    done = lbrx_command(
        capsys, "lora", "extract", shipped.prose, shipped.base, tmp_path / "out", "--rank", "4", "--json"
    )
    fields = json.loads(done.out)
    assert 0 < fields["captured_energy"] < 1
    assert {each["rank"] for each in fields["captured"]} == {4}
