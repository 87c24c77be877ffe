"""What kernels are written with. Vectors have the width that the code says, so results are the same everywhere.

- instruction, emit: how a function is declared that is written as LLVM code; the pieces that such functions share
- vectors: the vector type, its operators, loads, stores and conversions
- f32, i16: functions of f32 lanes; products and layouts of i16 lanes
- byte_codes, coded_dot: 64 bytes of codes in registers; their dot products with i16 numbers
- shuffles: lanes in another order
- lanes: blocks side by side, one in each lane
- scalars, maths: instructions on single numbers; exp, log and others that LLVM can vectorise
- elements: loads and stores of one element of every dtype
- memory: stack, tables, prefetches, stores past the caches
- calls, processor: calls of compiled code by address; what the processor has
"""
