"""What is done to a product before it is stored: bias, activation, residual."""

from __future__ import annotations

from typing import Literal

from lbrx.base.fast_dataclass import dataclass
from lbrx.devices.metal.ops.arrays import DeviceArray, Shape
from lbrx.devices.metal.ops.launching import check_shape, float_number
from lbrx.errors import UsageError

Activation = Literal["silu", "gelu", "gelu_tanh"]
ACTIVATION_NUMBERS = {None: 0, "silu": 1, "gelu": 2, "gelu_tanh": 3}


@dataclass(frozen=True, slots=True)
class Epilogue:
    """activation(product + bias) + residual: a bias for every column, a residual of the result's shape."""

    bias: DeviceArray | None = None
    activation: Activation | None = None
    residual: DeviceArray | None = None

    def check(self, shape: Shape, what: str) -> None:
        """Raise unless it fits a result of this shape."""
        check_shape(self.bias, shape[-1:], f"{what}: the bias")
        check_shape(self.residual, shape, f"{what}: the residual")
        if self.activation not in ACTIVATION_NUMBERS:
            known = ", ".join(name for name in ACTIVATION_NUMBERS if name)
            raise UsageError(f"{what}: there is no activation {self.activation!r}; expected one of {known}")

    def constants(self, out: DeviceArray) -> dict[str, bool | int | float]:
        """Function constants of ``epilogue.h``."""
        return {
            "out_type": float_number(out, "the output"),
            "has_bias": self.bias is not None,
            "bias_type": float_number(self.bias, "the bias"),
            "activation": ACTIVATION_NUMBERS[self.activation],
            "has_residual": self.residual is not None,
            "residual_type": float_number(self.residual, "the residual"),
        }
