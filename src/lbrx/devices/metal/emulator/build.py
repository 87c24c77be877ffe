"""From the text of a shader to a shared library with one entry point per kernel."""

from __future__ import annotations

import hashlib
import platform
import re
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from lbrx.devices.metal.driver import CompileOptions
from lbrx.devices.metal.driver.artifacts import ArtifactStore
from lbrx.devices.metal.driver.errors import ShaderError
from lbrx.devices.metal.driver.scratch import scratch_directory
from lbrx.devices.metal.emulator.image import Image
from lbrx.devices.metal.emulator.lint_syntax import lint_syntax
from lbrx.devices.metal.emulator.lint_tokens import lint_tokens
from lbrx.devices.metal.emulator.messages import readable
from lbrx.devices.metal.emulator.tokens import Problem, SourceLine
from lbrx.devices.metal.emulator.toolchain import Toolchain, compile_for_host, find_toolchain, run, start
from lbrx.devices.metal.emulator.translate import Translation, translate
from lbrx.devices.metal.generations import BFLOAT_LANGUAGE, Version

HERE = Path(__file__).parent
SHADER_FILE = "shader.metal"  # the name of a shader in messages
_INCLUDED = "__msl_stdlib_included__"  # what our <metal_stdlib> leaves behind when it is preprocessed
_RETRIES = 6
_PREPROCESS = (
    *("-E", "-x", "c++", "-std=c++17", "-nostdinc", "-undef", "-Wno-everything"),
    *("-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__APPLE_METAL__=1"),
)
_DIALECT = (
    *("-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-cl-single-precision-constant"),
    *("-Xclang", "-cl-ext=+all,-cl_khr_fp64,-__opencl_c_fp64", "-Xclang", "-fbfloat16-excess-precision=none"),
    *("-O2", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-fsigned-char", "-fno-math-errno", "-fno-stack-protector"),
    *("-ftrivial-auto-var-init=pattern", "-fvisibility=default", "-ferror-limit=30", "-fno-color-diagnostics"),
    *("-Wno-everything", "-fno-crash-diagnostics", "-fdenormal-fp-math=dynamic"),  # arithmetic may flush
)
_CHECKED = "array-bounds,alignment,integer-divide-by-zero"
_CHECKS = (f"-fsanitize={_CHECKED}", "-fsanitize-minimal-runtime", "-fno-sanitize-recover=all")
_INSTRUMENTATION = (  # clang does not allow the minimal runtime beside it: there, failed checks are traps
    *(f"-fsanitize=thread,{_CHECKED}", f"-fsanitize-trap={_CHECKED}"),
    *("-mllvm", "-tsan-instrument-read-before-write=1", "-D__MSL_INSTRUMENTED=1"),
)
_ADDRESS_SPACE_ERROR = re.compile(r"^([^\s:][^:\n]*):(\d+):\d+: error: incompatible operand types", re.MULTILINE)


@cache
def emulator_version() -> str:
    """Changes with whatever a compiled shader depends on besides its text: emulator, compiler, processor."""
    digest = hashlib.sha256()
    for path in sorted(path for path in HERE.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    digest.update(f"{find_toolchain().version} {HERE}".encode())
    return digest.hexdigest()[:24]


def build(
    source: str,
    options: CompileOptions,
    *,
    language: Version,
    instrumented: bool = False,
    include_directories: Sequence[Path] = (),
    only: Sequence[str] | None = None,
) -> Image:
    """Compile a shader; a ShaderError with its lines if Apple's compiler of a language would reject it.

    ``instrumented`` kernels announce their memory accesses, for the race detector. ``only`` limits the entry points
    to some kernels: a file with thousands of instantiations compiles in seconds then.
    """
    toolchain = find_toolchain()
    preprocessed = _preprocess(toolchain, source, options, language, include_directories)
    flags = _flags(toolchain, options, instrumented)
    retry_lines: set[SourceLine] = set()
    for _ in range(_RETRIES):
        translation = translate(preprocessed, only, retry_lines)
        _reject(translation.text.problems + lint_tokens(translation, language))
        outcome = _compiled(toolchain, flags, translation, instrumented, options)
        if isinstance(outcome, bytes):
            return Image.of(translation, instrumented, outcome)
        failed_lines = {
            SourceLine(file, int(line)) for file, line in _ADDRESS_SPACE_ERROR.findall(outcome)
        } - retry_lines
        if not failed_lines:
            raise ShaderError(f"the shader does not compile:\n{readable(outcome)}")
        retry_lines |= failed_lines
    raise ShaderError(f"the shader does not compile: conditional expressions over address spaces at {retry_lines}")


def _reject(problems: Sequence[Problem]) -> None:
    if problems:
        raise ShaderError("the shader does not compile:\n" + "\n".join(map(str, problems)))


def _preprocess(
    toolchain: Toolchain,
    source: str,
    options: CompileOptions,
    language: Version,
    include_directories: Sequence[Path],
) -> str:
    macros = (("__METAL_VERSION__", f"{language[0]}{language[1]}0"), *options.defines)
    if language >= BFLOAT_LANGUAGE:
        macros = (("__HAVE_BFLOAT__", "1"), *macros)
    defines = [f"-D{name}={value}" for name, value in macros]
    includes = [word for path in (HERE / "include", *include_directories) for word in ("-I", str(path))]
    command = [*toolchain.compiler, *_PREPROCESS, *defines, *includes, "-"]
    text = run(command, f'# 1 "{SHADER_FILE}"\n{source}', "the shader does not compile")
    has_library = _INCLUDED in text
    text = re.sub(rf"^.*{_INCLUDED}.*$", "", text, flags=re.MULTILINE)
    if not has_library and re.search(r"\busing namespace metal\b|\bmetal\s*::", text):
        line = SourceLine(SHADER_FILE, 1)
        _reject([Problem(line, "use of undeclared identifier 'metal' (is #include <metal_stdlib> missing?)")])
    text = re.sub(
        r"^[ \t]*#pragma[ \t]+METAL[ \t]+fp[ \t]+contract", "#pragma clang fp contract", text, flags=re.MULTILINE
    )
    # Hints only; unrolling as much as a GPU's compiler does takes ten times as long.
    return re.sub(r"^[ \t]*#pragma[ \t]+(unroll|nounroll|clang loop|METAL)[^\n]*$", "", text, flags=re.MULTILINE)


def _flags(toolchain: Toolchain, options: CompileOptions, instrumented: bool) -> list[str]:
    flags = [*toolchain.compiler, *_DIALECT]
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-march=x86-64-v3")
    flags.append("-ffast-math" if options.fast_math else "-ffp-contract=on")
    return flags + list(_INSTRUMENTATION if instrumented else _CHECKS)


def _compiled(
    toolchain: Toolchain, flags: list[str], translation: Translation, instrumented: bool, options: CompileOptions
) -> bytes | str:
    """What `_compile` makes, from the cache if the text is known: generations and languages often agree on it."""
    key = f"code {emulator_version()} {instrumented} {options.fast_math}\n{translation.text.output()}"
    known = ArtifactStore().read(key)
    if known is not None:
        return known
    outcome = _compile(toolchain, flags, translation, instrumented, options)
    if isinstance(outcome, bytes):
        ArtifactStore().write(key, outcome)
    return outcome


def _compile(
    toolchain: Toolchain, flags: list[str], translation: Translation, instrumented: bool, options: CompileOptions
) -> bytes | str:
    """The shared library, or clang's messages. The lint of the syntax tree runs beside the compilation."""
    text = translation.text.output()
    header = _precompiled_header(tuple(flags), f"{instrumented} {options.fast_math}")
    prefix = [*flags, "-include-pch", str(header)]
    with tempfile.TemporaryDirectory(dir=scratch_directory()) as work:
        source, object_file, shared = Path(work) / "shader.clcpp", Path(work) / "shader.o", Path(work) / "shader.so"
        source.write_text(text)
        dump = start([*prefix, "-fsyntax-only", "-Xclang", "-ast-dump", str(source)])
        messages = _make_object(prefix, source, object_file)
        tree, _ = dump.communicate()
        if messages is not None:
            return messages
        _reject(lint_syntax(tree.splitlines(), translation.functions))
        run([*toolchain.linker, "-o", str(shared), str(object_file)], what="the shader cannot be linked")
        return shared.read_bytes()


def _make_object(prefix: list[str], source: Path, object_file: Path) -> str | None:
    """Compile; None, or clang's messages."""
    if platform.machine() not in ("aarch64", "arm64"):
        return _messages([*prefix, "-c", str(source), "-o", str(object_file)])
    # OpenCL's calling conventions exist for x86 only; without them the code is the same.
    assembly = source.with_suffix(".ll")
    messages = _messages([*prefix, "-S", "-emit-llvm", str(source), "-o", str(assembly)])
    if messages is not None:
        return messages
    assembly.write_text(re.sub(r"\bspir_(kernel|func) ", "", assembly.read_text()))
    compiler = find_toolchain().compiler
    return _messages([*compiler, "-x", "ir", "-O2", "-fPIC", "-c", str(assembly), "-o", str(object_file)])


def _messages(command: list[str]) -> str | None:
    process = start(command)
    _, messages = process.communicate()
    return messages if process.returncode else None


_header_lock = threading.Lock()


def _precompiled_header(flags: tuple[str, ...], variant: str) -> Path:
    with _header_lock:
        return _precompiled_header_file(flags, variant)


@cache
def _precompiled_header_file(flags: tuple[str, ...], variant: str) -> Path:
    """Our <metal_stdlib>, parsed once: a shader then compiles in a tenth of the time."""
    key = f"metal_stdlib {emulator_version()} {variant}"
    path = scratch_directory() / f"metal_stdlib_{hashlib.sha256(key.encode()).hexdigest()[:16]}.pch"
    cached = ArtifactStore().read(key)
    if cached is not None:
        path.write_bytes(cached)
        return path
    header = HERE / "stdlib" / "metal_stdlib.h"
    command = [*flags, "-Xclang", "-emit-pch", "-Xclang", "-fno-pch-timestamp", "-c", str(header), "-o", str(path)]
    run(command, what="the emulator's metal_stdlib.h does not compile")
    ArtifactStore().write(key, path.read_bytes())
    return path


@cache
def runner_library() -> Path:
    """The runner, compiled for this machine."""
    key = f"runner {emulator_version()}"
    path = scratch_directory() / "runner.so"
    cached = ArtifactStore().read(key)
    if cached is None:
        sources = sorted(str(path) for path in (HERE / "runner").glob("*.c"))
        flags = ("-O2", "-shared", "-fPIC", "-fno-sanitize=all", "-o", str(path), *sources, "-lm", "-lpthread")
        compile_for_host([*flags], "the emulator's runner does not compile")
        ArtifactStore().write(key, path.read_bytes())
    else:
        path.write_bytes(cached)
    return path
