"""``lbrx.transplant``: a model with the tokenizer of another one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError
from lbrx.files.checkpoint.locating import locate
from lbrx.files.formats.model_files import CONFIG_NAME, OTHER_FILES, TOKENIZER_FILES
from lbrx.files.formats.strict_json import read_json
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.files.output.model_plan import ModelPlan, plan_output
from lbrx.files.output.options import CountCallback, RunKeywords, takes_run_options
from lbrx.files.output.plan import SideFile, digest, named_path, shard_limit
from lbrx.files.output.run import RunResult, plan_and_execute, restore_replaced
from lbrx.files.output.staging import Staging
from lbrx.jobs.lora.spool import Spool
from lbrx.jobs.merge.plan.models import open_model
from lbrx.jobs.merge.plan.records import InputModel
from lbrx.jobs.merge.recipe import ModelRef
from lbrx.jobs.transplant.options import SHARED_METHODS, TransplantOptions
from lbrx.jobs.transplant.rows import Matrix, RowMaker
from lbrx.jobs.transplant.tokens import NO_ROW, Matches, Vocabulary, match, read_vocabulary
from lbrx.models.architectures import stacked_config
from lbrx.models.tokenizers.any_tokenizer import read_any_tokenizer
from lbrx.models.tokenizers.tokenizer_file import TokenizerFile
from lbrx.tensors.creation import where
from lbrx.tensors.tensor import Tensor, tensor

_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "mask_token_id")
_OTHER_ID = re.compile(r"_token_(id|index)$")  # keys such as image_token_id
_GENERATION_NAME = "generation_config.json"


@dataclass(frozen=True, eq=False)
class Transplant:
    """A transplant that is decided: the model, its matrices with a row for each token, and where rows come from."""

    model: InputModel
    donor: Path
    sources: tuple[Any, ...]
    matrices: Mapping[str, Matrix]
    matches: Mapping[str, Matches]
    own: Vocabulary
    new: Vocabulary
    options: TransplantOptions

    @property
    def size(self) -> int:
        return self.new.tokenizer.end

    @property
    def warnings(self) -> tuple[str, ...]:
        lost = max((matches.unknown for matches in self.matches.values()), default=0)
        return (f"{lost} tokens have a row neither in the donor nor in the model and get zeros",) if lost else ()


@takes_run_options
def transplant(
    model: str | os.PathLike[str],
    donor: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    method: str = "omp",
    k: int = 64,
    weights: str = "distance_proportional",
    cosine: bool = False,
    subword: str = "mean",
    prefix_match: str = "no",
    scale: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
    max_shard_bytes: int | str | None = None,
    approximated: CountCallback | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Give a model the tokenizer of a donor, as mergekit-tokensurgeon does.

    Rows of tokens that both have are copied to their new places. The row of another token is a combination of the
    model's rows of shared tokens: by default the one of at most ``k`` tokens that describes the donor's row best. See
    `TransplantOptions` for the other methods. ``approximated`` is called with the number of new rows that are made,
    that of all, and the name of the tensor. The other options are those of `lbrx.merge`.

    >>> import tempfile
    >>> from lbrx.demo.models import demo_models
    >>> models = demo_models()
    >>> transplant(models.code, models.prose, tempfile.mkdtemp() + "/out").tensors
    29
    """
    settings = TransplantOptions(method, k, weights, cosine, subword, prefix_match, scale, noise, seed)
    call = partial(_planned_with_rows, model, donor, out, settings, max_shard_bytes)
    return plan_and_execute(call, options, progress=approximated)


def _planned_with_rows(
    model: str | os.PathLike[str],
    donor: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: TransplantOptions,
    max_shard_bytes: int | str | None,
    progress: CountCallback | None = None,
) -> ModelPlan:
    restore_replaced(Staging(Path(out)))
    decided = plan_transplant(model, donor, options)
    plan_transplant_output(decided, out, max_shard_bytes)  # mistakes are reported before rows are made
    return plan_transplant_output(decided, out, max_shard_bytes, _new_rows(decided, Path(out), progress))


