"""All checks of a model, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.files.checkpoint.opening import Checkpoint, open_checkpoint
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.options import CountCallback
from lbrx.jobs.verify.code_files import check_code
from lbrx.jobs.verify.generation import check_generation
from lbrx.jobs.verify.names_and_shapes import Shapes, check_config, check_gguf, check_vocabulary, model_shapes
from lbrx.jobs.verify.records import Check, Finding, NotPossible, Severity, VerifyReport, failure
from lbrx.jobs.verify.special_tokens import check_special_tokens
from lbrx.jobs.verify.structure import check_index, expected_checksums
from lbrx.jobs.verify.templates import check_template

CHECKS = (
    "structure",
    "architecture",
    "vocabulary",
    "special tokens",
    "chat template",
    "code",
    "generation settings",
    "checksums",
    "values",
)


def verify(
    path: str | os.PathLike[str],
    *,
    quick: bool = False,
    base: str | os.PathLike[str] | None = None,
    progress: CountCallback | None = None,
) -> VerifyReport:
    """Check a model: headers, names and shapes, tokens, chat template, code, settings, checksums, and every value.

    With ``quick`` no weights are read: checksums and values are not checked. The chat template is compared with that of
    ``base``, or of the local ``base_model`` that the model card names. ``progress`` is called with tensors done,
    tensors in all, and a name. A damaged model does not raise an exception: the report says what is wrong.

    >>> import lbrx, tempfile
    >>> path = tempfile.mkdtemp() + "/a.safetensors"
    >>> lbrx.save(path, {"w": lbrx.tensor([1.0, float("inf")], "f32")})
    >>> [finding.text for finding in verify(path).errors]
    ['has 0 NaN and 1 infinite values of 2']
    >>> report = verify(path, quick=True)
    >>> report.is_good, report.checks[-1].reason
    (True, 'weights are not read')
    """
    location = Path(path)
    try:
        model = open_checkpoint(location)
    except LbrxError as broken:
        checks = (Check("structure"), *(Check(name, "the model cannot be opened") for name in CHECKS[1:]))
        return VerifyReport(location, None, 0, 0, checks, (failure(str(location), broken),))
    run = _Run(model)
    run.headers(None if base is None else Path(base))
    if quick:
        run.checks += [Check(name, "weights are not read") for name in CHECKS[-2:]]
    else:
        run.data(progress)
    return VerifyReport(location, model.format, len(model), model.nbytes, tuple(run.checks), tuple(run.findings))


class _Run:
    """The checks of one model that were done so far, and what they found."""

    def __init__(self, model: Checkpoint) -> None:
        self.model = model
        self.checks: list[Check] = []
        self.findings: list[Finding] = []
        self.shapes: Shapes | None = None

    def headers(self, base: Path | None) -> None:
        model = self.model
        check_names = check_gguf if model.format.startswith("gguf") else check_config
        self._check("structure", self._structure)
        self._check("architecture", lambda: check_names(model, self._known_shapes()))
        self._check("vocabulary", lambda: check_vocabulary(model, self._known_shapes()))
        self._check("special tokens", lambda: check_special_tokens(model, self._known_shapes()))
        self._check("chat template", lambda: check_template(model, base))
        self._check("code", lambda: check_code(model))
        self._check("generation settings", lambda: check_generation(model))

    def data(self, progress: CountCallback | None) -> None:
        checksums: dict[str, str] = {}

        def read_checksums() -> Iterator[Finding]:
            expected, findings = expected_checksums(self.model)
            checksums.update(expected)
            yield from findings
            if not expected and findings:
                raise NotPossible(findings[0].text)

        self._check("checksums", read_checksums)
        self._check("values", lambda: self._values(checksums, progress))

    def _check(self, name: str, check: Callable[[], Iterator[Finding]]) -> None:
        """Run a check. Its notes say what was not possible."""
        reason, first = None, len(self.findings)
        try:
            with reading(self.model.path):
                for finding in check():
                    self.findings.append(finding)
        except NotPossible as missing:
            reason = str(missing)
        except LbrxError as broken:
            self.findings.append(failure(str(self.model.path), broken))
            reason = self.findings[-1].text
        notes = [finding for finding in self.findings[first:] if finding.severity is Severity.note]
        if reason is None and notes:
            more = f", and {len(notes) - 1} more" if len(notes) > 1 else ""
            reason = f"{notes[0].place}: {notes[0].text}{more}"
        self.checks.append(Check(name, reason))

    def _structure(self) -> Iterator[Finding]:
        yield from check_index(self.model)
        self.shapes = model_shapes(self.model)

    def _known_shapes(self) -> Shapes:
        if self.shapes is None:
            raise NotPossible("the structure is broken")
        return self.shapes

    def _values(self, checksums: dict[str, str], progress: CountCallback | None) -> Iterator[Finding]:
        from lbrx.jobs.verify.values import check_values  # threads and kernels, which headers do not need

        model = self.model
        tensors = [(header, entry) for header in model.files for entry in header.entries]
        unread = 0
        for number, (header, entry) in enumerate(tensors):
            try:
                yield from check_values(model, header, entry, checksums.get(entry.name))
            except LbrxError as broken:
                yield failure(entry.name, broken)
                unread += 1
            if progress is not None:
                progress(number + 1, len(tensors), entry.name)
        if unread:
            raise NotPossible(f"{unread} tensors cannot be read")
