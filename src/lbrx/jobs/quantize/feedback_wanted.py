"""Which matrices of a model error feedback encodes, and the model before they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.base.fast_dataclass import dataclass
from lbrx.files.output.contents import PlannedTensor
from lbrx.jobs.quantize.coded import CodedTensor, Quantization
from lbrx.jobs.quantize.feedback_pieces import Piece, mlx_names_of, pieces_of
from lbrx.models.architectures.gguf_roles import layer_of
from lbrx.models.architectures.mlx_modes import SETTING_KEYS
from lbrx.models.architectures.mlx_weights import mlx_to_hf
from lbrx.models.inference import LanguageModel
from lbrx.models.inference.layerwise import model_on_demand
from lbrx.models.inference.opening import spec_of_gguf
from lbrx.models.inference.spec import spec_of_config
from lbrx.models.inference.weights import TensorSource
from lbrx.ops.feedback import gains_from_feedback
from lbrx.tensors.codecs.codec import codec

if TYPE_CHECKING:
    from lbrx.jobs.quantize.quantize import QuantizePlan


@dataclass(frozen=True, slots=True)
class FeedbackJob:
    """A model and the call that plans its quantization, for workers that encode its matrices."""

    source: Path
    plan: Callable[[], QuantizePlan]

    def wanted(self) -> Wanted:
        """The matrices, planned anew."""
        quantization = self.plan().quantization
        return Wanted(before_coding(self.source, quantization)[0], quantization)


def before_coding(source: Path, quantization: Quantization) -> tuple[LanguageModel, dict[str, PlannedTensor]]:
    """The model with the tensors that are quantized, before they are, and these; a layer is read when it is run."""
    contents = quantization.contents
    tensors = {each.source.name: each.source for each in quantization.coded}
    if contents.format == "gguf":
        metadata = {key: typed.value for key, typed in contents.metadata.items()}
        spec = spec_of_gguf(metadata, {name: each.make() for name, each in tensors.items()}, str(source))
    else:
        config = {key: value for key, value in (contents.config or {}).items() if key not in SETTING_KEYS}
        contents = replace(contents, tensors=tuple(tensors.values()), config=config)
        if contents.format == "mlx":
            contents = mlx_to_hf(contents, type_name="f32", keep_separate=True)
        tensors = contents.by_name
        spec = spec_of_config(config, str(source), frozenset(tensors))
    taken = TensorSource(str(source), frozenset(tensors), lambda name: tensors[name].make())
    return model_on_demand(source, spec, taken), tensors


class Wanted:
    """The matrices of a model that are encoded: those of each layer by their names, and the output matrix."""

    def __init__(self, model: LanguageModel, quantization: Quantization) -> None:
        self._model = model
        contents = quantization.contents
        names = mlx_names_of(contents.config, list(model.weights.names)) if contents.format == "mlx" else {}
        found = [piece for each in quantization.coded if _gains(each) for piece in pieces_of(each, names)]
        self.by_label = {piece.label: piece for piece in found}
        self.layers: dict[int, dict[str, Piece]] = {}
        for piece in found:
            layer = _layer_of(model, piece.label)
            if layer is not None:
                self.layers.setdefault(layer, {})[piece.label] = piece
        output = self.by_label.get(model.weights.output.weight.name or "")
        # The errors of 8 bits are too small for the additional pass through the model that a tied matrix needs.
        self.output = None if output is not None and model.spec.is_tied and _bits(output.coded) >= 8 else output
        self.embedding = next(
            (each for each in quantization.coded if each.source.name == model.weights.embedding.name), None
        )
        self.stacks = frozenset(
            each.source.name
            for each in quantization.coded
            if len(each.source.shape) == 3 and each.source.name not in names
        )

    def of_layer(self, number: int) -> dict[str, Piece]:
        """The matrices of a layer by their names."""
        return self.layers.get(number, {})

    def coded_of_layer(self, number: int) -> dict[str, CodedTensor]:
        """The tensors of the output that the matrices of a layer become, by their names."""
        return {piece.coded.source.name: piece.coded for piece in self.of_layer(number).values()}


def _layer_of(model: LanguageModel, name: str) -> int | None:
    return layer_of(name) if model.spec.is_gguf else model.spec.family.layer_of(name)


def _gains(each: CodedTensor) -> bool:
    type_name = each.choice.type_name
    return each.grouped is not None or (gains_from_feedback(type_name) and type_name != each.source.type_name)


def _bits(each: CodedTensor) -> float:
    return each.grouped.spec.bits if each.grouped is not None else codec(each.choice.type_name).bits
