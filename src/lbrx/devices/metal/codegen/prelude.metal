// What generated passes are made of: elements in memory to registers and back, and arithmetic with the CPU's results.
//
// Nothing is contracted or reordered, one operation a statement. Where a GPU may flush subnormal numbers, bits are
// looked at as integers instead. There is no double on a GPU: sums of floats keep a float64 in a ulong.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

// -- bits -------------------------------------------------------------------------------------------------------------

inline uint magnitude_bits(float x) { return as_type<uint>(x) & 0x7fffffffu; }
inline bool is_nan_bits(float x) { return magnitude_bits(x) > 0x7f800000u; }
inline bool is_true(float x) { return magnitude_bits(x) != 0u; }
inline float negated(float x) { return as_type<float>(as_type<uint>(x) ^ 0x80000000u); }

// -- elements in memory <-> registers --------------------------------------------------------------------------------

inline float decode_f32(float bits) { return bits; }
inline float encode_f32(float x) { return x; }

inline float decode_f16(ushort bits) { return float(as_type<half>(bits)); }
inline ushort encode_f16(float x) { return as_type<ushort>(half(x)); }

inline float decode_bf16(ushort bits) { return as_type<float>(uint(bits) << 16); }
inline ushort encode_bf16(float x) {
  const uint bits = as_type<uint>(x);
  const uint high = bits >> 16;
  const uint rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
  return ushort(is_nan_bits(x) ? high | 0x40u : rounded);
}

// -- eight-bit floats --------------------------------------------------------------------------------------------------

inline float decode_f8_e4m3(uchar code) {
  const uint magnitude = code & 0x7fu;
  const uint sign = uint(code & 0x80u) << 24;
  const uint subnormal = as_type<uint>(float(magnitude) * 0x1p-9f);
  const uint normal = (magnitude << 20) + (120u << 23);
  const uint bits = magnitude < 8u ? subnormal : normal;
  return as_type<float>(magnitude == 0x7fu ? 0x7fc00000u : bits | sign);
}
inline float decode_f8_e5m2(uchar code) { return decode_f16(ushort(ushort(code) << 8)); }

// Round a float to an 8-bit float; codes above `overflow` become it, NaN becomes `nan`.
inline uchar encode_small_float(float x, uint mantissa_bits, uint bias, uint overflow, uint nan) {
  const uint shift = 23u - mantissa_bits;
  const uint bits = as_type<uint>(x);
  const uint magnitude = bits & 0x7fffffffu;
  const uint sign = (bits >> 24) & 0x80u;
  const uint odd = (magnitude >> shift) & 1u;
  const uint normal = ((magnitude + odd + ((1u << (shift - 1u)) - 1u)) >> shift) - ((127u - bias) << mantissa_bits);
  // Adding a power of two whose last bit is the smallest subnormal makes the adder round.
  const uint magic = (127u + 1u - bias - mantissa_bits + 23u) << 23;
  const float pushed = as_type<float>(magnitude) + as_type<float>(magic);
  const uint subnormal = as_type<uint>(pushed) - magic;
  const uint code = magnitude >= ((128u - bias) << 23) ? normal : subnormal;
  return uchar((is_nan_bits(x) ? nan : min(code, overflow)) | sign);
}
inline uchar encode_f8_e4m3(float x) { return encode_small_float(x, 3u, 7u, 0x7fu, 0x7fu); }
inline uchar encode_f8_e5m2(float x) { return encode_small_float(x, 2u, 15u, 0x7cu, 0x7eu); }

// -- integers ----------------------------------------------------------------------------------------------------------

inline long decode_i64(long x) { return x; }
inline long encode_i64(long x) { return x; }
inline int decode_i32(int x) { return x; }
inline int encode_i32(int x) { return x; }
inline short decode_i16(short x) { return x; }
inline short encode_i16(short x) { return x; }
inline char decode_i8(char x) { return x; }
inline char encode_i8(char x) { return x; }
inline uchar decode_u8(uchar x) { return x; }
inline uchar encode_u8(uchar x) { return x; }
inline bool decode_bool(uchar x) { return x != 0; }
inline uchar encode_bool(bool x) { return x ? 1 : 0; }

