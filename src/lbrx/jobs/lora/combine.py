"""``lbrx.combine_loras``: several adapters of one base model as one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import ShapeError, UsageError, nearest
from lbrx.files.checkpoint.locating import locate
from lbrx.files.output.options import CountCallback
from lbrx.files.output.plan import digest, named_path
from lbrx.jobs.lora.convert import FORMATS, TYPES, base_config, write_parts
from lbrx.jobs.lora.knots import merged_in_common_directions
from lbrx.jobs.lora.low_rank import low_rank_product
from lbrx.jobs.lora.parts import AdapterParts, check_factors, read_parts
from lbrx.jobs.lora.spool import Spool
from lbrx.jobs.lora.svd import Doubles, RowBlocks, leading_singular_vectors
from lbrx.tensors.creation import concatenate, full, uniform
from lbrx.tensors.dtype import DTYPES
from lbrx.tensors.tensor import Tensor

_F32 = DTYPES["f32"]
_SPARSE = ("ties", "dare_linear", "dare_ties", "magnitude_prune")
_KNOTS = "knots_"
COMBINATIONS = (
    *("cat", "svd", "linear", *_SPARSE),
    *(f"{name}_svd" for name in _SPARSE),
    *(f"{_KNOTS}{name}" for name in _SPARSE),
)
SIGNS = ("total", "frequency")


@dataclass(frozen=True, slots=True)
class CombineOptions:
    """How adapters are combined; the names are those of PEFT's add_weighted_adapter, and ``knots_`` before them.

    ``cat`` is exact: its rank is the sum of the ranks. ``svd`` is the best approximation of the sum with ``rank``, by
    default the largest one of the adapters. The others combine the factors A and B one by one, or with ``_svd`` the
    products, or with ``knots_`` the products in common directions. ``density`` is the share of elements that is kept by
    those that prune.

    >>> CombineOptions("tie")
    Traceback (most recent call last):
    lbrx.errors.UsageError: unknown combination 'tie'; did you mean 'ties'?
    """

    method: str = "cat"
    rank: int | None = None
    density: float | None = None
    signs: str = "total"
    dtype: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in COMBINATIONS:
            hint = nearest(self.method, COMBINATIONS) or f"; expected one of {', '.join(COMBINATIONS)}"
            raise UsageError(f"unknown combination {self.method!r}{hint}")
        has_rank = self.method.endswith("svd") or self.method.startswith(_KNOTS)
        if self.rank is not None and (self.rank < 1 or not has_rank):
            raise UsageError(
                f"the rank is {self.rank} for {self.method!r}; expected at least 1, for svd and knots only"
            )
        is_sparse = self.pruning in _SPARSE
        if is_sparse != (self.density is not None):
            expected = "a density, such as 0.5" if is_sparse else "no density"
            raise UsageError(f"density is {self.density} for {self.method!r}; expected {expected}")
        if self.density is not None and not 0 < self.density <= 1:
            raise UsageError(f"density is {self.density}; expected more than 0 and at most 1")
        if self.signs not in SIGNS or (self.dtype is not None and self.dtype not in TYPES):
            raise UsageError(f"signs are {self.signs!r} and the dtype {self.dtype!r}; expected {SIGNS} and {TYPES}")

    @property
    def pruning(self) -> str:
        """How elements are merged, of whatever matrices.

        >>> CombineOptions("knots_ties", density=0.5).pruning
        'ties'
        """
        return self.method.removesuffix("_svd").removeprefix(_KNOTS)


@dataclass(frozen=True, slots=True)
class _Term:
    """One adapter's factors of a module, as [rank, inputs] and [outputs, rank]."""

    a: Tensor
    b: Tensor
    scale: float
    weight: float


