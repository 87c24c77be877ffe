"""The difference of a fine-tuned model and its base as a LoRA adapter."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from lbrx.base import system
from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import DTypeError, FormatError, UsageError
from lbrx.files.checkpoint.opening import open_checkpoint
from lbrx.files.formats.model_files import OTHER_FILES, TOKENIZER_FILES
from lbrx.files.output.options import CountCallback
from lbrx.jobs.lora.parts import PREFIX
from lbrx.jobs.lora.peft_directory import adapter_directory, peft_config, write_adapter
from lbrx.jobs.lora.spool import Spool
from lbrx.jobs.lora.svd import Matrix, RowBlocks, SingularVectors, leading_singular_vectors, vectors_within
from lbrx.tensors.creation import evaluate
from lbrx.tensors.dtype import dtype
from lbrx.tensors.expr import Coded
from lbrx.tensors.tensor import Tensor

DEFAULT_RANK = 32
_FIRST_TRIED_RANK = 32
# Of the ranks that exact factors need, for rounded ones.
_SPARE_RANKS = {"f32": 1 / 16, "f16": 1 / 4, "bf16": 1}
ADAPTER_TYPES = ("f32", "bf16", "f16")
_EMBEDDING = re.compile(r"embed(?!_out)|embd|wte|wpe")
# Models whose linear layers keep their weights as (inputs, outputs), and the modules that do.
_TRANSPOSED_MODELS = frozenset({"gpt2", "openai-gpt", "imagegpt"})
_TRANSPOSED_MODULES = frozenset({"c_attn", "q_attn", "c_proj", "c_fc"})


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """How an adapter is extracted.

    Without ``max_error`` every matrix gets ``rank`` (32 if None). With it, every matrix gets the smallest rank whose
    product is within that share of its difference's length, and at most ``rank`` if that is given.
    ``modules`` is a regular expression of the modules to look at, ``exclude`` of those to leave out. With
    ``save_modules`` whatever else changed (embeddings, norms, biases) is stored whole; ``saved`` are the names of
    modules that are, or their last parts. An embedding and a head with more rows than in the base can only be stored
    whole.
    """

    rank: int | None = None
    max_error: float | None = None
    modules: str | None = None
    save_modules: bool = False
    dtype: str = "f32"
    seed: int = 0
    exclude: str | None = None
    saved: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise UsageError(f"a rank of {self.rank} was asked for; expected at least 1")
        if self.max_error is not None and not 0 < self.max_error < 1:
            raise UsageError(f"a largest error of {self.max_error} was asked for; expected more than 0 and less than 1")
        if self.dtype not in ADAPTER_TYPES:
            raise UsageError(f"adapters are not stored as {self.dtype!r}; expected one of {', '.join(ADAPTER_TYPES)}")
        for expression in (self.modules, self.exclude):
            try:
                re.compile(expression or "")
            except re.error as error:
                raise UsageError(f"{expression!r} is not a valid regular expression: {error}") from error

    def keywords(self) -> dict[str, Any]:
        """The arguments of `extract_lora` for these options."""
        names = ("rank", "max_error", "modules", "save_modules", "dtype", "exclude")
        return {**{name: getattr(self, name) for name in names}, "save_module": self.saved}

    def saves(self, module: str) -> bool:
        """Whether a module is named as one to store whole."""
        return any(module == name or module.endswith(f".{name}") for name in self.saved)


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A weight whose difference became a product. Errors and changes are shares of lengths (Euclidean norms)."""

    name: str
    shape: tuple[int, ...]
    rank: int
    relative_change: float  # of the weight
    relative_error: float  # of the difference, measured on the factors as they are stored

    @property
    def captured_energy(self) -> float:
        """The share of the difference's sum of squares that the adapter has."""
        return 1 - self.relative_error**2


@dataclass(frozen=True, slots=True)
class LeftOutTensor:
    """A tensor that changed and is not in the adapter."""

    name: str
    reason: str


