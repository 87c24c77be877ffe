"""`lbrx demo`: merge, quantize and score three small language models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from lbrx.base.fast_dataclass import dataclass
from lbrx.base.system import anonymous_bytes, format_bytes
from lbrx.cli.console import columns, count_text, output_console, plural
from lbrx.cli.parameters import Option
from lbrx.demo.models import DemoModels, demo_models, demo_recipes
from lbrx.errors import FileError
from lbrx.files.checkpoint.opening import open_checkpoint

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lbrx.jobs.score.records import Score

QUANTIZED_TO = ("q8_0", "q4_k_m")
PROMPTS = ("And the king said unto", "    def __init__(self,")
_CONTEXT = 256
_STRIDE = 192
_TOKENS = 3000  # per text
_NEW_TOKENS = 12  # no line is longer than 100 columns


@dataclass(frozen=True, slots=True)
class Rated:
    """A model and its scores on both texts."""

    name: str
    path: Path
    prose: Score
    code: Score

    @property
    def mean_loss(self) -> float:
        return (self.prose.loss + self.code.loss) / 2

    @property
    def worst_loss(self) -> float:
        return max(self.prose.loss, self.code.loss)


def demo(
    output: Annotated[Path, Option("--output", help="Directory to write to.")] = Path("demo-output"),
) -> None:
    """Merge, quantize and score small language models.

    The package contains a base model and two fine-tunes of it, one on English prose and one on Python code. The first
    run compiles the kernels, which takes several seconds. Later runs load them from a cache.

    Examples:

      lbrx demo

      lbrx demo --output /tmp/demo
    """
    if output.exists() and not output.is_dir():
        raise FileError(f"{output}: is a file; expected a directory to write to")
    console = output_console()
    shipped = demo_models()
    parents = {"base": shipped.base, "prose": shipped.prose, "code": shipped.code}
    with _step(console, "1. Three small Llama models: a base, and fine-tunes on English prose and Python code"):
        for path in parents.values():
            _print_model(console, path)
    with _step(console, "2. Merge the fine-tunes with several methods"):
        merged = _merge_all(shipped, output)
        for path in merged.values():
            console.print(f"   $ lbrx merge {path}.yml {path}", soft_wrap=True)
    with _step(console, "3. Score all models on held-out text (perplexity, lower is better)"):
        rated = [_rate(name, path, shipped) for name, path in {**parents, **merged}.items()]
        best = min((one for one in rated if one.name in merged), key=lambda one: one.mean_loss)
        console.print(_table(rated, best))
        for line in _verdicts(rated, best):
            console.print(f"   {line}", soft_wrap=True)
    with _step(console, f"4. Quantize the best merge ({best.name}) to GGUF and compare predictions with the original"):
        files = _quantize(best, output)
        for type_name, path in files.items():
            console.print(f"   $ lbrx quantize {best.path} {path} --to {type_name}", soft_wrap=True)
        console.print(_quantized_table(best, files, shipped))
    with _step(console, "5. Cosine between the changes that the two fine-tunes made to the base, layer by layer"):
        console.print(f"   {_heat_map(shipped, output)}", soft_wrap=True)
    with _step(console, "6. Generate text"):
        for name, path in {"prose": shipped.prose, "code": shipped.code, best.name: best.path}.items():
            for prompt in PROMPTS:
                console.print(f"   {name:<{max(len(best.name), 5)}}  {_continued(path, prompt)!r}", soft_wrap=True)
    console.print(f"The demo used {format_bytes(anonymous_bytes())} of memory. The files are in {output}. Try:")
    console.print(f"   $ lbrx generate {files[QUANTIZED_TO[-1]]} -p 'And God said'", soft_wrap=True)


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    console.print(title, style="bold")
    start = perf_counter()
    yield
    console.print(f"   {perf_counter() - start:.1f} s\n", style="dim")


def _print_model(console: Console, path: Path) -> None:
    model = open_checkpoint(path)
    parameters = sum(tensor.size for tensor in model.values())
    text = f"   {path.name:<6} {count_text(parameters)} parameters in {plural(len(model), 'tensor')}"
    console.print(f"{text}, {format_bytes(model.nbytes)}", soft_wrap=True)


def _merge_all(shipped: DemoModels, output: Path) -> dict[str, Path]:
    from lbrx.jobs.merge.merge import merge

    output.mkdir(parents=True, exist_ok=True)
    merged = {}
    for name, recipe in demo_recipes(shipped).items():
        merged[name] = output / name
        (output / f"{name}.yml").write_text(recipe, encoding="utf-8")
        merge(output / f"{name}.yml", merged[name], overwrite=True, sync=False)
    return merged


def _rate(name: str, path: Path, shipped: DemoModels) -> Rated:
    from lbrx.jobs.score.score import score

    texts = (shipped.prose_text, shipped.code_text)
    prose, code = (score(path, text, context=_CONTEXT, stride=_STRIDE, max_tokens=_TOKENS)[0] for text in texts)
    return Rated(name, path, prose, code)


def _table(rated: Sequence[Rated], best: Rated) -> Table:
    table = columns("   model", "prose", "code", "mean loss", "worst loss", left=("   model",))
    for one in rated:
        cells = (f"{one.prose.perplexity:.2f}", f"{one.code.perplexity:.2f}", f"{one.mean_loss:.3f}")
        table.add_row(f"   {one.name}", *cells, f"{one.worst_loss:.3f}", style="bold" if one is best else None)
    return table


def _verdicts(rated: Sequence[Rated], best: Rated) -> Iterator[str]:
    """Summarize the table in sentences."""
    by_name: Mapping[str, Rated] = {one.name: one for one in rated}
    for name in ("prose", "code", "base"):
        other = by_name[name]
        ratio = math.exp(best.mean_loss - other.mean_loss)
        relation = f"{1 - ratio:.0%} lower" if ratio < 1 else f"{ratio - 1:.0%} higher"
        yield f"the perplexity of {best.name} over both texts is {relation} than that of {name}"


def _quantize(best: Rated, output: Path) -> dict[str, Path]:
    from lbrx.jobs.quantize import quantize

    files = {}
    for type_name in QUANTIZED_TO:
        files[type_name] = output / f"{best.name}-{type_name}.gguf"
        quantize(best.path, files[type_name], to=type_name, overwrite=True, sync=False)
    return files


def _quantized_table(best: Rated, files: Mapping[str, Path], shipped: DemoModels) -> Table:
    from lbrx.jobs.score.score import score

    headings = ("   model", "bytes", "prose", "code", "KL on prose", "KL on code", "same top")
    table = columns(*headings, left=("   model",))
    paths = list(files.values())
    prose, code = (
        score(paths, text, reference=best.path, context=_CONTEXT, stride=_STRIDE, max_tokens=_TOKENS)
        for text in (shipped.prose_text, shipped.code_text)
    )
    for of_prose, of_code in zip(prose, code, strict=True):
        cells = [f"   {of_prose.model.name}", format_bytes(open_checkpoint(of_prose.model).nbytes)]
        cells += [f"{of_prose.perplexity:.2f}", f"{of_code.perplexity:.2f}"]
        if of_prose.divergence is not None and of_code.divergence is not None:
            cells += [f"{of_prose.divergence.mean:.5f}", f"{of_code.divergence.mean:.5f}"]
            cells.append(f"{(of_prose.divergence.same_top + of_code.divergence.same_top) / 2:.1%}")
        table.add_row(*cells)
    return table


def _heat_map(shipped: DemoModels, output: Path) -> str:
    from lbrx.cli.diff import Metric, heat_map
    from lbrx.jobs.compare.diff import diff_models

    models = [open_checkpoint(path) for path in (shipped.prose, shipped.code, shipped.base)]
    difference = diff_models(models[0], models[1], models[2])
    summary = f"{difference.total.task_cosine:.3f} over the whole model"
    if find_spec("matplotlib") is None:
        return f"{summary}; install matplotlib for the heat map: pip install 'lbrx[plot]'"
    from lbrx.plots.heat_map import draw_heat_map

    target = output / "changes.png"
    draw_heat_map(target, heat_map(difference, Metric.tasks, "A: prose   B: code   base: base"))
    return f"{summary}; heat map: {target}"


def _continued(path: Path, prompt: str) -> str:
    from lbrx.models.inference import open_model
    from lbrx.models.tokenizers.text import open_tokenizer

    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode(prompt)
    new = open_model(path).generate(ids, _NEW_TOKENS, stop_ids=tokenizer.stop_ids)
    return tokenizer.decode([*ids, *new])
