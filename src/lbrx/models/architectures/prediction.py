"""Names of tensors that predict further tokens (MTP), for families that keep them next to the layers.

GGUF has them in layers after the others, and so has `Family.prediction`.
"""

from __future__ import annotations

from lbrx.models.architectures.family import Family

_MODULE = "mtp."
_LAYERS = "mtp.layers."


def layer_name(name: str, family: Family, layers: int) -> str:
    """Return the name of a tensor in the layers after the others; the same name if it predicts nothing.

    >>> from lbrx.models.architectures import find_family
    >>> qwen = find_family({"model_type": "qwen3_next"})
    >>> layer_name("mtp.layers.0.input_layernorm.weight", qwen, 48), layer_name("mtp.fc.weight", qwen, 48)
    ('model.layers.48.input_layernorm.weight', 'model.layers.48.eh_proj.weight')
    """
    own = name.removeprefix("model.")
    if not family.prediction_names or not own.startswith(_MODULE):
        return name
    prefix = family.namings[0].expand(family.layer_prefix.partition("{layer}")[0])
    number, _, rest = own.removeprefix(_LAYERS).partition(".")
    if own.startswith(_LAYERS) and number.isdecimal():
        return f"{prefix}{layers + int(number)}.{rest}"
    module, _, part = own.removeprefix(_MODULE).partition(".")
    return f"{prefix}{layers}.{family.prediction_names[module]}.{part}" if module in family.prediction_names else name


def module_name(name: str, family: Family, layers: int) -> str:
    """Return the inverse of ``layer_name``.

    >>> from lbrx.models.architectures import find_family
    >>> module_name("model.layers.48.eh_proj.weight", find_family({"model_type": "qwen3_next"}), 48)
    'mtp.fc.weight'
    """
    layer = family.layer_of(name)
    if not family.prediction_names or layer is None or layer < layers:
        return name
    rest = name.partition(f".{layer}.")[2]
    module, _, part = rest.rpartition(".")
    own = {inner: outer for outer, inner in family.prediction_names.items()}.get(module)
    return f"{_LAYERS}{layer - layers}.{rest}" if own is None else f"{_MODULE}{own}.{part}"
