"""The maths library of the emulator against NumPy."""

from __future__ import annotations

import math

import numpy as np

from support.metal_shaders import PREFIX, needs_clang, run

pytestmark = needs_clang
ONE = {
    **{
        name: getattr(np, name) for name in ("sin", "cos", "tan", "exp", "exp2", "log", "log2", "log10", "sqrt", "tanh")
    },
    **{name: getattr(np, name) for name in ("sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint", "sign", "fabs")},
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "abs": np.abs,
    "exp10": lambda x: 10.0**x,
    "rsqrt": lambda x: x**-0.5,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "fract": lambda x: x - np.floor(x),
    "saturate": lambda x: np.clip(x, 0, 1),
    "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x),
    "precise::exp": np.exp,
    "fast::sin": np.sin,
    "metal::cos": np.cos,
}
TWO = {
    "pow(abs(x), y)": lambda x, y: np.abs(x) ** y,
    "fmod(x, y)": np.fmod,
    "atan2(x, y)": np.arctan2,
    "max(x, y)": np.maximum,
    "min(x, y)": np.minimum,
    "copysign(x, y)": np.copysign,
    "step(x, y)": lambda x, y: y >= x,
    "fma(x, y, x)": lambda x, y: x * y + x,
    "clamp(x, -0.5f, y * y)": lambda x, y: np.clip(x, -0.5, y * y),
    "mix(x, y, 0.25f)": lambda x, y: x + (y - x) * 0.25,
    "fdim(x, y)": lambda x, y: np.maximum(x - y, 0),
    "ldexp(x, 3)": lambda x, y: x * 8 + 0 * y,
    "length(float2(x, y))": np.hypot,
    "x / y": np.divide,
    "smoothstep(0.0f, 1.0f, x)": lambda x, y: np.clip(x, 0, 1) ** 2 * (3 - 2 * np.clip(x, 0, 1)) + 0 * y,
}
POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt")


def kernel(expressions: list[str], c_type: str) -> str:
    lines = "".join(f"  out[{k} * n + i] = {expression};\n" for k, expression in enumerate(expressions))
    return PREFIX + (
        f"kernel void values(device const {c_type}* a, device const {c_type}* b, device {c_type}* out, "
        f"uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {{ {c_type} x = a[i], y = b[i];\n{lines}}}\n"
    )


def test_functions_of_one_float() -> None:
    x = np.random.default_rng(1).uniform(-3, 3, 200).astype(np.float32)
    out = np.full((len(ONE), 200), np.nan, np.float32)
    expressions = [f"{name}({'abs(x)' if name in POSITIVE else 'x'})" for name in ONE]
    run(kernel(expressions, "float"), "values", {0: x, 1: x, 2: out}, (2,), (100,))
    for row, (name, reference) in zip(out, ONE.items(), strict=True):
        exact = x.astype(np.float64)
        expected = reference(np.abs(exact) if name in POSITIVE else exact)
        np.testing.assert_allclose(row, expected, rtol=2e-6, atol=1e-6, err_msg=name)


def test_functions_of_two_floats() -> None:
    x, y = np.random.default_rng(2).uniform(-3, 3, (2, 200)).astype(np.float32)
    out = np.full((len(TWO), 200), np.nan, np.float32)
    run(kernel(list(TWO), "float"), "values", {0: x, 1: y, 2: out}, (2,), (100,))
    for row, (name, reference) in zip(out, TWO.items(), strict=True):
        expected = reference(x.astype(np.float64), y.astype(np.float64))
        np.testing.assert_allclose(row, expected, rtol=4e-6, atol=2e-6, err_msg=name)


def test_functions_of_half_are_rounded_once() -> None:
    x = np.random.default_rng(3).uniform(-3, 3, 200).astype(np.float16)
    names = ["exp", "sin", "tanh", "floor"]
    out = np.full((4, 200), np.nan, np.float16)
    run(kernel([f"{name}(x)" for name in names], "half"), "values", {0: x, 1: x, 2: out}, (2,), (100,))
    for row, name in zip(out, names, strict=True):
        expected = getattr(np, name)(x.astype(np.float32)).astype(np.float16)
        assert np.abs(row.view(np.int16) - expected.view(np.int16)).max() <= 1, name


