// Weights as files store them: rows of plain elements, of GGUF blocks, or of MLX codes with scales and biases apart.
// Eight values at a time are q scale + offset.
#pragma once
#include "elements.h"

constant int weight_coding [[function_constant(0)]];
constant uint weight_group [[function_constant(1)]];  // values that share a scale (MLX only)
constant int weight_numbers [[function_constant(2)]];  // type of MLX's scales and biases
constant bool weight_has_scales [[function_constant(3)]];  // apart from the codes: MLX only
constant bool weight_is_aligned [[function_constant(4)]];  // rows of plain elements begin at multiples of four

constant constexpr int Q4_0 = 3;
constant constexpr int Q8_0 = 4;
constant constexpr int Q4_K = 5;
constant constexpr int Q6_K = 6;
constant constexpr int AFFINE_4 = 7;
constant constexpr int AFFINE_8 = 8;

struct Eight {
  float4 low, high;  // codes of values 0-3 and 4-7
  float scale, offset;
};

inline bool is_plain() { return weight_coding <= BF16; }
inline bool has_offset() { return weight_coding == Q4_K || weight_coding == AFFINE_4 || weight_coding == AFFINE_8; }

inline ulong row_bytes(uint columns) {
  if (weight_coding == F32) return 4ul * columns;
  if (weight_coding == F16 || weight_coding == BF16) return 2ul * columns;
  if (weight_coding == Q4_0) return 18ul * (columns / 32);
  if (weight_coding == Q8_0) return 34ul * (columns / 32);
  if (weight_coding == Q4_K) return 144ul * (columns / 256);
  if (weight_coding == Q6_K) return 210ul * (columns / 256);
  return weight_coding == AFFINE_4 ? columns / 2 : columns;
}

// Blocks have an even number of bytes, so pairs of bytes are aligned and larger words may not be.
inline uchar4 four_bytes(device const uchar* bytes) {
  device const ushort* pairs = (device const ushort*)bytes;
  return uchar4(pairs[0] & 255, pairs[0] >> 8, pairs[1] & 255, pairs[1] >> 8);
}

inline float half_at(device const uchar* bytes) { return float(*(device const half*)bytes); }

inline Eight nibbles(device const uchar* bytes, uchar shift) {
  uchar4 first = four_bytes(bytes), second = four_bytes(bytes + 4);
  Eight eight;
  eight.low = float4((first >> uchar4(shift)) & uchar4(15));
  eight.high = float4((second >> uchar4(shift)) & uchar4(15));
  eight.scale = 1.0f;
  eight.offset = 0.0f;
  return eight;
}

inline Eight eight_q4_0(device const uchar* block, uint at) {
  Eight eight = nibbles(block + 2 + at % 16, at / 16 * 4);  // byte j: elements j and j + 16
  eight.low -= 8.0f;
  eight.high -= 8.0f;
  eight.scale = half_at(block);
  return eight;
}

inline Eight eight_q8_0(device const uchar* block, uint at) {
  Eight eight;
  eight.low = float4(as_type<char4>(four_bytes(block + 2 + at)));
  eight.high = float4(as_type<char4>(four_bytes(block + 6 + at)));
  eight.scale = half_at(block);
  eight.offset = 0.0f;
  return eight;
}

// f16 d and dmin, 12 bytes of scales and minima of 6 bits, 128 bytes of codes: byte 32 p + l holds element l of
// sub-blocks 2 p and 2 p + 1.
inline Eight eight_q4_k(device const uchar* block, uint at) {
  uint part = at / 32;
  Eight eight = nibbles(block + 16 + part / 2 * 32 + at % 32, part % 2 * 4);
  device const uchar* packed = block + 4;
  uint scale, low;
  if (part < 4) {
    scale = packed[part] & 63;
    low = packed[part + 4] & 63;
  } else {
    scale = (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4);
    low = (packed[part + 4] >> 4) | (packed[part] >> 6 << 4);
  }
  eight.scale = half_at(block) * float(scale);
  eight.offset = -(half_at(block + 2) * float(low));
  return eight;
}

// 128 bytes of low halves, 64 of high bits, 16 scales, f16 d. In either half of the block, byte l of 64 low halves has
// elements l and l + 64, byte l of 32 high bits has elements l, l + 32, l + 64 and l + 96.
inline Eight eight_q6_k(device const uchar* block, uint at) {
  uint side = at / 128, within = at % 128;
  Eight eight = nibbles(block + 64 * side + within % 64, within / 64 * 4);
  device const uchar* bits = block + 128 + 32 * side + within % 32;
  uchar shift = within / 32 * 2;
  eight.low += float4((four_bytes(bits) >> uchar4(shift)) & uchar4(3)) * 16.0f - 32.0f;
  eight.high += float4((four_bytes(bits + 4) >> uchar4(shift)) & uchar4(3)) * 16.0f - 32.0f;
  eight.scale = half_at(block + 208) * float(as_type<char>(block[192 + at / 16]));
  return eight;
}

// MLX: a row is a stream of codes, lowest bits first.
inline Eight eight_affine(device const uchar* row, device const uchar* scales, device const uchar* biases,
                          ulong first_group, uint at) {
  Eight eight;
  if (weight_coding == AFFINE_4) {
    uchar4 bytes = as_type<uchar4>(*(device const uint*)(row + at / 2));
    uchar4 even = bytes & uchar4(15), odd = bytes >> uchar4(4);
    eight.low = float4(even.x, odd.x, even.y, odd.y);
    eight.high = float4(even.z, odd.z, even.w, odd.w);
  } else {
    eight.low = float4(as_type<uchar4>(*(device const uint*)(row + at)));
    eight.high = float4(as_type<uchar4>(*(device const uint*)(row + at + 4)));
  }
  eight.scale = load_element(scales, first_group + at / weight_group, weight_numbers);
  eight.offset = load_element(biases, first_group + at / weight_group, weight_numbers);
  return eight;
}

// Values `at` to `at` + 7 of a row; `at` is a multiple of 8. What lies beyond the end of a row of plain elements is 0.
inline Eight load_eight(device const uchar* weight, device const uchar* scales, device const uchar* biases, uint row,
                        uint columns, uint at) {
  device const uchar* start = weight + row * row_bytes(columns);
  if (weight_coding == Q4_0) return eight_q4_0(start + at / 32 * 18, at % 32);
  if (weight_coding == Q8_0) return eight_q8_0(start + at / 32 * 34, at % 32);
  if (weight_coding == Q4_K) return eight_q4_k(start + at / 256 * 144, at % 256);
  if (weight_coding == Q6_K) return eight_q6_k(start + at / 256 * 210, at % 256);
  if (!is_plain()) return eight_affine(start, scales, biases, ulong(row) * (columns / weight_group), at);
  Eight eight;
  eight.low = load_row_quad(start, 0, at, columns, weight_coding, weight_is_aligned);
  eight.high = load_row_quad(start, 0, at + 4, columns, weight_coding, weight_is_aligned);
  eight.scale = 1.0f;
  eight.offset = 0.0f;
  return eight;
}

// The values themselves, rounded as the CPU rounds them.
inline void decode(Eight eight, thread float4& low, thread float4& high) {
  low = is_plain() ? eight.low : eight.low * eight.scale;
  high = is_plain() ? eight.high : eight.high * eight.scale;
  if (has_offset()) {
    low += eight.offset;
    high += eight.offset;
  }
}
