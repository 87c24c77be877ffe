"""How one operation is written in a generated kernel: text for values that live in registers."""

from __future__ import annotations

from lbrx.engine.program import tile_type
from lbrx.tensors.dtype import DTYPES

_NUMBA_NAMES = {
    "f64": "np.float64",
    "f32": "np.float32",
    "i64": "np.int64",
    "i32": "np.int32",
    "i16": "np.int16",
    "i8": "np.int8",
    "u8": "np.uint8",
    "bool": "np.bool_",
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = frozenset({"exp", "log", "sin", "cos", "acos", "tanh", "erf"})
_DIVISIONS = frozenset({"pow", "floordiv", "mod"})
_PACKED_LIMITS = {"i4": (-8, 7), "i2": (-2, 1)}


def register_type(dtype_name: str) -> str:
    """The type in which a value of a dtype is held."""
    return DTYPES[dtype_name].compute_name


def literal_cast(text: str, register: str) -> str:
    return f"({text} != 0)" if register == "bool" else f"{_NUMBA_NAMES[register]}({text})"


def cast_text(text: str, source: str, target: str) -> str:
    """A value of a register type as a value of a dtype, rounded and held in that dtype's register."""
    register = register_type(target)
    is_float = source in ("f32", "f64")
    if target in _PACKED_LIMITS:
        if not is_float:
            return f"wrap_{target}({literal_cast(text, 'i8')})"
        low, high = _PACKED_LIMITS[target]
        return f"np.int8(min(max({source}_to_i8({text}), np.int8({low})), np.int8({high})))"
    if target in ("f16", "bf16", "f8_e4m3", "f8_e5m2"):
        return f"round_{target}({_as_f32_for_rounding(text, source)})"
    if source == register:
        return text
    if target == "bool":
        return f"({text} != 0)"
    if is_float and DTYPES[target].kind in "iu":
        return f"{source}_to_{target}({text})"
    return literal_cast(text, register)


def _as_f32_for_rounding(text: str, source: str) -> str:
    if source == "f32":
        return text
    if source == "f64":
        return f"f64_to_odd_f32({text})"
    if source == "i64":
        return f"f64_to_odd_f32(i64_to_sticky_f64({text}))"
    if source == "i32":
        return f"f64_to_odd_f32(np.float64({text}))"
    return f"np.float32({text})"


def operation_text(op: str, register: str, args: list[str], arg_registers: list[str]) -> str:
    """The text of an element-wise operation whose arguments already have the register type it computes in."""
    operand = arg_registers[-1]
    if op in _INFIX:
        return _infix_text(op, register, args)
    if op in _COMPARISONS:
        return f"({args[0]} {_COMPARISONS[op]} {args[1]})"
    if op == "div":
        return f"({args[0]} / {args[1]})"
    if op == "where":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if op in ("minimum", "maximum"):
        sign = "<=" if op == "minimum" else ">="
        return f"({args[0]} if ({args[0]} {sign} {args[1]}) | ({args[0]} != {args[0]}) else {args[1]})"
    if op == "isnan":
        return f"({args[0]} != {args[0]})"
    if op == "order_key":
        return f"key_of_{tile_type(operand)}({args[0]})"
    if op == "not":
        return f"(not {args[0]})" if register == "bool" else literal_cast(f"~{args[0]}", register)
    if op in _DIVISIONS:
        return _division_text(op, register, args)
    if op in _FUNCTIONS:
        return f"{op}_{operand}({args[0]})"
    return _unary_text(op, register, args[0])


def _infix_text(op: str, register: str, args: list[str]) -> str:
    if register == "bool":
        symbol = {"add": "|", "mul": "&"}.get(op, _INFIX[op])
        return f"(({args[0]} {symbol} {args[1]}) != 0)"
    text = f"{args[0]} {_INFIX[op]} {args[1]}"
    return f"({text})" if register in ("f32", "f64") else literal_cast(text, register)


def _division_text(op: str, register: str, args: list[str]) -> str:
    if register in ("f32", "f64"):
        return f"{op}_{register}({args[0]}, {args[1]})"
    return literal_cast(f"{op}_i64(np.int64({args[0]}), np.int64({args[1]}))", register)


def _unary_text(op: str, register: str, arg: str) -> str:
    is_float = register in ("f32", "f64")
    if op == "neg":
        return f"(-{arg})" if is_float else literal_cast(f"-{arg}", register)
    if op == "abs":
        return arg if register in ("u8", "bool") else literal_cast(f"abs({arg})", register)
    if op == "sign":
        steps = f"({literal_cast(f'{arg} > 0', register)} - {literal_cast(f'{arg} < 0', register)})"
        return f"({arg} if {arg} != {arg} else {steps})" if is_float else literal_cast(steps, register)
    if op == "sqrt":
        return f"np.sqrt({arg})"
    if op == "floor":
        return f"np.floor({arg})"
    if op == "round":
        return f"np.rint({arg})"
    raise AssertionError(f"no text for operation {op}")
