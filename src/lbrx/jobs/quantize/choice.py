"""Which type every tensor of a GGUF model gets, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.formats.gguf_types import GGML_TYPES
from lbrx.files.output.contents import Contents, PlannedTensor
from lbrx.jobs.convert.file_types import FileType
from lbrx.jobs.convert.gguf_retype import reason_for_own_type
from lbrx.jobs.quantize.mixes import LayerPosition, block_type, head_type
from lbrx.jobs.quantize.model_facts import ModelFacts, model_facts
from lbrx.jobs.quantize.options import QuantizeOptions
from lbrx.models.architectures.gguf_roles import OUTPUT_NAME, Role, counting_order, layer_of, role_of

# What replaces a type whose blocks do not fit into a row.
_SMALLER_BLOCKS = {
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
    "q2_0": "q4_0",
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
}
_LAST_RESORT = "f16"


@dataclass(frozen=True, slots=True)
class Choice:
    """The type of a tensor and the reason for it. ``misfit`` is the type that was wanted, if rows do not fit it."""

    type_name: str
    reason: str
    misfit: str | None = None


def choose_types(contents: Contents, file_type: FileType, options: QuantizeOptions) -> dict[str, Choice]:
    """The type of every tensor of a GGUF model in a file of a type, by name, in the order of the tensors.

    Rules and their order are those of llama.cpp: tensors that are never quantized come first; then the requested types,
    then the mix of the file type. A type that does not fit the rows is replaced by one that does.

    >>> import lbrx
    >>> shapes = {"token_embd.weight": (64, 256), "blk.0.attn_v.weight": (256, 256), "blk.0.attn_norm.weight": (256,)}
    >>> tensors = [PlannedTensor.of(name, lbrx.full(shape, 0.0, "f16")) for name, shape in shapes.items()]
    >>> metadata = {"general.architecture": "llama", "llama.block_count": 1}
    >>> options = QuantizeOptions("q4_k_m")
    >>> choices = choose_types(Contents("gguf", tuple(tensors), metadata), options.target, options)
    >>> [choice.type_name for choice in choices.values()]
    ['q6_k', 'q6_k', 'f16']
    """
    chooser = _Chooser(contents, file_type, options)
    ordered = sorted(contents.tensors, key=lambda tensor: counting_order(tensor.name))
    chosen = {tensor.name: chooser.choose(tensor) for tensor in ordered}
    return {tensor.name: chosen[tensor.name] for tensor in contents.tensors}


class _Chooser:
    """Chooses tensor after tensor, and counts those that rules count."""

    def __init__(self, contents: Contents, file_type: FileType, options: QuantizeOptions) -> None:
        self._options = options
        self._file_type = file_type
        self._facts: ModelFacts = model_facts(contents.metadata)
        self._is_tied = OUTPUT_NAME not in contents.by_name
        self._values = sum(role_of(tensor.name) is Role.VALUE for tensor in contents.tensors)
        self._seen: Counter[Role] = Counter()

    def choose(self, tensor: PlannedTensor) -> Choice:
        fixed = fixed_choice(tensor, self._options)
        if fixed is not None:
            return fixed
        if not self._file_type.is_quantized:
            return Choice(self._file_type.base, "base type")
        if self._options.pure:
            return fitted(self._file_type.base, "--pure", tensor.shape)
        return fitted(*self._mixed(tensor), tensor.shape)

    def _mixed(self, tensor: PlannedTensor) -> tuple[str, str]:
        role = role_of(tensor.name)
        if role is Role.OUTPUT or (role is Role.EMBEDDING and self._is_tied):
            if self._options.output_type is not None:
                return self._options.output_type.lower(), "--output-type"
            chosen = head_type(self._file_type, self._facts, fits(self._file_type.base, tensor.shape))
            return chosen, "output matrix" if role is Role.OUTPUT else "embedding that is the output too"
        if self._file_type.name == "mxfp4_moe":
            is_stack = len(tensor.shape) > 2 and tensor.shape[-3] > 1 and self._may_be_experts(role)
            return ("mxfp4", "experts") if is_stack else ("q8_0", "not of experts")
        chosen = block_type(self._file_type, role, self._position(tensor.name, role))
        self._seen[role] += 1
        return chosen, "base type" if chosen == self._file_type.base else role.value

    def _may_be_experts(self, role: Role) -> bool:
        """Whether stacks of matrices are experts; in one architecture they are not."""
        return self._facts.architecture != "bailingmoe3" or role in (Role.UP, Role.GATE, Role.DOWN)

    def _position(self, name: str, role: Role) -> LayerPosition:
        number = layer = self._seen[role]
        layers = self._facts.layers
        if role is Role.VALUE:
            layers = self._values
        elif self._facts.experts > 1:  # there may be several tensors of a role in a layer
            own = layer_of(name)
            layer = layer if own is None else own
        return LayerPosition(layer, layers, number, self._facts, self._options.imatrix is not None)


def fixed_choice(tensor: PlannedTensor, options: QuantizeOptions) -> Choice | None:
    """The type of a tensor that no mix decides: it stays as it is, or its type was asked for by name."""
    reason = reason_for_own_type(tensor)
    if reason is not None:
        return Choice(tensor.type_name, reason)
    role = role_of(tensor.name)
    if role is Role.OUTPUT and options.leave_output:
        return Choice(tensor.type_name, "--leave-output")
    if role is Role.EMBEDDING and options.embedding_type is not None:
        return fitted(options.embedding_type.lower(), "--embedding-type", tensor.shape)
    if role is Role.OUTPUT and options.output_type is not None:
        return fitted(options.output_type.lower(), "--output-type", tensor.shape)
    override = options.override_of(tensor.name)
    if override is not None:
        return fitted(override.type_name, f"--tensor-type {override.pattern}", tensor.shape)
    return None


def fits(type_name: str, shape: Sequence[int]) -> bool:
    """Whether rows are a whole number of blocks.

    >>> fits("q4_k", (2, 512)), fits("q4_k", (2, 96)), fits("q8_0", (2, 96))
    (True, False, True)
    """
    return shape[-1] % GGML_TYPES[type_name].block_elements == 0


def fitted(type_name: str, reason: str, shape: Sequence[int]) -> Choice:
    """The type, or one with smaller blocks if the rows do not fit it.

    >>> fitted("q4_k", "base type", (2, 96))
    Choice(type_name='q5_0', reason='rows of 96 do not fit q4_k', misfit='q4_k')
    """
    if fits(type_name, shape):
        return Choice(type_name, reason)
    smaller = _SMALLER_BLOCKS.get(type_name, _LAST_RESORT)
    chosen = smaller if fits(smaller, shape) else _LAST_RESORT
    return Choice(chosen, f"rows of {shape[-1]} do not fit {type_name}", type_name)
