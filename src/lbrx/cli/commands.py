"""The commands of the command line: one line each.

Only the module of the command that is called is imported, so that ``lbrx --help`` stays fast however many there are.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """Where a command is, as ``"module:function"``, and what it does in one line."""

    target: str
    summary: str


COMMANDS: dict[str, Command] = {
    "inspect": Command("lbrx.cli.inspect:inspect", "Show what is in a model file or directory."),
    "merge": Command("lbrx.cli.merge:merge", "Merge models as a recipe says."),
    "convert": Command("lbrx.cli.convert:convert", "Write a model in another format."),
    "quantize": Command("lbrx.cli.quantize:quantize", "Quantize a model to GGUF, MLX or integers."),
    "moe": Command("lbrx.cli.moe:moe", "Make a mixture of experts from dense models."),
    "verify": Command("lbrx.cli.verify:verify", "Check that a model is whole and sound."),
    "compare": Command("lbrx.cli.compare:compare", "Measure what a conversion or quantization changed."),
    "diff": Command("lbrx.cli.diff:diff", "Show how far two models are apart, layer by layer."),
    "lora": Command("lbrx.cli.lora:lora", "Extract a LoRA adapter from the difference of two models."),
    "score": Command("lbrx.cli.score:score", "Measure how well models predict a text."),
    "generate": Command("lbrx.cli.generate:generate", "Write a text on from a prompt."),
    "bench": Command("lbrx.cli.bench:bench", "Compare the speed of CPU and GPU."),
    "doctor": Command("lbrx.cli.doctor:doctor", "Show what this machine has, and test its GPU."),
    "demo": Command("lbrx.cli.demo:demo", "Merge, quantize and score small language models."),
}
"""In the order of ``lbrx --help``. A summary is the first line of its function's docstring."""
