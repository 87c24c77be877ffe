"""Compare codecs by size and error on one tensor of a model: python quantization_error.py MODEL TENSOR"""

from __future__ import annotations

import sys

import lbrx


def main(model: str, name: str) -> None:
    weight = lbrx.open(model)[name].to("f32")
    for codec in ("q8_0", "q5_0", "q4_0"):
        blocks = weight.quantize(codec).realize()
        error, length = lbrx.evaluate((blocks.dequantize() - weight).norm(), weight.norm())
        print(f"{codec}: error {float(error) / float(length):.2%}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