def plan_transplant(
    model: str | os.PathLike[str], donor: str | os.PathLike[str], options: TransplantOptions | None = None
) -> Transplant:
    """Decide where each row comes from. Headers and tokenizers are read, no weights."""
    chosen = options or TransplantOptions()
    opened = open_model(ModelRef(os.fspath(model)))
    problems = [name for name, info in opened.infos.items() if info.dtype is None]
    if problems:
        raise UsageError(f"{opened.label}: {problems[0]!r} is quantized; expected a model of plain weights")
    names = _vocabulary_names(opened)
    own = _vocabulary(opened.directory, opened.label, min(opened.infos[name].shape[0] for name in names))
    if chosen.method not in SHARED_METHODS:
        directory = locate(os.fspath(donor))
        new = _vocabulary(directory, os.fspath(donor), None)
        matrices = {name: Matrix(name, opened.tensors[name], None, is_head) for name, is_head in names.items()}
        return _matched(opened, directory, (), matrices, own, new, chosen)
    other = open_model(ModelRef(os.fspath(donor)))
    matrices = {
        name: Matrix(name, opened.tensors[name], _donor_tensor(other, is_head=is_head), is_head)
        for name, is_head in names.items()
    }
    rows = min(matrix.donor.shape[0] for matrix in matrices.values() if matrix.donor is not None)
    new = _vocabulary(other.directory, other.label, rows)
    assert other.directory is not None
    return _matched(opened, other.directory, other.files, matrices, own, new, chosen)


def _matched(
    model: InputModel,
    donor: Path,
    sources: tuple[Any, ...],
    matrices: Mapping[str, Matrix],
    own: Vocabulary,
    new: Vocabulary,
    options: TransplantOptions,
) -> Transplant:
    matches = {
        name: match(own, new, takes_prefixes=options.takes_prefixes(is_head=matrix.is_head))
        for name, matrix in matrices.items()
    }
    return Transplant(model, donor, (*model.files, *sources), matrices, matches, own, new, options)


def _vocabulary_names(model: InputModel) -> dict[str, bool]:
    """Return the tensors of the model with a row for each token, and whether each is the head."""
    roles = [role for role in model.architecture.tensors(model.config, model.infos) if role.is_vocabulary]
    names = {role.name: role.part == "post" for role in roles if role.name in model.infos}
    if not names or not any(not is_head for is_head in names.values()):
        raise UsageError(
            f"{model.label}: the embedding is not known; expected a model of a known architecture, with a config.json"
        )
    for name in names:
        same = [other for other in names if names[other] == names[name]]
        if len(model.infos[name].shape) != 2 or len(same) > 1:
            raise UsageError(
                f"{model.label}: entries for each token are in {' and '.join(map(repr, same))}; "
                "expected a model with one embedding and at most one head without a bias"
            )
    return names


def _donor_tensor(donor: InputModel, *, is_head: bool) -> Tensor:
    names = _vocabulary_names(donor)
    chosen = next((name for name, own_is_head in names.items() if own_is_head is is_head), None)
    if chosen is None and not donor.architecture.is_tied(donor.config):
        raise UsageError(f"{donor.label}: has no head; expected one, or a model whose head is its embedding")
    return donor.tensors[chosen or next(iter(names))]


def _vocabulary(directory: Path | None, label: str, rows: int | None) -> Vocabulary:
    found: TokenizerFile | None = None if directory is None else read_any_tokenizer(directory)
    if found is None or directory is None:
        raise UsageError(f"{label}: has no tokenizer.json; expected the tokenizer of the model in its directory")
    return read_vocabulary(found, directory, found.end if rows is None else rows)


def _new_rows(decided: Transplant, out: Path, progress: CountCallback | None) -> dict[str, Tensor]:
    """Make the new rows of each matrix. They are in a file without a name, so that they take no memory."""
    total = sum(matches.new_ids.size for matches in decided.matches.values())
    done = 0
    Staging(out).make_parent()
    out = named_path(out)
    with Spool(out.with_name(f".{digest(os.fsencode(out.name))}.rows-{os.getpid()}")) as spool:
        for name, matrix in decided.matrices.items():
            maker = RowMaker(matrix, decided.matches[name], decided.own, decided.new, decided.options)
            for rows in maker.batches():
                spool.extend(name, rows, matrix.own.dtype)
                done += len(rows)
                if progress is not None:
                    progress(done, total, name)
        return spool.tensors()


