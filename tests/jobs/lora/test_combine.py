"""Combined adapters are what NumPy computes from their factors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lbrx
from lbrx.cli.main import run
from support.peft_fixture import random_array

Array = npt.NDArray[Any]

MODULE = "model.layers.0.self_attn.q_proj"
PREFIX = f"base_model.model.{MODULE}.lora_"
ROWS, COLUMNS = 20, 12


def write(directory: Path, seed: int, *, rank: int = 4, alpha: int = 8, module: str = PREFIX, **settings: Any) -> Path:
    directory.mkdir()
    factors = {
        f"{module}A.weight": random_array(seed, rank, COLUMNS),
        f"{module}B.weight": random_array(seed + 50, ROWS, rank),
    }
    lbrx.save(directory / "adapter_model.safetensors", factors)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, **settings}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def factors(directory: Path, module: str = PREFIX) -> tuple[Array, Array]:
    made = lbrx.open(directory / "adapter_model.safetensors")
    return made[f"{module}A.weight"].numpy(), made[f"{module}B.weight"].numpy()


def product(directory: Path, module: str = PREFIX) -> Array:
    """What an adapter adds to the weight."""
    config = json.loads((directory / "adapter_config.json").read_text())
    a, b = factors(directory, module)
    return b.astype(np.float64) @ a * config["lora_alpha"] / config["r"]


@pytest.fixture
def adapters(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / "a", 1), write(tmp_path / "b", 2, alpha=4), write(tmp_path / "c", 3, alpha=6)]


WEIGHTS = [0.7, -0.3, 1.0]


def combined(adapters: list[Path], **options: Any) -> Path:
    return lbrx.combine_loras(adapters, adapters[0].parent / "out", weights=WEIGHTS, **options)


def test_cat_is_exact(adapters: list[Path]) -> None:
    out = combined(adapters)
    expected = sum(weight * product(path) for weight, path in zip(WEIGHTS, adapters, strict=True))
    np.testing.assert_allclose(product(out), expected, atol=1e-4)
    assert factors(out)[0].shape == (12, COLUMNS)
    assert [path.name for path in sorted(out.parent.iterdir())] == ["a", "b", "c", "out"]


def test_svd_is_the_best_product_of_its_rank(adapters: list[Path]) -> None:
    out = combined(adapters, method="svd", rank=3)
    total = sum(weight * product(path) for weight, path in zip(WEIGHTS, adapters, strict=True))
    left, values, right = np.linalg.svd(total)
    np.testing.assert_allclose(product(out), left[:, :3] * values[:3] @ right[:3], atol=1e-3)


def test_linear_combines_the_factors(adapters: list[Path]) -> None:
    a, b = factors(combined(adapters, method="linear"))
    scales = [0.7 * 2, -0.3 * 1, 1.0 * 1.5]
    given = [factors(path) for path in adapters]
    roots = np.sqrt(np.abs(scales))
    np.testing.assert_allclose(
        a, sum(np.sign(s) * r * x for s, r, (x, _) in zip(scales, roots, given, strict=True)), atol=1e-5
    )
    np.testing.assert_allclose(b, sum(r * x for r, (_, x) in zip(roots, given, strict=True)), atol=1e-5)


def by_ties(values: list[Array], weights: list[float], density: float, signs: str) -> Array:
    kept = []
    for value in values:
        order = np.argsort(-np.abs(value).reshape(-1), kind="stable")[: int(density * value.size)]
        mask = np.zeros(value.size, bool)
        mask[order] = True
        kept.append(value * mask.reshape(value.shape))
    votes = sum(kept) if signs == "total" else sum(map(np.sign, kept))
    agrees = [np.sign(value) == np.where(votes >= 0, 1, -1) for value in kept]
    total = sum(weight * value * agree for weight, value, agree in zip(weights, kept, agrees, strict=True))
    return np.asarray(total / np.maximum(sum(agree.astype(int) for agree in agrees), 1))


@pytest.mark.parametrize("signs", ["total", "frequency"])
def test_ties_on_products(adapters: list[Path], signs: str) -> None:
    out = combined(adapters, method="ties_svd", density=0.5, rank=COLUMNS, signs=signs)
    expected = by_ties([product(path).astype(np.float32) for path in adapters], WEIGHTS, 0.5, signs)
    np.testing.assert_allclose(product(out), expected, atol=1e-3)


def test_ties_on_factors(adapters: list[Path]) -> None:
    a, b = factors(combined(adapters, method="ties", density=0.3))
    roots = np.sqrt([1.4, 0.3, 1.5])
    given = [factors(path) for path in adapters]
    signed = [roots[0], -roots[1], roots[2]]
    np.testing.assert_allclose(a, by_ties([x for x, _ in given], signed, 0.3, "total"), atol=1e-5)
    np.testing.assert_allclose(b, by_ties([x for _, x in given], list(roots), 0.3, "total"), atol=1e-5)


def test_dare_keeps_a_share_and_rescales_it(adapters: list[Path]) -> None:
    one, two = adapters[:2]
    out = lbrx.combine_loras(
        [one, two], one.parent / "out", weights=[1, 0], method="dare_linear_svd", density=0.5, rank=12
    )
    ratio = product(out) / product(one)
    assert set(np.round(ratio, 2).reshape(-1)) <= {0.0, -0.0, 2.0}
    assert 0.3 < (ratio > 1).mean() < 0.7
    again = lbrx.combine_loras(
        [one, two], one.parent / "again", weights=[1, 0], method="dare_linear_svd", density=0.5, rank=12
    )
    np.testing.assert_array_equal(factors(out)[0], factors(again)[0])


def test_magnitude_prune(adapters: list[Path]) -> None:
    a, _ = factors(combined(adapters, method="magnitude_prune", density=0.25))
    expected = np.zeros((4, COLUMNS))
    for weight, path, scale in zip(WEIGHTS, adapters, (2, 1, 1.5), strict=True):
        value = factors(path)[0]
        limit = np.sort(np.abs(value).reshape(-1))[-int(0.25 * value.size)]
        expected += np.sign(weight) * np.sqrt(abs(weight) * scale) * value * (np.abs(value) >= limit)
    np.testing.assert_allclose(a, expected, atol=1e-5)


def test_modules_of_one_adapter_and_ranks_that_differ(tmp_path: Path) -> None:
    other = "base_model.model.model.layers.0.mlp.up_proj.lora_"
    one, two = write(tmp_path / "one", 1, rank=2), write(tmp_path / "two", 2, rank=3, module=other)
    out = lbrx.combine_loras([one, two], tmp_path / "out", weights=[2, 1])
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"], config["alpha_pattern"][other[17:-6]]) == (3, {MODULE: 2}, 3)
    a, b = factors(out)
    np.testing.assert_allclose(b @ a, 2 * product(one), atol=1e-4)
    a, b = factors(out, other)
    np.testing.assert_allclose(b @ a, product(two, other), atol=1e-4)
    three = write(tmp_path / "three", 3, rank=3)
    with pytest.raises(lbrx.UsageError, match="'linear' combines factors of equal ranks"):
        lbrx.combine_loras([one, three], tmp_path / "no", method="linear")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tie"}, "unknown combination 'tie'; did you mean 'ties'"),
        ({"method": "ties"}, "expected a density"),
        ({"density": 0.5}, "expected no density"),
        ({"rank": 3}, "the rank is 3 for 'cat'"),
        ({"weights": [1.0]}, "2 adapters and 1 weights"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, adapters: list[Path]) -> None:
    with pytest.raises(lbrx.UsageError, match=message):
        lbrx.combine_loras(adapters[:2], adapters[0].parent / "out", **options)


def test_what_cannot_be_combined(adapters: list[Path], tmp_path: Path) -> None:
    other = write(tmp_path / "dora", 5, use_dora=True)
    with pytest.raises(lbrx.UsageError, match=r"dora: has DoRA.*BASE\+ADAPTER\+ADAPTER"):
        lbrx.combine_loras([adapters[0], other], tmp_path / "out")


def test_the_command(adapters: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    names, out = [str(path) for path in adapters[:2]], adapters[0].parent / "both"
    assert run(["lora", "combine", *names, str(out), "--weight", "0.5", "--method", "svd", "--rank", "2"]) == 0
    assert capsys.readouterr().out == f"{out}: 2 tensors, 256 B\n"
    assert run(["lora", "combine", *names, str(out)]) == 1
    assert "expected a new or empty directory" in capsys.readouterr().err
    assert run(["lora", "combine", names[0], str(out)]) == 2
    assert "expected ADAPTER ADAPTER [ADAPTER...] OUT" in capsys.readouterr().err


def in_common_directions(products: list[Array], weights: list[float], density: float) -> Array:
    """KnOTS-TIES from whole products."""
    left, values, right = np.linalg.svd(np.hstack(products), full_matrices=False)
    count = int((values > 1e-6 * values[0]).sum())
    parts = np.split(right[:count], len(products), axis=1)
    return np.asarray(left[:, :count] * values[:count] @ by_ties(parts, weights, density, "total"))


def test_knots_merges_common_directions(adapters: list[Path]) -> None:
    expected = in_common_directions([product(path) for path in adapters], WEIGHTS, 0.5)
    out = combined(adapters, method="knots_ties", density=0.5)
    np.testing.assert_allclose(product(out), expected, atol=1e-4)
    assert factors(out)[0].shape == (12, COLUMNS)
    left, values, right = np.linalg.svd(expected)
    small = lbrx.combine_loras(
        adapters, out.parent / "small", weights=WEIGHTS, method="knots_ties", density=0.5, rank=3
    )
    np.testing.assert_allclose(product(small), left[:, :3] * values[:3] @ right[:3], atol=1e-4)


def test_knots_without_pruning_is_the_sum(adapters: list[Path]) -> None:
    expected = sum(weight * product(path) for weight, path in zip(WEIGHTS, adapters, strict=True))
    np.testing.assert_allclose(
        product(combined(adapters, method="knots_magnitude_prune", density=1)), expected, atol=1e-4
    )


def test_knots_of_equal_adapters_has_their_rank(adapters: list[Path]) -> None:
    one = adapters[0]
    out = lbrx.combine_loras([one, one], one.parent / "out", weights=[0.5, 0.5], method="knots_dare_linear", density=1)
    np.testing.assert_allclose(product(out), product(one), atol=1e-4)
    assert factors(out)[0].shape == (4, COLUMNS)


def test_knots_of_wide_ranks_and_of_nothing(tmp_path: Path) -> None:
    wide, other = write(tmp_path / "wide", 1, rank=32), write(tmp_path / "other", 2, rank=3)
    out = lbrx.combine_loras([wide, other], tmp_path / "out", method="knots_ties", density=0.4)
    expected = in_common_directions([product(wide), product(other)], [1.0, 1.0], 0.4)
    np.testing.assert_allclose(product(out), expected, atol=1e-3)
    names = [f"{PREFIX}{part}.weight" for part in "AB"]
    zeros = {name: value * 0 for name, value in lbrx.open(other / "adapter_model.safetensors").items()}
    assert sorted(zeros) == names
    zeros = {name: value.realize() for name, value in zeros.items()}
    (other / "adapter_model.safetensors").unlink()
    lbrx.save(other / "adapter_model.safetensors", zeros)
    nothing = lbrx.combine_loras([other, other], tmp_path / "nothing", method="knots_ties", density=0.4)
    assert not product(nothing).any()
