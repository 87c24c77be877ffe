"""clang's messages in the words of the shading language."""

from __future__ import annotations

import re

_SPACES = {
    "__global_device": "device",
    "const __global": "constant",
    "__global": "constant",
    "__local": "threadgroup",
    "__private": "thread",
}
_SPACE = re.compile("|".join(_SPACES))
_IN_LIBRARY = re.compile(r"^[^\s:][^:\n]*/emulator/stdlib/\w+\.h:\d+:\d+: ", re.MULTILINE)
_GLUE = re.compile(r"^(.+) line (\d+) kernel (\S+?):\d+:\d+: ", re.MULTILINE)
_INCLUDED = re.compile(r"^In file included from [^\n]*\n", re.MULTILINE)


def glue_file(file: str, line: int, kernel: str) -> str:
    """Where clang believes that the generated entry point of a kernel stands."""
    return f"{file} line {line} kernel {kernel}"


def is_glue(file: str) -> bool:
    return " kernel " in file


def readable(messages: str) -> str:
    """Messages with Metal's address spaces, and with lines of the shader instead of generated files.

    >>> readable("shader.metal line 7 kernel k:2:50: note: of type '__global_device float *__private'")
    "shader.metal:7: kernel 'k': note: of type 'device float *'"
    """
    text = _INCLUDED.sub("", messages)
    text = _IN_LIBRARY.sub("<metal_stdlib>: ", text)
    text = _GLUE.sub(r"\1:\2: kernel '\3': ", text)
    text = text.replace("*__private", "*").replace("__generic ", "")
    return _SPACE.sub(lambda match: _SPACES[match.group()], text).strip()
