"""Short convolutions of LFM2."""

from __future__ import annotations

from typing import Any

from lbrx.base.fast_dataclass import dataclass
from lbrx.engine.recording import run_on_state
from lbrx.models.architectures.config import Config
from lbrx.models.architectures.mixer_records import ShortConv
from lbrx.models.inference.parts import LayerRun, Memory, PartCode
from lbrx.models.inference.spec import LayerSpec
from lbrx.models.inference.weights import Floats, Matrix, Reader, times
from lbrx.ops import causal_conv


@dataclass(frozen=True, slots=True)
class ShortConvWeights:
    joined: Matrix  # b, c and x
    conv: Floats  # [taps, hidden]
    bias: Floats | None
    output: Matrix


def conv_memory(taps: str, channels: str, config: Config, local: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    """Return the state of a convolution: the rows before the next token."""
    rows = config.size(taps, **local)
    if rows < 1:
        raise config.wrong(f"{taps!r} is {rows}; expected a whole number above zero")
    return "conv", (rows - 1, config.size(channels, **local))


def read_conv(reader: Reader, name: str, layer: int) -> tuple[Floats, Floats | None]:
    """Return the weights ``[taps, channels]`` of a convolution, and its bias if it has one."""
    weight = reader.vector(f"{name}.weight", layer)
    return weight.reshape(weight.shape[0], -1).T.copy(), reader.bias(name, layer)


def memory(part: ShortConv, config: Config, local: dict[str, Any]) -> Memory:
    return Memory(states=(conv_memory(part.taps, "hidden_size", config, local),))


def read(reader: Reader, _part: ShortConv, layer: LayerSpec) -> ShortConvWeights:
    number = layer.number
    conv, bias = read_conv(reader, "shortconv.conv", number)
    return ShortConvWeights(
        reader.matrix("shortconv.in_proj", number), conv, bias, reader.matrix("shortconv.out_proj", number)
    )


def run(values: Floats, weights: ShortConvWeights, run: LayerRun) -> Floats:
    joined = times(values, weights.joined)
    hidden = weights.conv.shape[1]
    b, c, x = (joined[:, hidden * number : hidden * (number + 1)] for number in range(3))

    def convolve(state: dict[str, Floats], given: Floats) -> Floats:
        return causal_conv(given, weights.conv, state["conv"], weights.bias, activation=False)

    mixed = run_on_state(convolve, run.cache.states[run.layer.number], b * x, shape=values.shape)
    return times(c * mixed, weights.output)


SHORT_CONV = PartCode(read, run, memory)