@dataclass(slots=True)
class Extraction:
    """What an extraction found: captured as products, saved whole, or left out, each in the order of the files."""

    captured: list[CapturedTensor] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    left_out: list[LeftOutTensor] = field(default_factory=list)
    unchanged: int = 0
    squares: float = 0.0  # of the differences that were captured in part
    left_over: float = 0.0  # what the adapter lacks of them

    @property
    def captured_energy(self) -> float:
        """The share of the sum of squares of all captured differences that the adapter has."""
        return 1 - self.left_over / self.squares if self.squares else 1.0


def extract_lora(
    tuned: str | Path,
    base: str | Path,
    out: str | Path,
    *,
    rank: int | None = None,
    max_error: float | None = None,
    modules: str | None = None,
    save_modules: bool = False,
    dtype: str = "f32",
    exclude: str | None = None,
    save_module: Sequence[str] = (),
    progress: CountCallback | None = None,
) -> Extraction:
    """Write the difference of two models, given by their paths, as a LoRA adapter; see `ExtractOptions`.

    >>> import tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> extraction = extract_lora(models.code, models.base, tempfile.mkdtemp() + "/adapter", rank=2, modules="q_proj")
    >>> {tensor.rank for tensor in extraction.captured}
    {2}
    """
    origin = open_checkpoint(base)
    options = ExtractOptions(rank, max_error, modules, save_modules, dtype, 0, exclude, tuple(save_module))
    model_type = (origin.config or {}).get("model_type")
    given = open_checkpoint(tuned)
    return extract_adapter(
        given,
        origin,
        out,
        options,
        base_name=str(base),
        model_type=model_type,
        progress=progress,
        directory=given.path if given.path.is_dir() else None,
    )


def extract_adapter(
    tuned: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    out: str | Path,
    options: ExtractOptions | None = None,
    *,
    base_name: str = "",
    model_type: str | None = None,
    progress: CountCallback | None = None,
    directory: Path | None = None,
) -> Extraction:
    """Write the difference of two models as a PEFT directory, a matrix at a time, and tell what it captures.

    ``directory`` is that of the tuned model: the adapter gets its tokenizer if there are new tokens. ``base_name`` goes
    into the adapter's config. ``progress`` is called with tensors done, tensors in all, and a name.

    >>> import lbrx, tempfile
    >>> base = {"q_proj.weight": lbrx.full((4, 4), 1, "f32")}
    >>> tuned = {"q_proj.weight": lbrx.full((4, 4), 1.5, "f32")}
    >>> extraction = extract_adapter(tuned, base, tempfile.mkdtemp() + "/adapter", ExtractOptions(max_error=0.01))
    >>> [(tensor.name, tensor.rank) for tensor in extraction.captured]
    [('q_proj.weight', 1)]
    """
    chosen = options or ExtractOptions()
    for name, tensor in (*tuned.items(), *base.items()):
        if isinstance(tensor.expr, Coded):
            raise DTypeError(f"{name!r} is quantized as {tensor.expr.codec}; expected models of float weights")
    with adapter_directory(Path(out)) as made, Spool(made / "factors.partial") as spool:
        extractor = _Extractor(chosen, base, spool, model_type)
        for number, name in enumerate(tuned):
            extractor.add(name, tuned[name])
            if progress is not None:
                progress(number + 1, len(tuned), name)
        extraction = extractor.extraction
        extraction.left_out += [LeftOutTensor(name, "only the base has it") for name in base if name not in tuned]
        if not extraction.captured and not extraction.saved:
            raise UsageError(f"nothing to extract: {extractor.summary_of_nothing()}")
        if extractor.has_new_rows and directory is not None:
            _copy_tokenizer(directory, made)
        write_adapter(made, spool.tensors() | extractor.whole_tensors(), extractor.config(base_name))
    return extraction


