"""Tiny models of transformers with seeded weights: their files and what they compute."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from family_cases import Case
from safetensors import safe_open

from support.seeded_weights import write_seeded

Values = npt.NDArray[np.float32]
Shapes = dict[str, list[int]]

DECODERS = ("AutoModelForCausalLM", "AutoModelForImageTextToText")


def make_model(case: Case, directory: Path) -> tuple[dict[str, Any], Shapes]:
    """Save a model in the layout of transformers, filled with seeded values; return its config and shapes."""
    if case.auto is None:
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(case.config), encoding="utf-8")
        write_seeded(directory / "model.safetensors", case.tensors)
        return dict(case.config), {name: list(shape) for name, shape in case.tensors.items()}
    config = transformers.AutoConfig.for_model(case.model_type, **case.settings)
    auto = getattr(transformers, case.auto)
    from_config = getattr(auto, "from_config", None) or auto._from_config
    model = from_config(config, attn_implementation="eager").to(torch.float32)
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    with safe_open(path, "np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        odd = {name: file.get_slice(name).get_dtype() for name in shapes} if shapes else {}
    unexpected = {name: dtype for name, dtype in odd.items() if dtype != "F32"}
    if unexpected:
        raise ValueError(f"{case.model_type}: {unexpected}; expected tensors of F32 only")
    for old, new in case.renamed.items():
        shapes = {new + name[len(old) :] if name.startswith(old) else name: shape for name, shape in shapes.items()}
    shapes |= {name: list(shape) for name, shape in case.tensors.items()}
    shapes = {name: shapes[name] for name in sorted(shapes)}
    write_seeded(path, shapes)
    text = (directory / "config.json").read_text(encoding="utf-8")
    saved = {
        key: value for key, value in json.loads(text).items() if key not in ("transformers_version", *case.dropped)
    }
    saved |= case.saved
    if case.processor is not None:
        (directory / "preprocessor_config.json").write_text(json.dumps(case.processor), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(saved), encoding="utf-8")
    return saved, shapes


def load_model(auto: str, directory: str | os.PathLike[str], attention: str = "eager") -> Any:
    """Load a model; missing or unexpected tensors are an error."""
    model, info = getattr(transformers, auto).from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    problems = {key: sorted(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    if problems:
        raise ValueError(f"{directory}: {problems}")
    return model.eval()


def compute_as_llama(case: Case, directory: Path, ids: list[int]) -> Values:
    """Return the logits that Llama computes with the tensors of a model that only differs in their names."""
    from safetensors.torch import load_file

    known = {key: value for key, value in case.config.items() if key not in ("architectures", "model_type")}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**known, attn_implementation="eager"))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        part = next((part for part in case.packed if part in name), None)
        names = [name] if part is None else [name.replace(part, each) for each in case.packed[part]]
        tensors |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    model.load_state_dict(tensors)
    return compute(model.eval(), ids)


def compute(model: Any, ids: list[int]) -> Values:
    """Return the logits of a decoder."""
    with torch.no_grad():
        logits: Values = model(input_ids=torch.tensor([ids])).logits[0].float().numpy()
    return logits