// The first of several packed elements lies in the lowest bits of a byte.
inline char decode_i4(uchar byte, uint index) { return char(int(uint(byte) << (28u - 4u * (index & 1u))) >> 28); }
inline char decode_i2(uchar byte, uint index) { return char(int(uint(byte) << (30u - 2u * (index & 3u))) >> 30); }

// -- conversions between registers -----------------------------------------------------------------------------------

// Floats to integers truncate, clip at the ends, and NaN becomes 0.
inline long f32_to_i64(float x) {
  if (is_nan_bits(x)) return 0;
  return x >= 0x1p63f ? 0x7fffffffffffffffl : x < -0x1p63f ? -0x7fffffffffffffffl - 1l : long(x);
}
inline int f32_to_int(float x, int low, int high) {
  if (is_nan_bits(x)) return 0;
  return x >= float(high) ? high : x <= float(low) ? low : int(x);
}
inline int f32_to_i32(float x) { return f32_to_int(x, -2147483647 - 1, 2147483647); }
inline short f32_to_i16(float x) { return short(f32_to_int(x, -32768, 32767)); }
inline char f32_to_i8(float x) { return char(f32_to_int(x, -128, 127)); }
inline uchar f32_to_u8(float x) { return uchar(f32_to_int(x, 0, 255)); }
inline char f32_to_i4(float x) { return char(f32_to_int(x, -8, 7)); }
inline char f32_to_i2(float x) { return char(f32_to_int(x, -2, 1)); }
inline char wrap_i4(char x) { return char(int(uint(x) << 28) >> 28); }
inline char wrap_i2(char x) { return char(int(uint(x) << 30) >> 30); }

// An integer as a float rounded to odd, so that a second rounding to a half type is the correct one.
inline float odd_f32(long x) {
  const ulong magnitude = x < 0 ? 0ul - ulong(x) : ulong(x);
  const int excess = max(40 - int(clz(magnitude)), 0);
  const ulong kept = magnitude >> excess;
  const uint mantissa = uint(kept) | ((kept << excess) != magnitude ? 1u : 0u);
  const float scaled = float(mantissa) * as_type<float>(uint(127 + excess) << 23);
  return x < 0 ? -scaled : scaled;
}

// -- order -------------------------------------------------------------------------------------------------------------

// Keys that sort like the values: NaN above everything, both zeros alike.
inline int key_of_f32(float x) {
  const uint bits = as_type<uint>(x);
  const int magnitude = int(bits & 0x7fffffffu);
  const int key = (bits >> 31) != 0u ? (magnitude == 0 ? 0 : int(bits ^ 0x7fffffffu)) : magnitude;
  return is_nan_bits(x) ? 0x7fffffff : key;
}
inline int key_of_i32(int x) { return x; }
inline long key_of_i64(long x) { return x; }

inline float sign_f32(float x) {
  const float one = (as_type<uint>(x) >> 31) != 0u ? -1.0f : 1.0f;
  return is_nan_bits(x) ? x : is_true(x) ? one : 0.0f;
}

// Comparisons of bits: subnormal numbers are not zero. A number that is not NaN sorts like its signed magnitude.
inline bool are_numbers(float x, float y) { return !is_nan_bits(x) && !is_nan_bits(y); }
inline int signed_bits(float x) {
  const uint bits = as_type<uint>(x);
  return int(bits >> 31 != 0u ? 0x80000000u - bits : bits);
}
inline bool eq_f32(float x, float y) { return are_numbers(x, y) && signed_bits(x) == signed_bits(y); }
inline bool ne_f32(float x, float y) { return !eq_f32(x, y); }
inline bool lt_f32(float x, float y) { return are_numbers(x, y) && signed_bits(x) < signed_bits(y); }
inline bool le_f32(float x, float y) { return are_numbers(x, y) && signed_bits(x) <= signed_bits(y); }
inline bool gt_f32(float x, float y) { return lt_f32(y, x); }
inline bool ge_f32(float x, float y) { return le_f32(y, x); }
inline float minimum_f32(float x, float y) { return is_nan_bits(x) || le_f32(x, y) ? x : y; }
inline float maximum_f32(float x, float y) { return is_nan_bits(x) || ge_f32(x, y) ? x : y; }
