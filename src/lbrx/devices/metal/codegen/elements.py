"""How elements and operations are written in a generated shader; the functions are in the files of the prelude."""

from __future__ import annotations

from lbrx.devices.cpu.codegen.registers import register_type
from lbrx.tensors.dtype import DTYPES

# dtype -> type of an element in memory
MEMORY_TYPES = {
    "f32": "float",
    "f16": "ushort",
    "bf16": "ushort",
    "f8_e4m3": "uchar",
    "f8_e5m2": "uchar",
    "i64": "long",
    "i32": "int",
    "i16": "short",
    "i8": "char",
    "u8": "uchar",
    "bool": "uchar",
    "i4": "uchar",
    "i2": "uchar",
}
REGISTER_TYPES = {
    "f32": "float",
    "i64": "long",
    "i32": "int",
    "i16": "short",
    "i8": "char",
    "u8": "uchar",
    "bool": "bool",
}
_UNSIGNED = {"i64": "ulong", "i32": "uint", "i16": "uint", "i8": "uint", "u8": "uint"}  # where wrap-around is defined
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_TEMPLATES = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "div": "{0} / {1}",
    "where": "{0} ? {1} : {2}",
    "minimum": "{0} <= {1} ? {0} : {1}",
    "maximum": "{0} >= {1} ? {0} : {1}",
}
_BY_BITS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "minimum", "maximum"})
"""Functions of floats that see subnormal numbers, which a GPU may take for zeros."""
_OWN_FUNCTIONS = frozenset({"sqrt", "floor", "exp", "log", "acos", "tanh", "erf"})
LEFT_TO_THE_CPU = frozenset({"pow", "floordiv", "mod"})  # their exact results need float64
_FLOAT_FUNCTIONS = {
    "sin": "precise::sin",
    "cos": "precise::cos",
    "round": "rint",
}
_PACKED = frozenset({"i4", "i2"})
_ROUNDED = frozenset({"f16", "bf16", "f8_e4m3", "f8_e5m2"})


def load_text(dtype_name: str, buffer: str, index: str) -> str:
    """An element of a buffer as a register; ``index`` counts elements."""
    if dtype_name in _PACKED:
        shift = {"i4": 1, "i2": 2}[dtype_name]
        return f"decode_{dtype_name}({buffer}[({index}) >> {shift}], uint({index}))"
    return f"decode_{dtype_name}({buffer}[{index}])"


def cast_text(text: str, source: str, target: str) -> str:
    """A value of a register type as a value of a dtype, rounded and held in that dtype's register.

    >>> cast_text("v0", "f32", "bf16")
    'decode_bf16(encode_bf16(v0))'
    """
    register = register_type(target)
    if target in _PACKED:
        return f"f32_to_{target}({text})" if source == "f32" else f"wrap_{target}({converted(text, 'i8')})"
    if target in _ROUNDED:
        wide = f"odd_f32({text})" if source in ("i64", "i32") else converted(text, "f32") if source != "f32" else text
        return f"decode_{target}(encode_{target}({wide}))"
    if source == register:
        return text
    if source == "f32" and DTYPES[target].kind in "iu":
        return f"f32_to_{target}({text})"
    return f"is_true({text})" if (source, register) == ("f32", "bool") else converted(text, register)


def converted(text: str, register: str) -> str:
    """A number as another register type, as the CPU converts it: integers wrap."""
    return f"({text} != 0)" if register == "bool" else f"{REGISTER_TYPES[register]}({text})"


def operation_text(op: str, register: str, args: list[str], arg_register: str) -> str:
    """The text of an element-wise operation whose arguments already have the register type it computes in.

    >>> operation_text("add", "i32", ["v0", "v1"], "i32")
    'int(uint(v0) + uint(v1))'
    """
    if op in _INFIX:
        return _infix_text(op, register, args)
    if op in _BY_BITS and arg_register == "f32":
        return f"{op}_f32({', '.join(args)})"
    if op in _TEMPLATES:
        return _TEMPLATES[op].format(*args)
    if op == "isnan":
        return f"is_nan_bits({args[0]})" if arg_register == "f32" else "false"
    if op == "order_key":
        return key_text(args[0], arg_register)
    if op == "not":
        return f"!{args[0]}" if register == "bool" else converted(f"~{args[0]}", register)
    return _unary_text(op, register, args[0])


def key_text(value: str, register: str) -> str:
    """The sortable key of a value: an int, or a long for i64."""
    return {"f32": f"key_of_f32({value})", "i64": f"key_of_i64({value})"}.get(register, f"key_of_i32(int({value}))")


def _infix_text(op: str, register: str, args: list[str]) -> str:
    if register == "f32":
        return f"{args[0]} {_INFIX[op]} {args[1]}"
    if register == "bool":
        symbol = {"add": "|", "mul": "&"}.get(op, _INFIX[op])
        return f"(uint({args[0]}) {symbol} uint({args[1]})) != 0u"
    wide = _UNSIGNED[register]
    return f"{REGISTER_TYPES[register]}({wide}({args[0]}) {_INFIX[op]} {wide}({args[1]}))"


def _unary_text(op: str, register: str, arg: str) -> str:
    is_float = register == "f32"
    if op in _OWN_FUNCTIONS:
        return f"{op}_f32({arg})"
    if op in _FLOAT_FUNCTIONS:
        return f"{_FLOAT_FUNCTIONS[op]}({arg})"
    negated = (
        f"negated({arg})" if is_float else f"{REGISTER_TYPES[register]}(0u - {_UNSIGNED.get(register, 'uint')}({arg}))"
    )
    if op == "neg":
        return negated
    if op == "abs" and is_float:
        return f"as_type<float>(as_type<uint>({arg}) & 0x7fffffffu)"
    if op == "abs":
        return arg if register in ("u8", "bool") else f"{arg} < 0 ? {negated} : {arg}"
    if op == "sign":
        return f"sign_f32({arg})" if is_float else f"{REGISTER_TYPES[register]}(int({arg} > 0) - int({arg} < 0))"
    raise AssertionError(f"no text for operation {op}")
