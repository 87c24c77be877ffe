"""silu, gelu, relu, their gated forms, and soft-capping, in f32. The error is at most 1e-6 of the result plus 1e-36."""

from __future__ import annotations

from typing import Literal

from lbrx.engine.arrays import Floats, Values, floats
from lbrx.engine.device import device_for
from lbrx.errors import ShapeError, UsageError

GeluForm = Literal["erf", "tanh"]


def silu(x: Values) -> Floats:
    """x / (1 + exp(-x))

    >>> import numpy as np
    >>> silu(np.array([0.0, 1.0], np.float32)).round(4)
    array([0.    , 0.7311], dtype=float32)
    """
    return device_for(x).apply("silu", floats(x))


def gelu(x: Values, form: GeluForm = "erf") -> Floats:
    """Multiply x by the normal distribution function of x; ``"tanh"`` selects the usual approximation.

    >>> import numpy as np
    >>> gelu(np.array([1.0], np.float32)).round(4), gelu(np.array([1.0], np.float32), "tanh").round(4)
    (array([0.8413], dtype=float32), array([0.8412], dtype=float32))
    """
    return device_for(x).apply(_gelu_name(form), floats(x))


def relu(x: Values) -> Floats:
    """max(x, 0)

    >>> import numpy as np
    >>> relu(np.array([-1.0, 2.0], np.float32))
    array([0., 2.], dtype=float32)
    """
    return device_for(x).apply("relu", floats(x))


def relu_squared(x: Values) -> Floats:
    """max(x, 0) squared

    >>> import numpy as np
    >>> relu_squared(np.array([-1.0, 2.0], np.float32))
    array([0., 4.], dtype=float32)
    """
    return device_for(x).apply("relu_squared", floats(x))


def silu_mul(gate: Values, up: Values) -> Floats:
    """silu(gate) * up

    >>> import numpy as np
    >>> silu_mul(np.array([1.0], np.float32), np.array([2.0], np.float32)).round(4)
    array([1.4621], dtype=float32)
    """
    return _gated("silu_mul", floats(gate), floats(up))


def gelu_mul(gate: Values, up: Values, form: GeluForm = "tanh") -> Floats:
    """gelu(gate) * up

    >>> import numpy as np
    >>> gelu_mul(np.array([1.0], np.float32), np.array([2.0], np.float32)).round(4)
    array([1.6824], dtype=float32)
    """
    return _gated(f"{_gelu_name(form)}_mul", floats(gate), floats(up))


def softcap(x: Values, cap: float) -> Floats:
    """Return cap tanh(x / cap): close to x for small x, never beyond the cap. The error is at most 2e-7 of the cap.

    >>> import numpy as np
    >>> softcap(np.array([1.0, 1e9], np.float32), 30.0).round(3)
    array([ 1., 30.], dtype=float32)
    """
    if not cap > 0:
        raise UsageError(f"the soft cap is {cap}; expected a number above 0")
    return device_for(x).apply("softcap", floats(x), numbers=(cap,))


def _gelu_name(form: GeluForm) -> str:
    if form not in ("erf", "tanh"):
        raise UsageError(f"unknown form of gelu {form!r}; expected 'erf' or 'tanh'")
    return "gelu" if form == "erf" else "gelu_tanh"


def _gated(function: str, gate: Floats, up: Floats) -> Floats:
    if gate.shape != up.shape:
        raise ShapeError(f"{function}: the gate has shape {gate.shape}, but up has {up.shape}; expected the same shape")
    return device_for(gate).apply(function, gate, (up,))
