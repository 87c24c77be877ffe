"""All checks of a model, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.options import CountCallback
from lbrx.jobs.verify.names_and_shapes import check_config, check_gguf, check_vocabulary, model_shapes
from lbrx.jobs.verify.records import Finding, VerifyReport, failure
from lbrx.jobs.verify.structure import check_index, expected_checksums

HEADER_CHECKS = ("structure", "architecture", "vocabulary")
DATA_CHECKS = ("checksums", "values")


def verify(path: str | os.PathLike[str], *, quick: bool = False, progress: CountCallback | None = None) -> VerifyReport:
    """Check a model: its headers and index, names and shapes, vocabulary, checksums, and every value.

    With ``quick`` no weights are read: checksums and values are not checked. ``progress`` is called with tensors done,
    tensors in all, and a name. A model that is broken is no exception: the report says so.

    >>> import lbrx, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"w": lbrx.tensor([1.0, float("inf")], "f32")})
    >>> [finding.text for finding in verify(path).errors]
    ['has 0 NaN and 1 infinite values of 2']
    >>> verify(path, quick=True).is_good
    True
    """
    location = Path(path)
    try:
        model = open_checkpoint(location)
    except LbrxError as broken:
        return VerifyReport(location, None, 0, 0, ("structure",), (failure(str(location), broken),))
    findings = list(_header_findings(model))
    if not quick:
        findings += _data_findings(model, progress)
    checks = HEADER_CHECKS if quick else (*HEADER_CHECKS, *DATA_CHECKS)
    return VerifyReport(location, model.format, len(model), model.nbytes, checks, tuple(findings))


def _header_findings(model: Checkpoint) -> Iterator[Finding]:
    try:
        yield from check_index(model)
        shapes = model_shapes(model)
    except LbrxError as broken:
        yield failure(str(model.path), broken)
        return
    for check in (check_gguf if model.format.startswith("gguf") else check_config, check_vocabulary):
        try:
            with reading(model.path):
                yield from list(check(model, shapes))
        except LbrxError as broken:
            yield failure(str(model.path), broken)


def _data_findings(model: Checkpoint, progress: CountCallback | None) -> Iterator[Finding]:
    from lbrx.jobs.verify.values import check_values  # threads and kernels, which headers do not need

    try:
        checksums, findings = expected_checksums(model)
    except LbrxError as broken:
        checksums, findings = {}, [failure(str(model.path), broken)]
    yield from findings
    tensors = [(header, entry) for header in model.files for entry in header.entries]
    for number, (header, entry) in enumerate(tensors):
        try:
            yield from check_values(model, header, entry, checksums.get(entry.name))
        except LbrxError as broken:
            yield failure(entry.name, broken)
        if progress is not None:
            progress(number + 1, len(tensors), entry.name)
