"""Tables of everything that has a name, one line each: ``name -> "module:object"``.

Objects are imported on first use. Installed packages can add merge methods and codecs through entry points.
"""

from __future__ import annotations

import typing
from collections.abc import Collection
from importlib import import_module
from typing import Any

from lbrx.errors import UsageError

if typing.TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEVICES: dict[str, str] = {
    "cpu": "lbrx.devices.cpu.device:CpuDevice",
    "metal": "lbrx.devices.metal.device:MetalDevice",
    "numpy": "lbrx.devices.numpy.device:NumpyDevice",
}
"""Devices that run passes: classes that implement `lbrx.engine.device.Device`."""

TENSOR_FUNCTIONS: dict[str, str] = {
    "evaluate": "lbrx.engine.evaluate:evaluate_exprs",
    "device_of": "lbrx.engine.device:device_of",
    "moved": "lbrx.engine.device:moved",
    "shard": "lbrx.ops.shards:shard",
}
"""Functions of higher layers that Tensor methods call; lbrx.tensors itself imports nothing above it."""

METHODS: dict[str, str] = {
    "linear": "lbrx.jobs.merge.methods.linear:linear",
    "passthrough": "lbrx.jobs.merge.methods.passthrough:passthrough",
    "slerp": "lbrx.jobs.merge.methods.slerp:slerp",
    "nuslerp": "lbrx.jobs.merge.methods.nuslerp:nuslerp",
    "multislerp": "lbrx.jobs.merge.methods.multislerp:multislerp",
    "karcher": "lbrx.jobs.merge.methods.karcher:karcher",
    "task_arithmetic": "lbrx.jobs.merge.methods.task_arithmetic:task_arithmetic",
    "ties": "lbrx.jobs.merge.methods.task_arithmetic:ties",
    "dare_linear": "lbrx.jobs.merge.methods.task_arithmetic:dare_linear",
    "dare_ties": "lbrx.jobs.merge.methods.task_arithmetic:dare_ties",
    "della": "lbrx.jobs.merge.methods.task_arithmetic:della",
    "della_linear": "lbrx.jobs.merge.methods.task_arithmetic:della_linear",
    "breadcrumbs": "lbrx.jobs.merge.methods.task_arithmetic:breadcrumbs",
    "breadcrumbs_ties": "lbrx.jobs.merge.methods.task_arithmetic:breadcrumbs_ties",
    "model_stock": "lbrx.jobs.merge.methods.model_stock:model_stock",
    "nearswap": "lbrx.jobs.merge.methods.nearswap:nearswap",
    "arcee_fusion": "lbrx.jobs.merge.methods.arcee_fusion:arcee_fusion",
    "sce": "lbrx.jobs.merge.methods.sce:sce",
    "ram": "lbrx.jobs.merge.methods.ram:ram",
    "ramplus_tl": "lbrx.jobs.merge.methods.ramplus_tl:ramplus_tl",
    "checkpoint_average": "lbrx.jobs.merge.methods.checkpoint_average:checkpoint_average",
    "consensus_ta": "lbrx.jobs.merge.methods.consensus:consensus_ta",
    "iso_c": "lbrx.jobs.merge.methods.iso_c:iso_c",
    "tsv_m": "lbrx.jobs.merge.methods.tsv_m:tsv_m",
    "wudi": "lbrx.jobs.merge.methods.wudi:wudi",
    "regmean": "lbrx.jobs.merge.methods.regmean:regmean",
}
"""Built-in merge methods. Their signatures define their parameters."""


