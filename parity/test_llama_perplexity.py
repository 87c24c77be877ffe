"""``lbrx score --windows llama.cpp`` against llama-perplexity, on trained models.

llama.cpp rounds activations to 8 bits for quantized weights, and keys and values to f16. Compared is therefore what
llama.cpp computes in f32 from the same weights, decoded. What its rounding adds is measured too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.llama_tools import tool
from benchmarks.real_models import real_model

import lbrx
from lbrx.demo.models import demo_models
from lbrx.jobs.quantize import quantize
from lbrx.jobs.score.records import Score
from lbrx.jobs.score.score import score

# model -> tokens of a window
MODELS = {"stories15m": 256, "smollm2": 512}
TYPES = ("q8_0", "q4_k_m", "q2_k")
WINDOWS = 4
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
QUANTILES = {"Maximum": 1.0, "99.9%": 0.999, "99.0%": 0.99, "95.0%": 0.95, "90.0%": 0.9, "75.0%": 0.75, "Median": 0.5}
QUANTILES |= {"25.0%": 0.25, "10.0%": 0.1, "5.0%": 0.05, "1.0%": 0.01, "0.1%": 0.001, "Minimum": 0.0}


class Peer:
    """A model with its quantizations, measured by llama-perplexity."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.context = folder, MODELS[name]
        self.text = folder / "text.txt"
        self.text.write_text(demo_models().prose_text.read_text(encoding="utf-8")[:30_000], encoding="utf-8")
        self.original = folder / "f32.gguf"
        lbrx.convert(real_model(name), self.original, type="f32")
        for codec in TYPES:
            quantize(self.original, self.file(codec), to=codec)
            quantize(self.file(codec), self.file(codec, "-f32"), to="f32", allow_requantize=True)
        first = self._run(self.original, "-f", self.text, "--chunks", WINDOWS, *EXACT)
        self.perplexity = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", first)

    def file(self, codec: str, more: str = "") -> Path:
        return self.folder / f"{codec}{more}.gguf"

    def statistics(self, model: Path, *options: str) -> dict[str, float]:
        printed = self._run(model, "--kl-divergence", *options)
        rows = re.findall(r"^ *([^\n:]+?) *: +(-?[\d.]+)", printed, re.MULTILINE)
        return {re.sub(" +", " ", key): float(value) for key, value in rows}

    def scores(self, *models: Path) -> list[Score]:
        tokens = WINDOWS * self.context
        settings = {"context": self.context, "max_tokens": tokens}
        return score(models, self.text, reference=self.original, windows="llama.cpp", **settings)  # type: ignore[arg-type]

    def _run(self, model: Path, *options: object) -> str:
        command = [tool("llama-perplexity"), "-m", model, "-c", self.context, "-t", 1]
        command += ["--kl-divergence-base", self.folder / "base", *options]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=MODELS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp(request.param)
    yield Peer(request.param, folder)
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize("codec", TYPES)
def test_every_printed_statistic_agrees(peer: Peer, codec: str) -> None:
    expected = peer.statistics(peer.file(codec, "-f32"), *EXACT)
    reference, found = peer.scores(peer.file(codec, "-f32"))
    assert peer.perplexity is not None
    assert reference.perplexity == pytest.approx(float(peer.perplexity[1]), abs=1.5e-4, rel=1e-6)
    assert reference.perplexity_error == pytest.approx(float(peer.perplexity[2]), abs=1.5e-5, rel=1e-6)
    divergence = found.divergence
    assert divergence is not None
    # Six decimals: rounding, and sums of f32 values in another order
    assert divergence.mean == pytest.approx(expected["Mean KLD"], abs=2e-6, rel=5e-6)
    assert found.perplexity == pytest.approx(expected["Mean PPL(Q)"], rel=2e-6)
    assert divergence.perplexity_ratio.value == pytest.approx(expected["Mean PPL(Q)/PPL(base)"], abs=2e-6)
    assert divergence.loss_change.value == pytest.approx(expected["Mean ln(PPL(Q)/PPL(base))"], abs=2e-6)
    # Per cent with two or three decimals
    assert 100 * divergence.correlation == pytest.approx(expected["Cor(ln(PPL(Q)), ln(PPL(base)))"], abs=0.0051)
    assert 100 * divergence.change_mean.value == pytest.approx(expected["Mean Δp"], abs=0.0007)
    assert 100 * divergence.change_root_mean_square.value == pytest.approx(expected["RMS Δp"], abs=0.0007)
    assert 100 * divergence.same_top == pytest.approx(expected["Same top p"], abs=0.0006)
    for label, share in QUANTILES.items():  # of single tokens, where roundings do not average out
        if f"{label} KLD" in expected:
            quantile = divergence.quantiles[share].value
            assert quantile == pytest.approx(expected[f"{label} KLD"], abs=1e-4, rel=3e-4), label
        change = 100 * divergence.change_quantiles[share].value
        assert change == pytest.approx(expected[f"{label} Δp"], abs=0.01), label
    assert {f"{label} Δp" for label in QUANTILES} <= set(expected)


@pytest.mark.parametrize("codec", TYPES)
def test_quantized_files_score_like_their_decoded_weights_and_llama_cpp_adds_its_rounding(
    peer: Peer, codec: str
) -> None:
    exact, rounded = peer.statistics(peer.file(codec, "-f32"), *EXACT), peer.statistics(peer.file(codec))
    _, found = peer.scores(peer.file(codec))
    assert found.divergence is not None
    print(f"{codec}: {found.divergence.mean:.6f}, f32 {exact['Mean KLD']:.6f}, 8 bits {rounded['Mean KLD']:.6f}")
    assert found.divergence.mean == pytest.approx(exact["Mean KLD"], rel=1e-3, abs=2e-6)
    assert found.perplexity == pytest.approx(exact["Mean PPL(Q)"], rel=1e-4)
    assert abs(found.divergence.mean - rounded["Mean KLD"]) < 0.02
