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
    "moe": Command("lbrx.cli.moe:moe", "Make a mixture of experts from dense models."),
    "diff": Command("lbrx.cli.diff:diff", "Show how far two models are apart, layer by layer."),
    "lora": Command("lbrx.cli.lora:lora", "Extract a LoRA adapter from the difference of two models."),
    "demo": Command("lbrx.cli.demo:demo", "Make two small models, compare them and blend them."),
}
"""In the order of ``lbrx --help``. A summary is the first line of its function's docstring."""
