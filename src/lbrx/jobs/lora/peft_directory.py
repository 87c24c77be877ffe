"""Writing a PEFT directory: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lbrx.base import system
from lbrx.errors import FileError
from lbrx.files.output.journal import journal_lock
from lbrx.files.output.save import save
from lbrx.files.output.staging import Staging
from lbrx.jobs.lora.config import CONFIG_NAME, WEIGHTS_NAME
from lbrx.tensors.tensor import Tensor


@contextmanager
def adapter_directory(target: Path) -> Iterator[Path]:
    """A directory to fill, renamed to the target at the end of the ``with`` block, removed after an error."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileError(f"{target}: exists; expected a new or empty directory for the adapter")
    staging = Staging(target)
    staging.make_parent()
    with journal_lock(staging.journal):
        try:
            staging.prepare(discard=True)
            yield staging.partial
            system.sync_directory(staging.partial)
            staging.publish(sync=True)
        finally:
            staging.discard()
            system.remove_file(staging.journal)


def peft_config(
    base_name: str, ranks: Mapping[str, int], weights: Sequence[str], saved: Sequence[str], fan_in_fan_out: bool
) -> dict[str, Any]:
    """The config of an adapter whose products are not scaled: every alpha is the rank.

    ``ranks`` are those of the captured modules, ``weights`` all modules with a weight, ``saved`` the names of
    tensors that are stored whole.

    >>> ranks = {"layers.0.up": 8, "layers.1.up": 4}
    >>> config = peft_config("base", ranks, ["layers.0.up", "layers.1.up", "norm"], [], False)
    >>> config["r"], config["rank_pattern"], config["target_modules"]
    (8, {'layers.1.up': 4}, ['up'])
    """
    rank = max(ranks.values(), default=1)
    smaller = {module: own for module, own in ranks.items() if own != rank}
    whole_modules = list(dict.fromkeys(name.rpartition(".")[0] for name in saved))
    with_bias = [module for module in whole_modules if module in ranks]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "rank_pattern": smaller,
        "alpha_pattern": smaller,
        "target_modules": _target_modules(ranks.keys(), weights),
        "modules_to_save": [module for module in whole_modules if module not in ranks] or None,
        "bias": "all" if with_bias else "none",
        "fan_in_fan_out": fan_in_fan_out,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


def _target_modules(captured: Collection[str], weights: Sequence[str]) -> list[str]:
    """The last parts of the captured modules' names if those mean no other module, else the whole names."""
    ends = {module.rpartition(".")[2] for module in captured}
    meant = {module for module in weights if module.rpartition(".")[2] in ends}
    return sorted(ends) if meant == set(captured) else sorted(captured)


def write_adapter(directory: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Put an adapter's two files into a directory."""
    save(directory / WEIGHTS_NAME, tensors, {"format": "pt"})
    system.write_file(directory / CONFIG_NAME, (json.dumps(config, indent=2) + "\n").encode())
