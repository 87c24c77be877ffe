// Elements of f32, f16 and bf16, told apart by function constants: after specialisation no branch is left.
#pragma once
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

// Arrays of registers need loops without an index; their ends are known once function constants are.
#define UNROLL _Pragma("clang loop unroll(full)")

constant constexpr int F32 = 0;
constant constexpr int F16 = 1;
constant constexpr int BF16 = 2;

// bf16 in memory is handled as bits: the type bfloat exists since macOS 14 only.
inline float float_of_bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }

inline ushort bf16_of_float(float value) {
  uint bits = as_type<uint>(value);
  bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return ushort(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float load_element(device const uchar* values, ulong index, int type) {
  if (type == F32) return ((device const float*)values)[index];
  if (type == F16) return float(((device const half*)values)[index]);
  return float_of_bf16(((device const ushort*)values)[index]);
}

// Four elements at an index that is a multiple of four, in a buffer aligned to 16 bytes.
inline float4 load_quad(device const uchar* values, ulong index, int type) {
  if (type == F32) return ((device const float4*)values)[index / 4];
  if (type == F16) return float4(((device const half4*)values)[index / 4]);
  return as_type<float4>(uint4(((device const ushort4*)values)[index / 4]) << 16);
}

// Four elements of which only the first `left` are there; the others are 0.
inline float4 load_quad_within(device const uchar* values, ulong index, uint left, int type) {
  float4 quad = 0.0f;
  for (uint i = 0; i < 4; i++) {
    if (i < left) quad[i] = load_element(values, index + i, type);
  }
  return quad;
}

inline void store_element(device uchar* values, ulong index, int type, float value) {
  if (type == F32) ((device float*)values)[index] = value;
  else if (type == F16) ((device half*)values)[index] = half(value);
  else ((device ushort*)values)[index] = bf16_of_float(value);
}

// Four elements of a row of `end`, from `column` on. If rows are aligned, a quad is inside as a whole or not at all.
inline float4 load_row_quad(device const uchar* values, ulong row_start, uint column, uint end, int type,
                            bool is_aligned) {
  if (!is_aligned) return load_quad_within(values, row_start + column, column < end ? end - column : 0, type);
  return column < end ? load_quad(values, row_start + column, type) : float4(0.0f);
}
