"""Methods that mergekit does not have, compared with fusion-bench on small tensors and a tiny model.

Differences that are meant: see the table of docs/merging.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fusion_bench.method.isotropic_merging.iso_utils import iso_c
from fusion_bench.method.knots.knots_utils import subspace_alignment
from fusion_bench.method.regmean.regmean import merging_with_regmean_weights, regmean_merging
from fusion_bench.method.tall_mask.utils import generate_task_masks
from fusion_bench.method.task_arithmetic.task_arithmetic import TaskArithmeticAlgorithm
from fusion_bench.method.task_singular_vector.utils import TSVM_utils
from fusion_bench.method.ties_merging.ties_merging_utils import ties_merging
from fusion_bench.method.wudi.wudi import wudi_merging
from fusion_bench.modelpool import BaseModelPool
from transformers import AutoConfig, AutoModelForCausalLM

import lbrx
from lbrx.jobs.merge.methods.method import MergeContext
from lbrx.jobs.merge.methods.parameters import InputGram
from lbrx.jobs.merge.methods.regmean import regmean

Array = npt.NDArray[Any]
NAME = "model.layers.0.mlp.up_proj.weight"


def arrays(count: int, shape: tuple[int, ...] = (9, 6), scale: float = 0.1) -> tuple[Array, list[Array]]:
    """A base and models near it, in f32."""
    random = np.random.default_rng(3)
    base = random.standard_normal(shape).astype(np.float32)
    return base, [base + scale * random.standard_normal(shape).astype(np.float32) for _ in range(count)]


def vectors(base: Array, models: Sequence[Array]) -> list[dict[str, torch.Tensor]]:
    return [{NAME: torch.from_numpy(model - base)} for model in models]


def merged(method: str, base: Array, models: Sequence[Array], **parameters: Any) -> Array:
    given = {"weight": 1.0, **{name.rstrip("_"): value for name, value in parameters.items()}}
    return lbrx.merge_tensors(models, method, base=base, parameters=given, name=NAME).numpy()


def close(ours: Array, theirs: torch.Tensor | Array, atol: float = 2e-6) -> None:
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-4, atol=atol)


def linear_module(weight: Array) -> torch.nn.Linear:
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight.data = torch.from_numpy(weight.copy())
    return module


def test_task_arithmetic() -> None:
    base, models = arrays(3)
    pool = BaseModelPool(
        {"_pretrained_": linear_module(base), **{f"{n}": linear_module(m) for n, m in enumerate(models)}}
    )
    theirs = TaskArithmeticAlgorithm(scaling_factor=0.4).run(pool)
    close(merged("task_arithmetic", base, models, lambda_=0.4), theirs.weight.detach())


@pytest.mark.parametrize("density", [0.2, 0.5])
def test_ties(density: float) -> None:
    """fusion-bench trims all tensors of a model together, and keeps one element more."""
    base, models = arrays(3)
    flat = torch.stack([each[NAME].reshape(-1) for each in vectors(base, models)])
    theirs = ties_merging(flat, reset_thresh=density, merge_func="mean").reshape(base.shape)
    same = (int(density * base.size) + 1.5) / base.size
    close(merged("ties", base, models, density=same), base + theirs.numpy())


@pytest.mark.parametrize("least", [1, 2, 3])
def test_consensus(least: int) -> None:
    base, models = arrays(3)
    changes = torch.stack([each[NAME].reshape(-1) for each in vectors(base, models)])
    flat_base = torch.from_numpy(base.reshape(-1))
    masks = generate_task_masks(changes, flat_base + changes, flat_base, tall_mask_lambda=0.4)
    theirs = flat_base + changes.sum(0) * (masks.sum(0) >= least)
    close(merged("consensus_ta", base, models, threshold=0.4, least=least), theirs.reshape(base.shape))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_tsv_m(count: int) -> None:
    base, models = arrays(count)
    theirs = TSVM_utils.compute_and_sum_svd_mem_reduction(vectors(base, models), accelerator="cpu")
    close(merged("tsv_m", base, models, lambda_=0.7), base + 0.7 * theirs[NAME].numpy())


def test_iso_c() -> None:
    base, models = arrays(3)
    theirs = iso_c(vectors(base, models), accelerator="cpu")
    close(merged("iso_c", base, models, lambda_=0.7), base + 0.7 * theirs[NAME].numpy())


def test_vectors_are_averaged() -> None:
    base, models = arrays(3, (7,))
    for method, theirs in (
        ("iso_c", iso_c(vectors(base, models), accelerator="cpu")),
        ("tsv_m", TSVM_utils.compute_and_sum_svd_mem_reduction(vectors(base, models), accelerator="cpu")),
        ("wudi", wudi_merging(vectors(base, models), accelerator="cpu", iter_num=1)),
    ):
        close(merged(method, base, models), base + theirs[NAME].detach().numpy())


def test_wudi_is_what_many_steps_lead_to() -> None:
    """fusion-bench takes 300 steps of Adam from the sum of the changes; their size does not depend on the changes."""
    base, models = arrays(2, (6, 4), scale=1e-3)
    changes = [(model - base).astype(np.float64) for model in models]

    def interference(change: Array) -> float:
        return sum(float((((change - each) @ each.T) ** 2).sum() / (each**2).sum()) for each in changes)

    ours = merged("wudi", np.zeros_like(base), [model - base for model in models], ridge=0.0)
    few, many = (
        wudi_merging(vectors(base, models), accelerator="cpu", iter_num=steps)[NAME].detach().numpy()
        for steps in (300, 4000)
    )
    assert interference(ours) <= interference(many) < interference(few) < interference(sum(changes))
    close(ours, many, atol=3e-5)


@pytest.mark.parametrize("factor", [0.1, 0.9, 1.0])
def test_regmean(factor: float) -> None:
    _, models = arrays(3)
    random = np.random.default_rng(5)
    inputs = [random.standard_normal((40, 6)) @ random.standard_normal((6, 6)) for _ in models]
    grams = [x.T @ x / len(x) for x in inputs]
    theirs = merging_with_regmean_weights(
        {NAME: [torch.from_numpy(each).double() for each in models]},
        [{NAME.removesuffix(".weight"): torch.from_numpy(gram)} for gram in grams],
        reduce_non_diagonal_ratio=factor,
    )
    context = MergeContext(NAME, grams=lambda number: InputGram(grams[number]))
    given = [lbrx.tensor(each) for each in models]
    ones = [1.0] * len(given)
    ours = regmean(given, text=[""] * 3, weight=ones, off_diagonal=factor, ridge=0.0, context=context)
    close(ours.numpy(), theirs[NAME])
    close(regmean(given, text=[""] * 3, weight=ones, off_diagonal=factor, context=context).numpy(), theirs[NAME], 1e-4)


class _Trainer:
    """What fusion-bench asks of a trainer: batches of inputs."""

    _train_batch_size = 1

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids

    def get_train_dataloader(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"input_ids": torch.tensor([self._ids])}])

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_regmean_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str) -> None:
    """fusion-bench also merges the head; lbrx averages it."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 128}
    config = AutoConfig.for_model(model_type, tie_word_embeddings=False, initializer_range=0.2, **sizes)
    random = np.random.default_rng(1)
    models, texts = [], [random.integers(0, 100, count).tolist() for count in (90, 60)]
    for number, ids in enumerate(texts):
        torch.manual_seed(number)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model.save_pretrained(f"{number}")
        words = {"type": "WordLevel", "vocab": {f"w{word}": word for word in range(100)}, "unk_token": "w0"}
        Path(f"{number}/tokenizer.json").write_text(
            json.dumps({"model": words, "pre_tokenizer": {"type": "Whitespace"}})
        )
        Path(f"{number}.txt").write_text(" ".join(f"w{word}" for word in ids))
        models.append(model)
    theirs = regmean_merging(models, [_Trainer(ids) for ids in texts], [], [1, 1], reduce_non_diagonal_ratio=0.9)
    listed = [{"model": f"{number}", "parameters": {"text": f"{number}.txt"}} for number in (0, 1)]
    lbrx.merge({"merge_method": "regmean", "models": listed, "parameters": {"ridge": 0.0}}, "out")
    ours = lbrx.open("out")
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        expected = theirs[name].detach().numpy()
        if name == "lm_head.weight":
            expected = sum(model.lm_head.weight.detach().numpy() for model in models) / 2
        np.testing.assert_allclose(ours[name].numpy(), expected, rtol=1e-3, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("density", [0.3, 0.6])
def test_knots(tmp_path: Path, density: float) -> None:
    random = np.random.default_rng(2)
    pairs = [(random.standard_normal((10, 3)), random.standard_normal((3, 8))) for _ in range(3)]
    for number, (b, a) in enumerate(pairs):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
        factors = {f"{prefix}{part}.weight": value.astype(np.float32) for part, value in (("A", a), ("B", b))}
        lbrx.save(folder / "adapter_model.safetensors", {name: lbrx.tensor(value) for name, value in factors.items()})
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 3}))
    left, values, rights = subspace_alignment([torch.from_numpy(b @ a) for b, a in pairs])
    flat = torch.stack([right.reshape(-1) for right in rights])
    joined = ties_merging(flat, reset_thresh=density, merge_func="mean").reshape(rights[0].shape)
    same = (int(density * rights[0].numel()) + 1.5) / rights[0].numel()
    adapters = [tmp_path / f"{number}" for number in range(3)]
    out = lbrx.combine_loras(adapters, tmp_path / "out", method="knots_ties", density=same)
    made = {
        name.rpartition("lora_")[2][0]: value.numpy()
        for name, value in lbrx.open(out / "adapter_model.safetensors").items()
    }
    config = json.loads((out / "adapter_config.json").read_text())
    product = made["B"].astype(np.float64) @ made["A"] * config["lora_alpha"] / config["r"]
    close(product, left @ torch.diag(values) @ joined, 1e-4)
