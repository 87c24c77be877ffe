"""Which architecture a config.json names."""

from __future__ import annotations

from lbrx.errors import UsageError, nearest
from lbrx.models.architectures.architecture import Architecture
from lbrx.models.architectures.decoders import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    STABLELM,
)
from lbrx.models.architectures.early import FALCON, GPT2, GPT_NEOX
from lbrx.models.architectures.scope import Config, text_section

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        LLAMA,
        MISTRAL,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN3,
        QWEN3_MOE,
        GEMMA,
        GEMMA2,
        GEMMA3,
        PHI3,
        GPT2,
        GPT_NEOX,
        STABLELM,
        FALCON,
    )
}

_BY_CLASS = {name: architecture for architecture in ARCHITECTURES.values() for name in architecture.class_names}
_BY_MODEL_TYPE = {name: architecture for architecture in ARCHITECTURES.values() for name in architecture.model_types}


def known_architecture(config: Config) -> Architecture | None:
    """The architecture that a config names, or None if it is not in the table.

    The class counts first, then the model type, then those of the language model in a multi-modal config.

    >>> known_architecture({"architectures": ["MistralForCausalLM"]}).name
    'mistral'
    >>> known_architecture({"model_type": "unheard-of"}) is None
    True
    """
    for section in (config, text_section(config)):
        classes = section.get("architectures") or [""]
        found = _BY_CLASS.get(classes[0]) or _BY_MODEL_TYPE.get(section.get("model_type", ""))
        if found is not None:
            return found
    return None


def find_architecture(config: Config) -> Architecture:
    """The architecture that a config.json names.

    >>> find_architecture({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}).name
    'qwen2'
    """
    found = known_architecture(config)
    if found is not None:
        return found
    classes, model_type = config.get("architectures"), config.get("model_type")
    hint = nearest(str(model_type), ARCHITECTURES)
    raise UsageError(
        f"config.json: unknown architecture (architectures: {classes!r}, model_type: {model_type!r}); "
        f"expected one of {', '.join(ARCHITECTURES)}{hint}; "
        "the automatic mode merges any models whose tensors have equal names"
    )