def combine_loras(
    adapters: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    method: str = "cat",
    rank: int | None = None,
    density: float | None = None,
    signs: str = "total",
    dtype: str | None = None,
    seed: int = 0,
    format: str = "peft",
    base: str | os.PathLike[str] | None = None,
    progress: CountCallback | None = None,
) -> Path:
    """Combine adapters of one base model into one; see `CombineOptions`. ``weights`` are 1 by default.

    The adapters may have different formats, ranks and modules; a module that an adapter lacks counts as zero.

    >>> import lbrx, tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models, folder = demo_models(), tempfile.mkdtemp()
    >>> for name in ("code", "prose"):
    ...     tuned = getattr(models, name)
    ...     _ = lbrx.extract_lora(tuned, models.base, f"{folder}/{name}", rank=2, modules="q_proj")
    >>> combine_loras([f"{folder}/code", f"{folder}/prose"], f"{folder}/both", weights=[0.7, 0.3]).name
    'both'
    """
    options = CombineOptions(method, rank, density, signs, dtype, seed)
    shares = [1.0] * len(adapters) if weights is None else [float(weight) for weight in weights]
    if len(shares) != len(adapters) or len(adapters) < 2:
        raise UsageError(f"{len(adapters)} adapters and {len(shares)} weights; expected at least 2 and as many weights")
    if not all(map(math.isfinite, shares)):
        raise UsageError(f"weights are {shares}; expected numbers")
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r} of an adapter; expected one of {', '.join(FORMATS)}")
    config = None if base is None else base_config(os.fspath(base))
    parts = [read_parts(locate(os.fspath(adapter)), config) for adapter in adapters]
    target = named_path(Path(out))
    with Spool(target.with_name(f".{digest(os.fsencode(target.name))}.factors-{os.getpid()}")) as spool:
        made = _Combiner(parts, shares, options, spool).combined(progress)
        write_parts(made, target, format, config, dtype)
    return target