FAMILIES: dict[str, str] = {
    "llama": "lbrx.models.architectures.families.llama:LLAMA",
    "mistral": "lbrx.models.architectures.families.mistral:MISTRAL",
    "mixtral": "lbrx.models.architectures.families.mistral:MIXTRAL",
    "qwen2": "lbrx.models.architectures.families.qwen:QWEN2",
    "qwen2_moe": "lbrx.models.architectures.families.qwen:QWEN2_MOE",
    "qwen3": "lbrx.models.architectures.families.qwen:QWEN3",
    "qwen3_moe": "lbrx.models.architectures.families.qwen:QWEN3_MOE",
    "gemma": "lbrx.models.architectures.families.gemma:GEMMA",
    "gemma2": "lbrx.models.architectures.families.gemma:GEMMA2",
    "gemma3": "lbrx.models.architectures.families.gemma:GEMMA3",
    "phi3": "lbrx.models.architectures.families.phi3:PHI3",
    "olmo2": "lbrx.models.architectures.families.olmo2:OLMO2",
    "gpt2": "lbrx.models.architectures.families.gpt2:GPT2",
    "gpt_neox": "lbrx.models.architectures.families.gpt_neox:GPT_NEOX",
    "qwen3_5": "lbrx.models.architectures.families.qwen_linear:QWEN3_5",
    "qwen3_5_moe": "lbrx.models.architectures.families.qwen_linear:QWEN3_5_MOE",
    "qwen3_next": "lbrx.models.architectures.families.qwen_linear:QWEN3_NEXT",
    "stablelm": "lbrx.models.architectures.families.stablelm:STABLELM",
    "falcon": "lbrx.models.architectures.families.falcon:FALCON",
    "bart": "lbrx.models.architectures.families.bart:BART",
    "bert": "lbrx.models.architectures.families.bert:BERT",
    "clip": "lbrx.models.architectures.families.vision:CLIP",
    "distilbert": "lbrx.models.architectures.families.bert:DISTILBERT",
    "modernbert": "lbrx.models.architectures.families.modernbert:MODERNBERT",
    "nomic_bert": "lbrx.models.architectures.families.modernbert:NOMIC_BERT",
    "roberta": "lbrx.models.architectures.families.bert:ROBERTA",
    "siglip": "lbrx.models.architectures.families.vision:SIGLIP",
    "t5": "lbrx.models.architectures.families.t5:T5",
    "t5_encoder": "lbrx.models.architectures.families.t5:T5_ENCODER",
    "vit": "lbrx.models.architectures.families.vision:VIT",
    "whisper": "lbrx.models.architectures.families.bart:WHISPER",
    "arcee": "lbrx.models.architectures.families.arcee:ARCEE",
    "cohere": "lbrx.models.architectures.families.cohere:COHERE",
    "cohere2": "lbrx.models.architectures.families.cohere:COHERE2",
    "ernie4_5": "lbrx.models.architectures.families.ernie4_5:ERNIE4_5",
    "exaone4": "lbrx.models.architectures.families.exaone:EXAONE4",
    "glm": "lbrx.models.architectures.families.glm:GLM",
    "glm4": "lbrx.models.architectures.families.glm:GLM4",
    "granite": "lbrx.models.architectures.families.granite:GRANITE",
    "helium": "lbrx.models.architectures.families.helium:HELIUM",
    "hunyuan_v1_dense": "lbrx.models.architectures.families.hunyuan:HUNYUAN_V1_DENSE",
    "jais2": "lbrx.models.architectures.families.nemotron:JAIS2",
    "nemotron": "lbrx.models.architectures.families.nemotron:NEMOTRON",
    "olmo": "lbrx.models.architectures.families.olmo:OLMO",
    "olmo3": "lbrx.models.architectures.families.olmo:OLMO3",
    "phi": "lbrx.models.architectures.families.phi:PHI",
    "seed_oss": "lbrx.models.architectures.families.seed_oss:SEED_OSS",
    "smollm3": "lbrx.models.architectures.families.smollm3:SMOLLM3",
    "starcoder2": "lbrx.models.architectures.families.starcoder2:STARCODER2",
    "afmoe": "lbrx.models.architectures.families.afmoe:AFMOE",
    "deepseek_v2": "lbrx.models.architectures.families.deepseek:DEEPSEEK_V2",
    "deepseek_v3": "lbrx.models.architectures.families.deepseek:DEEPSEEK_V3",
    "falcon_mamba": "lbrx.models.architectures.families.mamba:FALCON_MAMBA",
    "lfm2_moe": "lbrx.models.architectures.families.lfm2:LFM2_MOE",
    "lfm2": "lbrx.models.architectures.families.lfm2:LFM2",
    "mamba": "lbrx.models.architectures.families.mamba:MAMBA",
    "mamba2": "lbrx.models.architectures.families.mamba:MAMBA2",
    "dots1": "lbrx.models.architectures.families.dots1:DOTS1",
    "ernie4_5_moe": "lbrx.models.architectures.families.ernie_moe:ERNIE_MOE",
    "bamba": "lbrx.models.architectures.families.bamba:BAMBA",
    "falcon_h1": "lbrx.models.architectures.families.falcon_h1:FALCON_H1",
    "granitemoehybrid": "lbrx.models.architectures.families.granite_hybrid:GRANITE_HYBRID",
    "granitemoehybrid_dense": "lbrx.models.architectures.families.granite_hybrid:GRANITE_HYBRID_DENSE",
    "jamba": "lbrx.models.architectures.families.jamba:JAMBA",
    "nemotron_h": "lbrx.models.architectures.families.nemotron_h:NEMOTRON_H",
    "nemotron_h_moe": "lbrx.models.architectures.families.nemotron_h:NEMOTRON_H_MOE",
    "glm4_moe": "lbrx.models.architectures.families.glm_moe:GLM4_MOE",
    "gpt_oss": "lbrx.models.architectures.families.gpt_oss:GPT_OSS",
    "granitemoe": "lbrx.models.architectures.families.granite_moe:GRANITE_MOE",
    "granitemoeshared": "lbrx.models.architectures.families.granite_moe:GRANITE_MOE_SHARED",
    "hunyuan_v1_moe": "lbrx.models.architectures.families.hunyuan_moe:HUNYUAN_MOE",
    "llama4": "lbrx.models.architectures.families.llama4:LLAMA4",
    "minimax": "lbrx.models.architectures.families.minimax:MINIMAX",
    "minimax_m2": "lbrx.models.architectures.families.minimax:MINIMAX_M2",
    "olmoe": "lbrx.models.architectures.families.olmoe:OLMOE",
    "phimoe": "lbrx.models.architectures.families.phimoe:PHIMOE",
    "biogpt": "lbrx.models.architectures.families.opt:BIOGPT",
    "bloom": "lbrx.models.architectures.families.bloom:BLOOM",
    "gpt_bigcode": "lbrx.models.architectures.families.gpt2:GPT_BIGCODE",
    "gptj": "lbrx.models.architectures.families.gptj:GPTJ",
    "opt": "lbrx.models.architectures.families.opt:OPT",
    "vaultgemma": "lbrx.models.architectures.families.gemma:VAULTGEMMA",
    "mistral3": "lbrx.models.architectures.families.vision_language:MISTRAL3",
    "qwen2_vl": "lbrx.models.architectures.families.vision_language:QWEN2_VL",
    "qwen3_vl": "lbrx.models.architectures.families.vision_language:QWEN3_VL",
    "baichuan": "lbrx.models.architectures.families.baichuan:BAICHUAN",
    "exaone": "lbrx.models.architectures.families.exaone:EXAONE",
    "internlm2": "lbrx.models.architectures.families.internlm2:INTERNLM2",
    "minicpm": "lbrx.models.architectures.families.minicpm:MINICPM",
    "ministral3": "lbrx.models.architectures.families.mistral:MINISTRAL3",
    "qwen": "lbrx.models.architectures.families.qwen1:QWEN1",
    "gemma4": "lbrx.models.architectures.families.gemma4:GEMMA4",
}
"""Model families, as `lbrx.models.architectures.family.Family` records."""

