"""Metal shaders on the CPU.

The text of a shader is preprocessed, rewritten into clang's "C++ for OpenCL" dialect (``translate``), checked for what
Apple's compiler rejects and clang accepts (``lint_tokens``, ``lint_syntax``), compiled against our stand-in for
``<metal_stdlib>`` (``stdlib/*.h``) and run with one fiber per GPU thread (``runner/*.c``).
"""
