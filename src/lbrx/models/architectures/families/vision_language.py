"""Vision-language models whose language models have a name of their own in llama.cpp.

Others, such as LLaVA, are recognized by the section ``text_config`` of their config.
"""

from __future__ import annotations

from dataclasses import replace

from lbrx.models.architectures.families.mistral import MISTRAL
from lbrx.models.architectures.families.qwen import QWEN2, QWEN3
from lbrx.models.architectures.records import Gguf

# Positions of text are the same in all sections of a head, so the models run like those without sections.
QWEN2_VL = replace(
    QWEN2,
    name="qwen2_vl",
    model_types=("qwen2_vl_text", "qwen2_vl", "qwen2_5_vl_text", "qwen2_5_vl"),
    class_names=("Qwen2VLTextModel", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    gguf=Gguf("qwen2vl", has_rope_sections=True),
)
QWEN3_VL = replace(
    QWEN3,
    name="qwen3_vl",
    model_types=("qwen3_vl_text", "qwen3_vl"),
    class_names=("Qwen3VLTextModel", "Qwen3VLForConditionalGeneration"),
    gguf=Gguf("qwen3vl", has_rope_sections=True, counted={"n_deepstack_layers": "vision_deepstack_visual_indexes"}),
)
MISTRAL3 = replace(
    MISTRAL,
    name="mistral3",
    model_types=("mistral3",),
    class_names=("Mistral3ForConditionalGeneration",),
    text_only=("mistral", "MistralForCausalLM"),
    gguf=Gguf("mistral3", rope_types=("default", "linear", "yarn", "llama3"), when="not attention_temperature_scale"),
)
