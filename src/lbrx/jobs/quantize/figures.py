"""Size and quality of several outputs of one model, as a record in their directory and as a model card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lbrx.base.atomic_write import write_atomically
from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import format_bytes
from lbrx.settings import settings
from lbrx.version import __version__

if TYPE_CHECKING:
    from lbrx.jobs.score.records import Score
    from lbrx.jobs.score.statistics import Estimate

RECORD_NAME = "quantized.json"
PICTURE_NAME = "size_against_divergence.png"
_Interval: TypeAlias = tuple[float, float, float]  # value, low and high end of the 95 % interval


@dataclass(frozen=True, slots=True)
class Quality:
    """What a text says of an output: perplexity, divergence from the source in nats, and share of equal top tokens."""

    identity: str  # of the text, the source and the output
    tokens: int
    perplexity: _Interval
    divergence: _Interval
    same_top: _Interval
    source_perplexity: _Interval
    text_name: str = ""
    text_digest: str = ""
    activation_bits: int = 16


@dataclass(frozen=True, slots=True)
class Output:
    """One output: its file or directory, its type, and the states of its files when it was finished."""

    name: str
    type_name: str
    identity: str
    file_bytes: int
    bits_per_weight: float
    states: Mapping[str, Sequence[Any]] | None = None
    quality: Quality | None = None
    states_before: Mapping[str, Sequence[Any]] | None = None  # of files that an unfinished run replaces


Drawing: TypeAlias = Callable[[Path, Sequence[Output]], None]


def read_record(directory: Path) -> dict[str, Output]:
    """The outputs that a directory has a record of; a record that cannot be read counts as none."""
    try:
        rows = json.loads((directory / RECORD_NAME).read_bytes())["outputs"]
        return {row["name"]: _output(row) for row in rows}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _output(row: dict[str, Any]) -> Output:
    quality = row.pop("quality")
    if quality is not None:
        for name in ("perplexity", "divergence", "same_top", "source_perplexity"):
            quality[name] = tuple(quality[name])
    return Output(**row, quality=None if quality is None else Quality(**quality))


def write_record(directory: Path, outputs: Mapping[str, Output]) -> None:
    rows = [asdict(outputs[name]) for name in sorted(outputs)]
    text = json.dumps({"version": __version__, "outputs": rows}, indent=1) + "\n"
    write_atomically(directory / RECORD_NAME, text.encode())


def is_there(directory: Path, output: Output) -> bool:
    """Whether an output exists: by its name, or as shards."""
    return any((directory / name).exists() for name in (output.name, *(output.states or ())))


def comparable(outputs: Sequence[Output], name: str) -> list[Output]:
    """The outputs without figures of other texts and precisions than those of ``name``, or else of the first."""
    known = {each.name: (each.quality.text_digest, each.quality.activation_bits) for each in outputs if each.quality}
    wanted = known.get(name, next(iter(known.values()), None))
    return [each if known.get(each.name) == wanted else replace(each, quality=None) for each in outputs]


def quality_of(identity: str, scored: Score, reference: Score, text_name: str, text_digest: str) -> Quality:
    assert scored.divergence is not None
    return Quality(
        identity,
        scored.tokens,
        _triple(scored.perplexity_interval),
        _triple(scored.divergence.mean_interval),
        _triple(scored.divergence.same_top_interval),
        _triple(reference.perplexity_interval),
        text_name,
        text_digest,
        settings.activation_bits,
    )


def _triple(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def card_text(head: bytes, model: str, outputs: Sequence[Output], has_picture: bool) -> str:
    """A model card: a table of the outputs. ``head`` is its YAML, or nothing."""
    rows = sorted(outputs, key=lambda each: each.file_bytes)
    scored = [each.quality for each in rows if each.quality is not None]
    lines = [f"# {model}, quantized", ""]
    lines += [f"{len(rows)} outputs of [lbrx](https://pypi.org/project/lbrx/) {__version__}.", ""]
    headings = ["file", "type", "size", "bits per weight"]
    headings += ["KL divergence", "same top token", "perplexity"] if scored else []
    lines += [_row(headings), _row(["---", "---"] + ["---:"] * (len(headings) - 2))]
    empty = [""] * 3 if scored else []
    lines += [_row([*_size_cells(each), *(_quality_cells(each) or empty)]) for each in rows]
    if scored:
        lines += ["", _explanation(scored[0])]
    if has_picture:
        lines += ["", f"![Size against divergence]({PICTURE_NAME})"]
    return head.decode() + ("\n" if head else "") + "\n".join(lines) + "\n"


def _explanation(quality: Quality) -> str:
    source = _with_interval(quality.source_perplexity, ".5g")
    precision = "" if quality.activation_bits == 16 else f", with activations of {quality.activation_bits} bits"
    return (
        f"Measured on {quality.tokens:,} tokens of `{quality.text_name}`{precision}. "
        f"The unquantized model has a perplexity of {source}. "
        "The KL divergence is that of the predictions from those of the unquantized model, in nats per token: lower is "
        "better, and 0 is no difference. Ranges are 95 % confidence intervals."
    )


def _size_cells(output: Output) -> list[str]:
    return [
        f"`{output.name}`",
        output.type_name,
        format_bytes(output.file_bytes),
        f"{output.bits_per_weight:.2f}",
    ]


def _quality_cells(output: Output) -> list[str]:
    quality = output.quality
    if quality is None:
        return []
    shares = tuple(100 * each for each in quality.same_top)
    return [
        _with_interval(quality.divergence, ".5f"),
        _with_interval(shares, ".2f", " %"),
        _with_interval(quality.perplexity, ".5g"),
    ]


def _with_interval(interval: Sequence[float], form: str, unit: str = "") -> str:
    value, low, high = interval
    return f"{value:{form}}{unit} ({low:{form}} to {high:{form}})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
