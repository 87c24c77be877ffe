"""The identity of a plan that has remote inputs: their sizes and versions are asked from their services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lbrx.conversion.writing import ConversionPlan
from lbrx.formats.header import FileHeader
from lbrx.output_plan import Identity, OutputPlan, digest
from lbrx.plan import Plan
from lbrx.plan.identity import merge_identity
from lbrx.remote.paths import RemotePath

if TYPE_CHECKING:
    from lbrx.plan.records import InputModel


def remote_identity(plan: OutputPlan, contents: Mapping[str, bytes]) -> Identity:
    """``plan.identity(contents)``, and for every remote input its size, its version and what its header says."""
    remote = remote_inputs(plan)
    if not remote:
        return plan.identity(contents)
    from lbrx.remote.filesystem import fresh_state_of

    found = {}
    for header, path in remote:
        state = fresh_state_of(path)
        names = "\n".join(f"{entry.name} {entry.type_name} {entry.shape} {entry.offset}" for entry in header.entries)
        found[str(path)] = [state.nbytes, state.version, digest(names.encode(errors="surrogatepass"))]
    return {**_local_identity(plan, contents), "remote file": found}


def remote_inputs(plan: OutputPlan) -> list[tuple[FileHeader, RemotePath]]:
    """The headers of inputs that are not on this machine."""
    if isinstance(plan, Plan):
        headers: Iterable[FileHeader] = (header for model in plan.models for header in model.files)
    elif isinstance(plan, ConversionPlan):
        headers = plan.sources
    else:
        headers = ()
    return [(header, header.path) for header in headers if isinstance(header.path, RemotePath)]


def _local_identity(plan: OutputPlan, contents: Mapping[str, bytes]) -> Identity:
    if isinstance(plan, Plan):
        models = [_with_local_files(model) for model in plan.models]
        return merge_identity(plan.stage, models, plan.recipe_text, plan.seed, plan.layouts, contents)
    assert isinstance(plan, ConversionPlan)
    return replace(plan, sources=_local(plan.sources)).identity(contents)


def _with_local_files(model: InputModel) -> InputModel:
    return replace(model, files=_local(model.files))


def _local(headers: Iterable[FileHeader]) -> tuple[FileHeader, ...]:
    return tuple(header for header in headers if not isinstance(header.path, RemotePath))