class _Extractor:
    """Goes through the tensors of a fine-tuned model, one after the other."""

    def __init__(
        self, options: ExtractOptions, base: Mapping[str, Tensor], spool: Spool, model_type: str | None
    ) -> None:
        self.options = options
        self.base = base
        self.spool = spool
        self.extraction = Extraction()
        self._whole: dict[str, Tensor] = {}
        self._has_transposed = False
        self.has_new_rows = False
        self._transposes = model_type in _TRANSPOSED_MODELS

    def add(self, name: str, tuned: Tensor) -> None:
        base = self.base.get(name)
        if base is None:
            self._leave_out(name, "the base does not have it")
            return
        module, _, part = name.rpartition(".")
        is_saved = self.options.saves(module)
        if base.shape != tuned.shape:
            is_longer = base.ndim == tuned.ndim == 2 and base.shape[1] == tuned.shape[1]
            if is_longer and (is_saved or self.options.save_modules):
                self.has_new_rows = True
                self._save(name, tuned)
                return
            self._leave_out(name, f"its shape is {tuned.shape}, that of the base {base.shape}")
            return
        squares, base_squares = _squares(tuned, base)
        if not math.isfinite(squares):
            raise FormatError(f"{name!r} has NaN or infinite values in one of the models")
        if squares == 0:
            self.extraction.unchanged += 1
            return
        options = self.options
        if is_saved:
            self._save(name, tuned)
        elif options.modules is not None and not re.search(options.modules, module):
            self._leave_out(name, "its module was not chosen")
        elif options.exclude is not None and re.search(options.exclude, module):
            self._leave_out(name, "its module was excluded")
        elif part == "weight" and base.ndim == 2 and not _EMBEDDING.search(module.rpartition(".")[2]):
            self._capture(name, tuned - base, squares, base_squares)
        elif self.options.save_modules and module:
            self._save(name, tuned)
        else:
            self._leave_out(name, "not a weight of a linear layer")

    def _save(self, name: str, tuned: Tensor) -> None:
        self._whole[name] = tuned
        self.extraction.saved.append(name)

    def summary_of_nothing(self) -> str:
        reasons = Counter(tensor.reason for tensor in self.extraction.left_out)
        counts = [("equal in both models", self.extraction.unchanged), *reasons.most_common()]
        return (
            "; ".join(f"{count} tensors: {reason}" for reason, count in counts if count) or "the model has no tensors"
        )

    def _leave_out(self, name: str, reason: str) -> None:
        self.extraction.left_out.append(LeftOutTensor(name, reason))

    def _capture(self, name: str, difference: Tensor, squares: float, base_squares: float) -> None:
        blocks = RowBlocks(difference)
        left, right, left_over = self._factors(name, blocks, squares)
        module = name.removesuffix(".weight")
        is_transposed = self._transposes and module.rpartition(".")[2] in _TRANSPOSED_MODULES
        self._has_transposed |= is_transposed
        a, b = (left.T, right.T) if is_transposed else (right, left)
        factor_dtype = dtype(self.options.dtype)
        self.spool.put(f"{PREFIX}{module}.lora_A.weight", a, factor_dtype)
        self.spool.put(f"{PREFIX}{module}.lora_B.weight", b, factor_dtype)
        change = math.sqrt(squares / base_squares) if base_squares else math.inf
        error = math.sqrt(left_over / squares)
        self.extraction.squares += squares
        self.extraction.left_over += left_over
        self.extraction.captured.append(CapturedTensor(name, difference.shape, left.shape[1], change, error))

    def _factors(self, name: str, blocks: RowBlocks, squares: float) -> tuple[Matrix, Matrix, float]:
        """The factors as they will be stored, and the sum of squares that they leave of the difference."""
        most = min(blocks.shape)
        limit = min(self.options.rank or (DEFAULT_RANK if self.options.max_error is None else most), most)
        max_error = self.options.max_error
        if max_error is None:
            return self._stored(self._vectors(name, blocks, limit), limit, blocks)
        # A rank as usual is found by a thin sketch. A matrix that needs more is decomposed as a whole.
        tried = min(limit, _FIRST_TRIED_RANK)
        vectors = self._vectors(name, blocks, tried)
        factors = self._smallest(vectors, blocks, squares)
        if factors is None and tried < limit:
            every = vectors_within(blocks, max_error, limit, _SPARE_RANKS[self.options.dtype], name)
            vectors = every or self._vectors(name, blocks, limit)
            factors = self._smallest(vectors, blocks, squares)
        return factors or self._stored(vectors, len(vectors.values), blocks)

    def _smallest(
        self, vectors: SingularVectors, blocks: RowBlocks, squares: float
    ) -> tuple[Matrix, Matrix, float] | None:
        """The stored factors of the smallest rank that is within the error; None if these vectors do not suffice.

        Rounding costs some ranks more than the singular values say: their number is searched for in growing steps.
        """
        max_error = self.options.max_error
        assert max_error is not None
        too_few = (vectors.smallest_rank(squares, max_error) or len(vectors.values) + 1) - 1
        enough, step, factors = len(vectors.values) + 1, 1, None
        while too_few + 1 < enough:
            rank = min(too_few + step, enough - 1) if factors is None else (too_few + enough) // 2
            stored = self._stored(vectors, rank, blocks)
            if stored[2] <= max_error**2 * squares:
                enough, factors = rank, stored
            else:
                too_few, step = rank, 2 * step
        return factors

    def _vectors(self, name: str, blocks: RowBlocks, count: int) -> SingularVectors:
        return leading_singular_vectors(blocks, count, self.options.seed, name)

    def _stored(self, vectors: SingularVectors, rank: int, blocks: RowBlocks) -> tuple[Matrix, Matrix, float]:
        rounded = dtype(self.options.dtype).numpy
        left, right = (factor.astype(rounded).astype("f4") for factor in vectors.factors(rank))
        return left, right, blocks.squared_distance(left, right)

    def whole_tensors(self) -> dict[str, Tensor]:
        """What is stored whole, under PEFT's names: it wraps a module with a product around the one with the bias.

        Of a module that PEFT replaces it wants every tensor, also those that did not change.
        """
        wrapped = {tensor.name.removesuffix(".weight") for tensor in self.extraction.captured}
        replaced = {name.rpartition(".")[0] for name in self._whole} - wrapped
        unchanged = {name: self.base[name] for name in self.base if name.rpartition(".")[0] in replaced}
        named = {}
        for name, tensor in (unchanged | self._whole).items():
            module, _, part = name.rpartition(".")
            named[f"{PREFIX}{module}.base_layer.{part}" if module in wrapped else PREFIX + name] = tensor
        return named

    def config(self, base_name: str) -> dict[str, Any]:
        ranks = {tensor.name.removesuffix(".weight"): tensor.rank for tensor in self.extraction.captured}
        modules = [name.removesuffix(".weight") for name in self.base if name.endswith(".weight")]
        return peft_config(base_name, ranks, modules, self.extraction.saved, self._has_transposed)


def _copy_tokenizer(directory: Path, adapter: Path) -> None:
    """Copy the files that new tokens are described in."""
    for name in (*TOKENIZER_FILES, *OTHER_FILES):
        if (directory / name).is_file():
            system.write_file(adapter / name, (directory / name).read_bytes())


def _squares(tuned: Tensor, base: Tensor) -> tuple[float, float]:
    """The sums of squares of the difference and of the base, from one pass."""
    if not tuned.size:
        return 0.0, 0.0
    before = base.to("f32")
    difference = tuned.to("f32") - before
    of_difference, of_base = evaluate(difference.dot(difference), before.dot(before))
    return float(of_difference), float(of_base)