CODECS: dict[str, str] = {
    "q4_0": "lbrx.tensors.codecs.legacy:Q4_0",
    "q4_1": "lbrx.tensors.codecs.legacy:Q4_1",
    "q5_0": "lbrx.tensors.codecs.legacy:Q5_0",
    "q5_1": "lbrx.tensors.codecs.legacy:Q5_1",
    "q8_0": "lbrx.tensors.codecs.legacy:Q8_0",
    "q2_k": "lbrx.tensors.codecs.k_quants:Q2_K",
    "q3_k": "lbrx.tensors.codecs.k_quants:Q3_K",
    "q4_k": "lbrx.tensors.codecs.k_quants:Q4_K",
    "q5_k": "lbrx.tensors.codecs.k_quants:Q5_K",
    "q6_k": "lbrx.tensors.codecs.k_quants:Q6_K",
    "iq4_nl": "lbrx.tensors.codecs.nonlinear:IQ4_NL",
    "iq4_xs": "lbrx.tensors.codecs.nonlinear:IQ4_XS",
    "tq1_0": "lbrx.tensors.codecs.ternary:TQ1_0",
    "tq2_0": "lbrx.tensors.codecs.ternary:TQ2_0",
    "q1_0": "lbrx.tensors.codecs.ternary:Q1_0",
    "q2_0": "lbrx.tensors.codecs.ternary:Q2_0",
    "mxfp4": "lbrx.tensors.codecs.small_floats:MXFP4",
    "nvfp4": "lbrx.tensors.codecs.small_floats:NVFP4",
    "iq1_s": "lbrx.tensors.codecs.codebooks:IQ1_S",
    "iq1_m": "lbrx.tensors.codecs.codebooks:IQ1_M",
    "iq2_xxs": "lbrx.tensors.codecs.codebooks:IQ2_XXS",
    "iq2_xs": "lbrx.tensors.codecs.codebooks:IQ2_XS",
    "iq2_s": "lbrx.tensors.codecs.codebooks:IQ2_S",
    "iq3_xxs": "lbrx.tensors.codecs.codebooks:IQ3_XXS",
    "iq3_s": "lbrx.tensors.codecs.codebooks:IQ3_S",
}
"""Quantization types of GGUF files, as `lbrx.tensors.codecs.codec.Codec` records."""

