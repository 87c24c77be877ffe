"""Function constants: Metal refuses a kernel if one that it uses has no value, the emulator takes 0."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lbrx.devices.metal.context import MetalContext
from lbrx.devices.metal.driver import CompileOptions, Pipeline
from lbrx.devices.metal.ops.sources import SHADERS, shader_source
from lbrx.jobs.doctor.kernel_tests import self_tests
from support.kernel_contexts import context
from support.metal_shaders import needs_clang

_CONSTANT = re.compile(r"^constant \w+ (\w+) \[\[function_constant\(\d+\)\]\];", re.MULTILINE)
_HOST_NAME = re.compile(r'^INSTANTIATE\("(\w+)"', re.MULTILINE)


def parts_of(source: str) -> dict[str, set[str]]:
    """The words of every function and structure of a shader, by name."""
    text = re.sub(r"//[^\n]*", "", source)
    parts: dict[str, set[str]] = {}
    depth = start = 0
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth or character not in "};":
            continue
        if character == "}":
            whole = text[start : index + 1]
            name = re.search(r"struct (\w+)|(\w+)\s*\(", whole)
            assert name is not None
            parts.setdefault(name.group(1) or name.group(2), set()).update(re.findall(r"\w+", whole))
        start = index + 1
    return parts


def used_constants(source: str, kernel: str) -> set[str]:
    parts = parts_of(source)
    root = kernel if kernel in parts else kernel.partition("_")[0]
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        words = parts[waiting.pop()] - seen
        seen |= words
        waiting += [word for word in words if word in parts]
    return seen & set(_CONSTANT.findall(source))


class Recorder(MetalContext):
    """Remembers the constants of every pipeline that was asked for."""

    def __init__(self, other: MetalContext) -> None:
        super().__init__(other.driver)
        self.asked: dict[str, tuple[str, set[str]]] = {}

    def pipeline(
        self,
        source: str,
        name: str,
        constants: Mapping[str, bool | int | float] | None = None,
        options: CompileOptions | None = None,
    ) -> Pipeline:
        self.asked[name] = (source, set(constants or {}))
        return super().pipeline(source, name, constants, options)


def test_words_of_a_shader() -> None:
    source = shader_source("rows")
    assert used_constants(source, "softmax") == {"x_type", "out_type"}
    assert used_constants(source, "rms_norm") == {"x_type", "out_type", "weight_type", "add_one"}
    assert "weight_coding" in used_constants(shader_source("matmul"), "matmul_64x64")


@needs_clang
def test_kernels_get_the_constants_that_they_use_and_no_others() -> None:
    recorder = Recorder(context())
    for name, test in self_tests().items():
        result = test(recorder)
        assert result.passed, f"{name}: {result}"
    for kernel, (source, given) in recorder.asked.items():
        assert given == used_constants(source, kernel), kernel
    every = [shader_source(path.stem) for path in sorted(SHADERS.glob("*.metal"))]
    plain = {name for text in every for name in re.findall(r"^kernel void (\w+)\(", text, re.MULTILINE)} - {"matmul"}
    instances = {name for text in every for name in _HOST_NAME.findall(text)}
    assert set(recorder.asked) == plain | instances  # every kernel has a self-test
