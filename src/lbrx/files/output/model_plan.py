"""A model's contents laid out as files: the plan of an output that ``execute`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.formats.header import FileHeader, FileLayout
from lbrx.files.formats.model_files import CONFIG_NAME, INDEX_NAME
from lbrx.files.formats.shards import index_json, lay_out_gguf, lay_out_safetensors
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.plan import NO_LIMIT_BYTES, Identity, SideFile, output_identity
from lbrx.tensors.expr import Expr
from lbrx.tensors.tensor import Tensor


@dataclass(frozen=True, eq=False)
class ModelPlan:
    """A model that is written in a format: an ``OutputPlan``."""

    out: Path
    is_directory: bool
    layouts: tuple[FileLayout, ...]
    side_files: tuple[SideFile, ...]
    tensors: Mapping[str, PlannedTensor]
    sources: tuple[FileHeader, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name].make()

    def expression(self, name: str) -> Expr:
        return self.tensor(name).expr

    def unit(self, name: str) -> str:
        return self.tensors[name].unit or name

    def inputs(self, name: str) -> Mapping[str, Tensor]:
        del name  # the counts of the result tell what there is to know
        return {}

    def identity(self, contents: Mapping[str, bytes]) -> Identity:
        return {
            **{name: str(value) for name, value in self.settings.items()},
            **output_identity(self.sources, self.layouts, contents),
        }


def plan_output(
    contents: Contents,
    out: Path,
    *,
    max_shard_bytes: int = NO_LIMIT_BYTES,
    settings_identity: Mapping[str, Any] | None = None,
) -> ModelPlan:
    """Decide where every tensor of a model goes. Nothing is read or written.

    A GGUF model is a file, or shards that are named after it; a SafeTensors model is a directory, or a file if ``out``
    ends in ``.safetensors``. ``settings_identity`` is what the values of the tensors depend on besides the files.

    >>> import lbrx
    >>> contents = Contents("gguf", (PlannedTensor.of("w", lbrx.full((2, 3), 1.0, "f32")),))
    >>> [layout.name for layout in plan_output(contents, Path("out.gguf")).layouts]
    ['out.gguf']
    """
    specs = [tensor.spec for tensor in contents.tensors]
    if contents.format == "gguf":
        if out.suffix != ".gguf":
            raise UsageError(f"{out}: a GGUF model is a file; expected a name that ends in .gguf")
        layouts = lay_out_gguf(specs, contents.metadata, max_shard_bytes, out.name.removesuffix(".gguf"))
        return _plan(contents, out, False, layouts, (), settings_identity)
    if out.suffix == ".gguf":
        raise UsageError(f"{out}: would not be a GGUF file; expected the name of a directory")
    metadata = {"format": "mlx" if contents.format == "mlx" else "pt", **contents.metadata}
    if out.suffix == ".safetensors":
        layouts = lay_out_safetensors(specs, metadata, max_shard_bytes, out.name.removesuffix(".safetensors"))
        return _plan(contents, out, False, layouts, (), settings_identity)
    layouts = lay_out_safetensors(specs, metadata, max_shard_bytes)
    return _plan(contents, out, True, layouts, _directory_files(contents, layouts), settings_identity)


def _plan(
    contents: Contents,
    out: Path,
    is_directory: bool,
    layouts: list[FileLayout],
    side_files: tuple[SideFile, ...],
    settings: Mapping[str, Any] | None,
) -> ModelPlan:
    return ModelPlan(
        out,
        is_directory,
        tuple(layouts),
        side_files,
        contents.by_name,
        contents.sources,
        settings or {},
        contents.warnings,
    )


def _directory_files(contents: Contents, layouts: list[FileLayout]) -> tuple[SideFile, ...]:
    files = [file for file in contents.side_files if file.name not in (CONFIG_NAME, INDEX_NAME)]
    if contents.config is not None:
        text = json.dumps(contents.config, indent=2, ensure_ascii=False) + "\n"
        files.insert(0, SideFile(CONFIG_NAME, text.encode()))
    if len(layouts) > 1 or contents.format == "mlx":
        files.append(SideFile(INDEX_NAME, index_json(layouts)))
    return tuple(files)