RUNNERS: dict[str, str] = {
    "output": "lbrx.cluster.run:cluster_runner",
    "score": "lbrx.cluster.scoring:cluster_score_runner",
    "search": "lbrx.cluster.searching:cluster_search_runner",
    "imatrix": "lbrx.cluster.calibrating:cluster_imatrix_runner",
    "feedback": "lbrx.cluster.calibrating:cluster_feedback_runner",
}
"""Functions that run jobs on a cluster, given its address (see `lbrx.files.output.run` and `lbrx.jobs.score`)."""

BENCHMARKS: dict[str, str] = {
    "metal": "lbrx.jobs.bench.measure:measure",
}
"""Devices that `lbrx bench` compares with the CPU: functions that time its cases on both."""

SELF_TESTS: dict[str, str] = {
    "passes": "lbrx.jobs.doctor.pass_tests:self_tests",
    "kernels": "lbrx.jobs.doctor.kernel_tests:self_tests",
}
"""Metal kernel families: functions that return their self-tests by name (see `lbrx.jobs.doctor.self_test`)."""


def load(reference: str) -> Any:
    """Import and return the object of a registry entry.

    >>> load("lbrx.jobs.merge.methods.linear:linear").__name__
    'linear'
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def installed(group: str, taken: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group in installed packages, by name; ``taken`` are the built-in names.

    This reads the metadata of all packages, so call it only for names that are not built in.
    """
    from importlib.metadata import entry_points

    by_name: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name in taken:
            raise UsageError(
                f"{package_of(entry)} registers {entry.name!r} in {group}, but that name is built in; "
                "expected a new name"
            )
        if entry.name in by_name:
            packages = f"{package_of(by_name[entry.name])} and {package_of(entry)}"
            raise UsageError(f"{packages} both register {entry.name!r} in {group}; expected only one of them")
        by_name[entry.name] = entry
    return by_name


def load_installed(entry: EntryPoint) -> Any:
    """Import the object of an entry point. An error names its package."""
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        where = f"{package_of(entry)}: {entry.name} = {entry.value!r} in {entry.group}"
        raise UsageError(f"{where} cannot be loaded: {problem}") from error


def package_of(entry: EntryPoint) -> str:
    """Return the package of an entry point as text for error messages."""
    return "an installed package" if entry.dist is None else f"package {entry.dist.name} {entry.dist.version}"
