"""llama.cpp's snapshots of the types that ``llama-quantize`` chooses: for a real model, those of each file type.

A snapshot lists tensors whose type is not the default of the file type. It has no shapes: whether rows are whole blocks
of 256 or of 32 follows from the types in a TQ1_0 file, and whether a tensor is a stack of matrices from those in an
MXFP4_MOE file. All other file types are there to be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import lbrx
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FILE_TYPES
from lbrx.jobs.quantize import choose_types, parse_options

ARCHITECTURES = {
    "DeepSeek-V3.1": "deepseek2",
    "gemma-3-4b-it": "gemma3",
    "GLM-4.6V": "glm4moe",
    "gpt-oss-120b": "gpt-oss",
    "Meta-Llama-3.1-70B-Instruct": "llama",
    "Nemotron-Nano-3-30B-A3B": "nemotron_h_moe",
    "Qwen3-0.6B": "qwen3",
    "Qwen3-14B": "qwen3",
    "Qwen3-Coder-Next": "qwen3next",
    "Qwen3.5-397B-A17B": "qwen35moe",
    "Qwen3.5-27B": "qwen35",
    "Step-3.5-Flash": "step35",
}
_ROW_WITHOUT_SUPER_BLOCKS = {"q4_0", "q5_0", "q8_0"}  # types of a TQ1_0 file where 256 does not fit


@dataclass(frozen=True)
class Snapshot:
    """The types of one model: for each file type the default, and the tensors that have another."""

    model: str
    numbers: dict[str, int]
    defaults: dict[str, str]
    listed: dict[str, dict[str, str]]

    @property
    def names(self) -> list[str]:
        """All tensors that are listed anywhere, and the parts of experts that are missing in some layers."""
        found = {name for types in self.listed.values() for name in types}
        parts = {match[1] for name in found if (match := re.search(r"(ffn_(?:gate|up)_exps)", name))}
        downs = [name for name in found if "ffn_down_exps" in name]
        return sorted(found | {name.replace("ffn_down_exps", part) for name in downs for part in parts})

    def type_of(self, file_type: str, name: str) -> str:
        return self.listed[file_type].get(name, self.defaults[file_type])

    def contents(self) -> Contents:
        """The model as far as the choice of types needs it."""
        architecture, numbers = ARCHITECTURES[self.model], self.numbers
        metadata = {
            "general.architecture": architecture,
            f"{architecture}.block_count": numbers["n_layer"],
            f"{architecture}.attention.head_count": numbers["n_head"],
            f"{architecture}.attention.head_count_kv": numbers["n_head_kv"],
            f"{architecture}.expert_count": numbers.get("n_expert", 0),
        }
        tensors = tuple(PlannedTensor.of(name, lbrx.full(self._shape(name), 0.0, "f32")) for name in self.names)
        return Contents("gguf", tensors, metadata)

    def _shape(self, name: str) -> tuple[int, ...]:
        has_super_blocks = self.type_of("tq1_0", name) not in _ROW_WITHOUT_SUPER_BLOCKS
        is_stack = self.type_of("mxfp4_moe", name) == "mxfp4"
        return (*((2,) if is_stack else ()), 2, 256 if has_super_blocks else 32)


def read_snapshots(text: str) -> Iterator[Snapshot]:
    for part in text.split("# Model: ")[1:]:
        model, numbers, *lines = part.splitlines()
        defaults: dict[str, str] = {}
        listed: dict[str, dict[str, str]] = {}
        file_type = ""
        for line in filter(None, lines):
            first, second = line.lower().split(" ")
            if first.startswith("["):
                file_type = first.strip("[]")
                defaults[file_type], listed[file_type] = second, {}
            else:
                listed[file_type][first] = second
        pairs = re.findall(r"(\w+)=(\d+)", numbers)
        yield Snapshot(model, {key: int(value) for key, value in pairs}, defaults, listed)


def wrong_types(snapshot: Snapshot) -> dict[tuple[str, str], tuple[str, str]]:
    """By file type and tensor: the expected type and the chosen one."""
    contents = snapshot.contents()
    wrong = {}
    for name in snapshot.listed:
        choices = choose_types(contents, FILE_TYPES[name], parse_options(name))
        for tensor, choice in choices.items():
            expected = snapshot.type_of(name, tensor)
            if choice.type_name != expected:
                wrong[name, tensor] = expected, choice.type_name
    return wrong
