"""`lbrx edit`: change the key-values of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lbrx.cli.parameters import Argument, Option
from lbrx.cli.paths import check_model
from lbrx.errors import FileError, UsageError


def edit(
    model: Annotated[Path, Argument("A .gguf file; of a split model its first shard.")],
    set: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=TYPE:VALUE", help="Set a key. TYPE is int, float, bool, str or a GGUF type."),
    ] = None,
    remove: Annotated[list[str] | None, Option("--remove", metavar="KEY", help="Remove a key.")] = None,
    chat_template: Annotated[
        Path | None, Option("--chat-template", metavar="FILE", help="Set the chat template from a file.")
    ] = None,
    out: Annotated[Path | None, Option("--out", metavar="FILE", help="Write a new file instead.")] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace --out if it exists.")] = False,
) -> None:
    """Change the metadata of a GGUF file.

    Tensors stay in place if the header has room; otherwise a new file replaces the old one. --set and --remove can be
    repeated.

    Examples:

      lbrx edit model.gguf --set general.name=str:My-Model --remove general.url

      lbrx edit model.gguf --chat-template template.jinja

      lbrx edit model.gguf --set tokenizer.ggml.eos_token_id=u32:128009 --out fixed.gguf
    """
    from lbrx.cli.console import plural
    from lbrx.jobs.edit.edit import edit as edit_file
    from lbrx.jobs.quantize.options import KeyOverride

    check_model(model)
    if model.is_dir():
        raise UsageError(f"{model}: is a directory; expected a .gguf file")
    overrides = [KeyOverride.parse(text) for text in set or ()]
    result = edit_file(
        model,
        {override.key: override.typed for override in overrides},
        remove=remove or (),
        chat_template=None if chat_template is None else _text(chat_template),
        out=out,
        overwrite=overwrite,
    )
    how = "in place" if result.is_in_place else "in a new file"
    print(f"{result.path}: {plural(result.changed, 'key')} set and {result.removed} removed, {how}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