def plan_transplant_output(
    decided: Transplant,
    out: str | os.PathLike[str],
    max_shard_bytes: int | str | None = None,
    rows: Mapping[str, Tensor] | None = None,
) -> ModelPlan:
    """Lay out the files of a transplant. Without ``rows`` the plan can be shown, but not run."""
    made = {} if rows is None else rows
    model = decided.model
    contents = Contents(
        "safetensors",
        tuple(_planned(decided, name, made) for name in model.tensors),
        config=_config(decided),
        side_files=tuple(_side_files(decided)),
        warnings=decided.warnings,
        sources=decided.sources,
    )
    settings = {**decided.options.identity(), "tokenizer": digest(decided.new.tokenizer.text.encode())}
    limit_bytes = shard_limit(max_shard_bytes)
    return plan_output(contents, Path(out), max_shard_bytes=limit_bytes, settings_identity=settings)


def _planned(decided: Transplant, name: str, rows: Mapping[str, Tensor]) -> PlannedTensor:
    info = decided.model.infos[name]
    if name not in decided.matrices:
        return PlannedTensor(name, info.type_name, info.shape, lambda: decided.model.tensors[name])
    matrix = decided.matrices[name]
    shape = (decided.size, *info.shape[1:])
    return PlannedTensor(
        name, info.type_name, shape, lambda: _assembled(matrix.own, decided.matches[name], rows.get(name))
    )


def _assembled(own: Tensor, matches: Matches, new: Tensor | None) -> Tensor:
    """Return the matrix of the output: rows of the model, new rows, and zeros for ids without a token."""
    is_own = matches.own_rows != NO_ROW
    places = np.full(matches.size, NO_ROW, np.int64)
    places[matches.new_ids] = np.arange(matches.new_ids.size)
    result = own.rows(np.where(is_own, matches.own_rows, 0))
    if new is not None:
        is_new = places != NO_ROW
        result = where(tensor(is_new[:, None]), new.rows(np.where(is_new, places, 0)), result)
    is_known = is_own | (places != NO_ROW)
    if not is_known.all():
        result = where(tensor(is_known[:, None]), result, 0.0)
    return result.to(own.dtype)


def _config(decided: Transplant) -> dict[str, Any] | None:
    model = decided.model
    if not model.config:
        return None
    config = stacked_config(model.config, vocab_size=decided.size, architecture=model.architecture)
    ids = _special_ids(read_json(decided.donor / CONFIG_NAME))
    for section in (config, config.get("text_config")):
        if isinstance(section, dict):
            for key in _SPECIAL_IDS:
                section.pop(key, None)
            section.update(ids | _moved_ids(decided, section))
    return config


def _special_ids(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    sections = (text if isinstance(text, dict) else {}, config)
    return {key: section[key] for section in sections for key in _SPECIAL_IDS if section.get(key) is not None}


def _moved_ids(decided: Transplant, section: Mapping[str, Any]) -> dict[str, int]:
    """Return the donor's ids of the tokens that other keys name, such as the place of an image."""
    names = {token_id: token for token, token_id in decided.own.tokenizer.ids.items()}
    moved = {}
    for key, value in section.items():
        if _OTHER_ID.search(key) is None or type(value) is not int or value < 0:
            continue
        name = names.get(value)
        if name is None or name not in decided.new.tokenizer.ids:
            told = "no token" if name is None else f"the token {name!r}"
            raise UsageError(
                f"{decided.model.label}: config.json: {key!r} is {value}, {told}; expected a donor that has this token"
            )
        moved[key] = decided.new.tokenizer.ids[name]
    return moved


def _side_files(decided: Transplant) -> Iterator[SideFile]:
    """Yield the settings of the model, and the tokenizer files of the donor."""
    own = decided.model.directory
    for name in OTHER_FILES:
        if own is not None and name != _GENERATION_NAME and (own / name).is_file():
            yield SideFile(name, source=own / name)
    for name in (_GENERATION_NAME, *TOKENIZER_FILES):
        if (decided.donor / name).is_file():
            yield SideFile(name, source=decided.donor / name)