class _Combiner:
    """Combines adapters module by module. Factors that are computed go into a file, others stay expressions."""

    def __init__(
        self, parts: Sequence[AdapterParts], weights: Sequence[float], options: CombineOptions, spool: Spool
    ) -> None:
        for each in parts:
            _check(each, parts[0])
            check_factors(each)
        self._parts, self._weights, self._options, self._spool = parts, weights, options, spool
        ranks = [each.rank_of(module) for each in parts for module in each.of_modules]
        self._svd_rank = options.rank or max(ranks, default=1)

    def combined(self, progress: CountCallback | None) -> AdapterParts:
        first = self._parts[0]
        config = replace(first.config, use_rslora=False, rank_pattern={}, alpha_pattern={}, _patterns={})
        made = AdapterParts(first.path, config, replacements=self._replacements())
        modules = dict.fromkeys(module for each in self._parts for module in each.of_modules)
        for number, module in enumerate(modules):
            held = [part for each in self._parts for part in each.of_modules.get(module, ())]
            prefix = "embedding_" if "embedding_A" in held else ""
            a, b = self._module(module, prefix)
            made.of_modules[module] = {f"{prefix}A": a, f"{prefix}B": b}
            made.own[module] = a.shape[0], 1.0
            if progress is not None:
                progress(number + 1, len(modules), module)
        spooled = self._spool.tensors()
        for module, factors in made.of_modules.items():
            made.of_modules[module] = {
                part: spooled.get(f"{module} {part[-1]}", value) for part, value in factors.items()
            }
        return made

    def _replacements(self) -> dict[str, Tensor]:
        whole: dict[str, Tensor] = {}
        for each in self._parts:
            for name, value in each.replacements.items():
                if name in whole:
                    raise UsageError(f"several adapters save {name!r} as a whole, which cannot be combined")
                whole[name] = value
        return whole

    def _module(self, module: str, prefix: str) -> tuple[Tensor, Tensor]:
        terms = list(self._terms(module, prefix))
        shapes = {(term.b.shape[0], term.a.shape[1]) for term in terms}
        if len(shapes) > 1:
            raise ShapeError(f"the products of {module!r} have different shapes: {sorted(shapes)}")
        if self._options.method == "cat":
            a = concatenate([term.a.to("f32") * (term.weight * term.scale) for term in terms])
            return a, concatenate([term.b.to("f32") for term in terms], axis=1)
        if self._options.method.endswith("svd"):
            return self._decomposed(module, terms)
        if self._options.method.startswith(_KNOTS):
            return self._in_common_directions(module, terms)
        ranks = {term.a.shape[0] for term in terms}
        if len(ranks) > 1:
            raise UsageError(
                f"{self._options.method!r} combines factors of equal ranks, but those of {module!r} are "
                f"{sorted(ranks)}; expected cat, or a combination with svd"
            )
        roots = [math.sqrt(abs(term.weight * term.scale)) for term in terms]
        signed = [math.copysign(root, term.weight * term.scale) for root, term in zip(roots, terms, strict=True)]
        a = self._merged([term.a.to("f32") for term in terms], signed, f"{module} A")
        return a, self._merged([term.b.to("f32") for term in terms], roots, f"{module} B")

    def _terms(self, module: str, prefix: str) -> Iterator[_Term]:
        for each, weight in zip(self._parts, self._weights, strict=True):
            factors = each.of_modules.get(module)
            if factors is not None:
                if not factors.keys() >= {f"{prefix}A", f"{prefix}B"}:
                    raise UsageError(
                        f"{each.label}: the factors of {module!r} and those of other adapters have different types"
                    )
                yield _Term(factors[f"{prefix}A"], factors[f"{prefix}B"], each.scale_of(module), weight)

    def _decomposed(self, module: str, terms: Sequence[_Term]) -> tuple[Tensor, Tensor]:
        shape = (terms[0].b.shape[0], terms[0].a.shape[1])
        products = [low_rank_product(term.b, term.a, shape) * term.scale for term in terms]
        total = self._merged(products, [term.weight for term in terms], module)
        rank = min(self._svd_rank, *shape)
        left, right = leading_singular_vectors(RowBlocks(total), rank, self._options.seed, module).factors(rank)
        return self._spooled(module, left, right)

    def _in_common_directions(self, module: str, terms: Sequence[_Term]) -> tuple[Tensor, Tensor]:
        left, right = merged_in_common_directions(
            [(term.b, term.a, term.scale) for term in terms],
            lambda values: self._merged(values, [term.weight for term in terms], module),
            self._options.rank,
            module,
        )
        return self._spooled(module, left, right)

    def _spooled(self, module: str, left: Doubles, right: Doubles) -> tuple[Tensor, Tensor]:
        self._spool.put(f"{module} A", right, _F32)
        self._spool.put(f"{module} B", left, _F32)
        return full(right.shape, 0.0, _F32), full(left.shape, 0.0, _F32)  # replaced at the end

    def _merged(self, values: Sequence[Tensor], weights: Sequence[float], stream: str) -> Tensor:
        """Return the weighted sum of tensors after pruning; with ``ties`` the mean of those that agree in sign."""
        method = self._options.pruning
        kept = [self._pruned(value, method, f"{stream} {number}") for number, value in enumerate(values)]
        if not method.endswith("ties"):
            return _sum([value * weight for value, weight in zip(kept, weights, strict=True)])
        votes = kept if self._options.signs == "total" else [_sign(value) for value in kept]
        sign = (_sum(votes) >= 0).to("f32") * 2 - 1
        agrees = [(value * sign > 0).to("f32") for value in kept]
        weighted = zip(kept, agrees, weights, strict=True)
        return _sum([value * agree * weight for value, agree, weight in weighted]) / _sum(agrees).maximum(1.0)

    def _pruned(self, value: Tensor, method: str, stream: str) -> Tensor:
        density = self._options.density
        if density is None or density >= 1:
            return value
        if method.startswith("dare"):
            return value * (uniform(value.shape, self._options.seed, stream) < density).to("f32") / density
        return value * abs(value).top_k_mask(int(density * value.size)).to("f32")


def _check(parts: AdapterParts, first: AdapterParts) -> None:
    config = parts.config
    has_bias = any("bias" in factors for factors in parts.of_modules.values())
    if config.use_dora or config.target_parameters or parts.rows or has_bias:
        raise UsageError(
            f"{parts.label}: has DoRA, trained biases, rows of embeddings or whole parameters, which cannot be "
            "combined; expected products of two factors (a recipe with BASE+ADAPTER+ADAPTER applies several adapters)"
        )
    if config.fan_in_fan_out != first.config.fan_in_fan_out:
        raise UsageError(f"{parts.label}: fan_in_fan_out is not that of {first.label}; expected adapters of one model")


def _sum(values: Sequence[Tensor]) -> Tensor:
    return reduce(add, values)


def _sign(value: Tensor) -> Tensor:
    return (value > 0).to("f32") - (value < 0).to("f32")
