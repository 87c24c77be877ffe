"""What is measured beside outputs: names in metadata, and runs that share it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import lbrx
from lbrx.demo.models import demo_models
from lbrx.errors import DTypeError, FileError, UsageError
from lbrx.jobs.imatrix.calibration import calibration_text
from lbrx.jobs.imatrix.imatrix import combine, imatrix
from lbrx.jobs.quantize import quantize
from lbrx.jobs.quantize.calibration import calibrating

BASE = demo_models().base


def text_file(folder: Path, name: str, start: int) -> Path:
    path = folder / name
    path.write_text(calibration_text()[start : start + 1500])
    return path


def test_bytes_do_not_depend_on_names_and_directories(tmp_path: Path) -> None:
    made = []
    for folder, name in (("a", "first.gguf"), ("b", "second.gguf")):
        (tmp_path / folder).mkdir()
        quantize(BASE, tmp_path / folder / name, "q4_0", calibrate=text_file(tmp_path / folder, "text.txt", 0))
        made.append((tmp_path / folder / name).read_bytes())
    assert made[0] == made[1]
    metadata = lbrx.open(tmp_path / "a" / "first.gguf").metadata
    assert metadata["quantize.imatrix.dataset"] == "text.txt"
    assert str(metadata["quantize.imatrix.file"]).startswith("sha256:")
    quantize(BASE, tmp_path / "c.gguf", "q4_0", imatrix=tmp_path / "a" / "first.imatrix.gguf")
    assert (tmp_path / "c.gguf").read_bytes() == made[0]


def test_other_importances_have_another_digest(tmp_path: Path) -> None:
    names = set()
    for start in (0, 2000):
        quantize(BASE, tmp_path / f"{start}.gguf", "q4_0", calibrate=text_file(tmp_path, "text.txt", start))
        names.add(lbrx.open(tmp_path / f"{start}.gguf").metadata["quantize.imatrix.file"])
    assert len(names) == 2


def test_runs_with_different_texts_do_not_mix_them(tmp_path: Path) -> None:
    """Outputs of different sizes share the importance matrix and the sensitivities of the model."""
    texts = [text_file(tmp_path, f"text{number}.txt", 2000 * number) for number in range(2)]
    code = "import sys, lbrx; lbrx.quantize(*sys.argv[1:3], target_bpw=5.0, calibrate=sys.argv[3])"

    def start(folder: str, number: int) -> subprocess.Popen[bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        out = tmp_path / folder / f"{number}.gguf"
        return subprocess.Popen([sys.executable, "-c", code, BASE, out, texts[number]])

    assert [start(f"alone{number}", number).wait() for number in range(2)] == [0, 0]
    together = [start("together", number) for number in range(2)]
    assert [each.wait() for each in together] == [0, 0]
    for number in range(2):
        expected = (tmp_path / f"alone{number}" / f"{number}.gguf").read_bytes()
        assert (tmp_path / "together" / f"{number}.gguf").read_bytes() == expected
    assert not list((tmp_path / "together").glob(".*"))


def test_a_second_run_waits_and_says_so(tmp_path: Path) -> None:
    seen: list[str] = []
    entered = threading.Event()

    def second() -> None:
        with calibrating([tmp_path / "model"], lambda _done, _total, name: seen.append(name)):
            entered.set()

    thread = threading.Thread(target=second)
    with calibrating([tmp_path / "model"]):
        thread.start()
        assert not entered.wait(0.3)
    thread.join()
    assert seen == ["another run that calibrates"]
    assert not list(tmp_path.iterdir())


def test_importances_of_others_beside_the_output_are_kept(tmp_path: Path) -> None:
    text, kept = text_file(tmp_path, "text.txt", 0), tmp_path / "model.imatrix.gguf"
    imatrix(BASE, tmp_path / "first.gguf", text)
    combine(kept, [tmp_path / "first.gguf", tmp_path / "first.gguf"])
    before = kept.read_bytes()
    with pytest.raises(FileError, match=r"model\.imatrix\.gguf: was not measured by lbrx for this model; move it"):
        quantize(BASE, tmp_path / "model.gguf", "q4_0", calibrate=text)
    assert kept.read_bytes() == before


def test_texts_of_others_beside_the_output_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "model.generated.txt"
    kept.write_text("notes")
    with pytest.raises(FileError, match=r"model\.generated\.txt: was not written by lbrx for this model; move it"):
        quantize(BASE, tmp_path / "model.gguf", "q4_0", calibrate="generated")
    assert kept.read_text() == "notes"


def test_several_outputs_wait_for_a_run_that_makes_one_of_them(tmp_path: Path) -> None:
    """Both keep blocks of error feedback in the same folder."""
    text, out = text_file(tmp_path, "text.txt", 0), tmp_path / "outputs"
    waits = threading.Event()

    def measuring(_done: int, _total: int, name: str) -> None:
        if name == "another run that calibrates":
            waits.set()

    def several() -> None:
        quantize(BASE, out, ["q4_0"], calibrate=text, feedback=True, measuring=measuring)

    thread = threading.Thread(target=several)
    with calibrating([out / "base-Q4_0"]):
        thread.start()
        assert waits.wait(60)
        assert not (out / ".base-Q4_0.gguf.feedback").exists()
    thread.join()
    assert sorted(path.name for path in out.glob("*.gguf")) == ["base-Q4_0.gguf", "base.imatrix.gguf"]


@pytest.mark.parametrize(
    ("name", "known_as"), [("ct_int4", "compressed-tensors"), ("gptq_4", "GPTQ"), ("awq_4", "AWQ")]
)
@pytest.mark.parametrize(("to", "ending"), [("q4_0", ".gguf"), ("mlx_4", ""), ("ct_int8", ""), ("int4", "")])
def test_quantized_models_are_refused(tmp_path: Path, name: str, known_as: str, to: str, ending: str) -> None:
    quantize(BASE, tmp_path / "coded", name)
    out = tmp_path / f"out{ending}"
    with pytest.raises(UsageError, match=f"is quantized as {known_as} already; .* give --allow-requantize"):
        quantize(tmp_path / "coded", out, to)
    quantize(tmp_path / "coded", out, to, allow_requantize=True)
    quantize(tmp_path / "coded", tmp_path / "plain.gguf", "f16")
    assert lbrx.open(tmp_path / "plain.gguf")["blk.0.attn_q.weight"].type_name == "f16"


def test_codes_of_mlx_say_how_to_get_values(tmp_path: Path) -> None:
    quantize(BASE, tmp_path / "mlx", "mlx_4")
    model = lbrx.open(tmp_path / "mlx")
    name = next(name for name in model if model[name].type_name == "u32")
    for compute in (lambda: model[name].numpy(), lambda: (model[name] * 2).numpy(), lambda: model[name].dequantize()):
        with pytest.raises(DTypeError, match=r"u32 tensors are codes, such as those of MLX, .* lbrx.convert decodes"):
            compute()
    lbrx.convert(tmp_path / "mlx", tmp_path / "plain", type="bf16", format="safetensors")
    assert lbrx.open(tmp_path / "plain")[name].type_name == "bf16"
