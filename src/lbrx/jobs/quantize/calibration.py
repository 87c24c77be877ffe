"""What texts say of a model before it is quantized: importances, and for a size the sensitivity of each tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lbrx.base.file_lock import open_locked
from lbrx.base.system import make_directory, remove_file
from lbrx.engine.device import computing_on
from lbrx.errors import UsageError
from lbrx.files.formats.source import read_text
from lbrx.files.formats.strict_json import reading
from lbrx.files.output.options import RunKeywords
from lbrx.files.remote.paths import is_remote
from lbrx.jobs.convert.reading import read_contents
from lbrx.jobs.imatrix.generated import is_generated, written_texts
from lbrx.jobs.imatrix.imatrix import calibrated
from lbrx.jobs.quantize.budget import Measuring, trials
from lbrx.jobs.quantize.importance import read_importances
from lbrx.jobs.quantize.mlx_model import mlx_trials
from lbrx.jobs.quantize.options import QuantizeOptions, parse_options
from lbrx.jobs.quantize.sensitivity import measure_sensitivities, sensitivity_path
from lbrx.jobs.quantize.target_format import check_output_format, in_target_format
from lbrx.jobs.quantize.targets import MlxTarget, model_name
from lbrx.memory.limits import limited


@contextmanager
def calibrating(files: Iterable[Path], measuring: Measuring | None = None) -> Iterator[None]:
    """Hold the locks of measurements beside outputs; other runs wait. ``files`` are the stems of their names.

    >>> import tempfile
    >>> with calibrating([Path(tempfile.mkdtemp()) / "model"]):
    ...     print("alone")
    alone
    """
    with ExitStack() as stack:
        for file in sorted(set(files)):
            stack.enter_context(_locked(file.with_name(f".{file.name}.calibration.lock"), measuring))
        yield


@contextmanager
def _locked(path: Path, measuring: Measuring | None) -> Iterator[None]:
    if is_remote(path):
        yield
        return
    make_directory(path.parent)
    descriptor = open_locked(path)
    if descriptor is None:
        if measuring is not None:
            measuring(0, 1, "another run that calibrates")
        descriptor = open_locked(path, wait_seconds=math.inf)
    try:
        yield
    finally:
        remove_file(path)
        if descriptor is not None:
            os.close(descriptor)


def cluster_address(options: RunKeywords) -> str | None:
    """The address of the cluster of a run, or None."""
    cluster = options.get("cluster")
    return cluster if cluster is None or isinstance(cluster, str) else cluster.address


def files_of_one(source: Path, out: Path, options: QuantizeOptions) -> list[Path]:
    """The stems of the measurements for one output. Outputs for different sizes share those of the model."""
    own = out.with_name(out.name.removesuffix(".gguf"))
    return [own, out.with_name(model_name(source))] if options.has_size else [own]


def parse_before_calibration(
    out: str | os.PathLike[str], choices: Mapping[str, Any], texts: Sequence[Path]
) -> QuantizeOptions:
    """The options, checked before texts are run; the importance matrix that will be measured is left out."""
    needing = {"include_weights": (), "exclude_weights": ()}
    parsed = parse_options(**{**choices, **needing})
    if parsed.imatrix is not None:
        raise UsageError("--calibrate and --imatrix cannot be used together")
    if not parsed.has_size:
        replace(parsed, imatrix=Path(out))  # raises if the type does not use it
    elif parsed.prune_layers:
        raise UsageError("--calibrate with a size cannot be used with --prune-layers; remove the layers first")
    check_output_format(Path(out), parsed)
    check_texts(texts)
    return parsed


def check_texts(texts: Sequence[Path]) -> None:
    """Raise for texts that cannot be run, but for one that the model will write."""
    for text in texts:
        if not is_generated(text) and not read_text(text):
            raise UsageError(f"{text}: is empty; expected a text")


def texts_of_run(
    source: str | os.PathLike[str],
    out: Path,
    texts: Sequence[Path],
    options: RunKeywords,
    measuring: Measuring | None,
) -> list[Path]:
    """The texts to calibrate with. For ``generated``, the model writes one."""
    with limited(options.get("threads"), options.get("memory")), computing_on(options.get("device"), None):
        return written_texts(Path(source), out, texts, measuring)


def calibrated_options(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    choices: Mapping[str, Any],
    texts: Sequence[Path],
    device: str | None = None,
    measuring: Measuring | None = None,
    cluster: str | None = None,
) -> QuantizeOptions:
    """Run texts for the importance matrix and, if there is a size, for the sensitivity of each tensor.

    What was measured before is used again. Outputs of different sizes in a directory share it.
    """
    parsed, imatrix = parse_before_calibration(out, choices, texts), choices.get("imatrix")
    with computing_on(device, None):
        texts = written_texts(Path(source), Path(out), texts, measuring)
    shared = Path(out).with_name(f"{model_name(Path(source))}.gguf") if parsed.has_size else out
    if parsed.has_size and isinstance(parsed.target, MlxTarget):
        options = parse_options(**choices)
    else:
        path = calibrated_imatrix(source, shared, texts, imatrix, device, measuring, cluster)
        options = parse_options(**{**choices, "imatrix": path})
    if not options.has_size:
        return options
    path = sensitivity_path(Path(out), model_name(Path(source)))
    with computing_on(device, None), reading(source):
        contents = in_target_format(read_contents(Path(source)), options)
        if isinstance(options.target, MlxTarget):
            wanted = mlx_trials(contents, options)
        else:
            wanted = trials(contents, options, read_importances(options, None))
        measure_sensitivities(Path(source), path, wanted, texts, measuring)
    return replace(options, sensitivity=path)


def calibrated_imatrix(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    texts: Sequence[Path],
    imatrix: str | Path | None,
    device: str | None = None,
    measuring: Measuring | None = None,
    cluster: str | None = None,
) -> Path:
    """Measure the importance matrix of a model for texts, unless that was done before; returns its path."""
    if imatrix is not None:
        raise UsageError("--calibrate and --imatrix cannot be used together")
    with computing_on(device, None):
        return calibrated(source, Path(out), texts, measuring, cluster)
