"""``imatrix``: measure how much each column of each weight matters for a text.

The importance of a column is the mean square of the activations that it is multiplied with. The text is cut into
chunks, each of which begins with the first token of a text if the tokenizer adds one, like ``llama-imatrix``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import remove_file
from lbrx.engine.device import computing_on
from lbrx.errors import FileError, LbrxError, UsageError
from lbrx.files.formats.source import read_text
from lbrx.files.output.options import CountCallback
from lbrx.files.output.plan import model_state
from lbrx.jobs.imatrix.calibration import CALIBRATION_NAME, calibration_text
from lbrx.jobs.imatrix.files import RawMatrix, Sums, read_sums
from lbrx.jobs.imatrix.writing import added, write_imatrix
from lbrx.models.inference import LanguageModel, open_model
from lbrx.models.inference.watching import MatrixName, matrix_names
from lbrx.models.inference.weights import Floats, Matrix
from lbrx.models.tokenizers.text import TextTokenizer, open_tokenizer
from lbrx.registry import RUNNERS, load
from lbrx.settings import arithmetic_version, using

DEFAULT_CONTEXT = 512
_SAVED_EVERY_SECONDS = 20.0
_OUTPUT_NAME = "output.weight"


Ids = npt.NDArray[np.int64]
ChunkMeasurer = Callable[[LanguageModel, Sequence[Ids], bool], Iterable[dict[str, Sums]]]


@dataclass(frozen=True, slots=True)
class ImatrixResult:
    """What was written: entries, chunks measured now, chunks in the file, and names of experts that no token used."""

    out: Path
    entries: int
    measured_chunks: int
    chunks: int
    unused: tuple[str, ...]


def imatrix(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    add: Sequence[str | os.PathLike[str]] = (),
    context: int = DEFAULT_CONTEXT,
    max_chunks: int | None = None,
    process_output: bool = False,
    overwrite: bool = False,
    progress: CountCallback | None = None,
    threads: int | None = None,
    device: str | None = None,
    cluster: str | None = None,
) -> ImatrixResult:
    """Write the importance matrix of a model of any format for texts: a ``Path`` or paths of files in UTF-8.

    Without a text, a short mixed text of this package is used. ``out`` is a GGUF file, or a legacy file if its name
    ends in ``.dat``. ``add`` are importance matrices that are added to what is measured. Call it again with the same
    arguments to resume a run that was stopped. ``progress`` is called with the chunks done, the total and a name.
    ``cluster`` is the address of a Ray cluster, or "auto" for the one of this machine: its workers measure chunks.

    >>> from lbrx.demo.models import demo_models
    >>> import lbrx, tempfile
    >>> result = imatrix(demo_models().base, Path(tempfile.mkdtemp()) / "i.gguf", max_chunks=1, context=32)
    >>> result.measured_chunks
    1
    """
    target, source = Path(out), Path(model)
    paths = [] if text is None else [Path(one) for one in ([text] if isinstance(text, str | os.PathLike) else text)]
    _check_target(target, overwrite)
    if context < 2:
        raise UsageError(f"a context of {context} tokens is too short; expected at least 2")
    if max_chunks is not None and max_chunks < 1:
        raise UsageError(f"max_chunks is {max_chunks}; expected at least 1")
    others = [(Path(each), read_sums(each)) for each in add]
    with computing_on(device, cluster), using(threads=threads):
        measure = measured_here if cluster is None else load(RUNNERS["imatrix"])(cluster, threads)
        run = _Run(source, target, paths, context, max_chunks, process_output)
        measured = run.measured(progress, measure)
    result = added([*others, (source, measured)])
    write_imatrix(target, result)
    run.forget()
    unused = tuple(name for name, sums in sorted(result.entries.items()) if not sums.counts.all())
    return ImatrixResult(target, len(result.entries), measured.chunk_count, result.chunk_count, unused)


def combine(out: str | os.PathLike[str], parts: Sequence[str | os.PathLike[str]], *, overwrite: bool = False) -> int:
    """Write the sum of importance matrices; returns the number of entries."""
    target = Path(out)
    _check_target(target, overwrite)
    result = added([(Path(each), read_sums(each)) for each in parts])
    write_imatrix(target, result)
    return len(result.entries)


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise FileError(f"{target}: exists already; give --overwrite to replace it")
    try:
        read_sums(target)
    except LbrxError as error:
        raise FileError(f"{error}; --overwrite replaces importance matrices only, expected another output") from error


def calibrated(
    model: str | os.PathLike[str],
    out: Path,
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    progress: CountCallback | None = None,
    cluster: str | None = None,
) -> Path:
    """Write the importance matrix of a model that is quantized beside the output, unless it is there already."""
    path = out.with_name(f"{out.name.removesuffix('.gguf')}.imatrix.gguf")
    texts = [Path(one) for one in ([text] if isinstance(text, str | os.PathLike) else text)]
    if path.exists():
        run = _Run(Path(model), path, texts, DEFAULT_CONTEXT, None, False)
        known = read_sums(path).identity
        if not known:
            raise FileError(f"{path}: was not measured by lbrx for this model; move it, or give it with --imatrix")
        if known == run.identity:
            run.forget()  # a run that was killed may not have done it
            return path
    imatrix(model, path, texts, overwrite=True, progress=progress, cluster=cluster)
    return path


class _Run:
    """Measures a text chunk by chunk, and saves what it has beside the target."""

    def __init__(
        self,
        source: Path,
        target: Path,
        paths: Sequence[Path],
        context: int,
        max_chunks: int | None,
        process_output: bool,
    ) -> None:
        self._model = open_model(source)
        tokenizer = open_tokenizer(source)
        context = min(context, self._model.spec.context_length)
        self._chunks, self._context = calibration_chunks(self._model, tokenizer, paths, context, max_chunks), context
        self._datasets = tuple(str(path) for path in paths) or (CALIBRATION_NAME,)
        self._with_output = process_output
        self._sums: dict[str, Sums] = {}
        self._partial = target.with_name(f".{target.name}.partial.npz")
        given = [arithmetic_version(), str(source.resolve()), model_state(source), context, process_output]
        digest = hashlib.sha256(json.dumps(given).encode())
        for chunk in self._chunks:
            digest.update(chunk.tobytes())
        self.identity = digest.hexdigest()

    def measured(self, progress: CountCallback | None, measure: ChunkMeasurer) -> RawMatrix:
        done, saved = self._restored(), monotonic()
        if progress is not None:
            progress(done, len(self._chunks), self._model.path.name)
        measured = measure(self._model, self._chunks[done:], self._with_output)
        for number, found in enumerate(measured, done):
            for name, sums in found.items():
                self._sums[name] = self._sums[name].plus(sums, name) if name in self._sums else sums
            if progress is not None and number + 1 < len(self._chunks):
                progress(number + 1, len(self._chunks), self._model.path.name)
            if monotonic() - saved > _SAVED_EVERY_SECONDS:
                self._save(number + 1)
                saved = monotonic()
        self._check()
        return RawMatrix(self._sums, self._datasets, len(self._chunks), self._context, self.identity)

    def forget(self) -> None:
        """Remove what a stopped run would need."""
        remove_file(self._partial)

    def _check(self) -> None:
        for name, sums in self._sums.items():
            if not np.isfinite(sums.squares).all():
                raise UsageError(f"{self._model.path}: activations of {name!r} are not finite")

    def _save(self, done: int) -> None:
        arrays: dict[str, Any] = {"identity": np.array(self.identity), "done": np.array(done)}
        for name, sums in self._sums.items():
            arrays[f"squares {name}"], arrays[f"counts {name}"] = sums.squares, sums.counts
        buffer = BytesIO()
        np.savez(buffer, **arrays)
        write_atomically(self._partial, buffer.getvalue(), sync=False)

    def _restored(self) -> int:
        """The number of chunks that an earlier run with the same arguments has measured."""
        try:
            with np.load(self._partial, allow_pickle=False) as stored:
                if str(stored["identity"]) != self.identity:
                    return 0
                names = [key.removeprefix("squares ") for key in stored if key.startswith("squares ")]
                self._sums |= {name: Sums(stored[f"squares {name}"], stored[f"counts {name}"]) for name in names}
                return int(stored["done"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return 0


def measured_here(model: LanguageModel, chunks: Sequence[Ids], with_output: bool) -> Iterator[dict[str, Sums]]:
    """Yield the sums of each chunk of a text."""
    names = matrix_names(model.spec, model.weights)
    for chunk in chunks:
        sums: dict[str, Sums] = {}
        model.run_watched(chunk, _Watcher(names, sums), with_output=with_output)
        yield sums


class _Watcher:
    """Adds the squares of what matrices are multiplied with; matrices that share their input share the work."""

    def __init__(self, names: dict[int, MatrixName], sums: dict[str, Sums]) -> None:
        self._names, self._sums = names, sums
        self._values: Floats | None = None
        self._squares: Any = None

    def __call__(self, matrix: Matrix, values: Floats) -> None:
        name = self._names.get(id(matrix))
        if name is None or not (name.tensor.startswith("blk.") or name.tensor == _OUTPUT_NAME):
            return
        if self._values is not values:
            rows = values.reshape(-1, values.shape[-1])
            self._values, self._squares = values, np.einsum("ij,ij->j", rows, rows)
        sums = self._sums.get(name.tensor)
        if sums is None:
            sums = Sums(np.zeros((name.items, values.shape[-1])), np.zeros(name.items))
            self._sums[name.tensor] = sums
        sums.squares[name.item] += self._squares
        sums.counts[name.item] += math.prod(values.shape[:-1])


def calibration_chunks(
    model: LanguageModel, tokenizer: TextTokenizer, paths: Sequence[Path], context: int, max_chunks: int | None
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The tokens of each chunk. A text that is shorter than a chunk is one."""
    texts = [read_text(path) for path in paths] or [calibration_text()]
    first = [] if tokenizer.bos_id is None or not tokenizer.special.add_bos else [tokenizer.bos_id]
    ids = list(first)
    for text in texts:
        ids += tokenizer.encode(text, add_special=False)
    count = max(len(ids) // context, 1)
    count = count if max_chunks is None else min(count, max_chunks)
    if len(ids) < 2:
        raise UsageError("the text has less than 2 tokens; expected more to measure")
    chunks = [model.checked_ids(ids[number * context : (number + 1) * context]).copy() for number in range(count)]
    for chunk in chunks:
        chunk[: len(first)] = first
    return chunks