SPECIAL = {
    "max(x, NAN)": 2.0,
    "min(NAN, x)": 2.0,
    "fmax(NAN, NAN)": math.nan,
    "float(isnan(x - x + NAN))": 1.0,
    "float(isinf(INFINITY))": 1.0,
    "float(isfinite(x / 0.0f))": 0.0,
    "float(signbit(-x))": 1.0,
    "nextafter(x, 3.0f)": float(np.nextafter(np.float32(2), np.float32(3))),
    "nextafter(1.0h, 0.0h)": float(np.nextafter(np.float16(1), np.float16(0))),
    "nextafter(0.0h, -1.0h)": float(np.nextafter(np.float16(0), np.float16(-1))),
    "sqrt(-x)": math.nan,
    "log(x - x)": -math.inf,
    "exp(100.0f * x)": math.inf,
    "rint(2.5f)": 2.0,
    "round(2.5f)": 3.0,
    "round(-2.5f)": -3.0,
    "FLT_MAX": float(np.finfo(np.float32).max),
    "float(HALF_MAX)": 65504.0,
    "numeric_limits<float>::lowest()": float(np.finfo(np.float32).min),
    "float(numeric_limits<half>::epsilon())": 2**-10,
    "float(numeric_limits<int>::max())": 2.0**31,
    "M_PI_F": float(np.float32(np.pi)),
    "float(half(70000.0f))": math.inf,
    "float(uchar(300))": 44.0,
    "float(int(-2.7f))": -2.0,
    "1e-45f * 1.0f": float(np.float32(1e-45)),
}


def test_special_values() -> None:
    out = np.zeros((len(SPECIAL), 1), np.float32)
    two = np.full(1, 2, np.float32)
    run(kernel(list(SPECIAL), "float"), "values", {0: two, 1: two, 2: out}, (1,), (1,))
    for found, (name, expected) in zip(out[:, 0].tolist(), SPECIAL.items(), strict=True):
        assert found == expected or (math.isnan(found) and math.isnan(expected)), name


INTEGERS = {
    "popcount(x)": lambda x, _: x.bit_count(),
    "clz(x)": lambda x, _: 32 - x.bit_length(),
    "ctz(x)": lambda x, _: (x & -x).bit_length() - 1 if x else 32,
    "reverse_bits(x)": lambda x, _: int(f"{x:032b}"[::-1], 2),
    "rotate(x, 5u)": lambda x, _: (x << 5 | x >> 27) & 0xFFFFFFFF,
    "mulhi(x, y)": lambda x, y: x * y >> 32,
    "absdiff(x, y)": lambda x, y: abs(x - y),
    "addsat(x, y)": lambda x, y: min(x + y, 0xFFFFFFFF),
    "subsat(x, y)": lambda x, y: max(x - y, 0),
    "hadd(x, y)": lambda x, y: (x + y) // 2,
    "extract_bits(x, 4, 9)": lambda x, _: x >> 4 & 0x1FF,
    "insert_bits(x, y, 8, 5)": lambda x, y: (x & ~(0x1F << 8)) | (y & 0x1F) << 8,
    "max(x, y)": max,
    "min3(x, y, 77u)": lambda x, y: min(x, y, 77),
    "clamp(x, 100u, 200u)": lambda x, _: min(max(x, 100), 200),
    "x * y": lambda x, y: x * y & 0xFFFFFFFF,
    "uint(int(x) >> 31)": lambda x, _: 0xFFFFFFFF if x >> 31 else 0,
    "uint(mulhi(int(x), -2))": lambda x, _: ((x - (x >> 31 << 32)) * -2 >> 32) & 0xFFFFFFFF,
    "as_type<uint>(char4(x, y, x, y))": lambda x, y: (x & 255) * 0x10001 | (y & 255) * 0x1000100,
}


def test_functions_of_integers() -> None:
    values = [0, 1, 2, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xDEADBEEF]
    x = np.array([a for a in values for _ in values], np.uint32)
    y = np.array([b for _ in values for b in values], np.uint32)
    out = np.zeros((len(INTEGERS), 100), np.uint32)
    run(kernel(list(INTEGERS), "uint"), "values", {0: x, 1: y, 2: out}, (2,), (50,))
    for row, (name, reference) in zip(out, INTEGERS.items(), strict=True):
        expected = [reference(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        assert row.tolist() == expected, name
