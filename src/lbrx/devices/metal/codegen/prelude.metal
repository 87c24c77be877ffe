// What generated passes are made of: elements in memory to registers and back, and arithmetic with the CPU's results.
//
// Nothing is contracted or reordered, one operation a statement. Where a GPU may flush subnormal numbers, bits are
// looked at as integers instead. There is no double on a GPU: sums of floats keep a float64 in a ulong.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

// -- bits -------------------------------------------------------------------------------------------------------------

inline bool is_nan_bits(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }

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

inline float sign_f32(float x) { return x != x ? x : float(x > 0.0f) - float(x < 0.0f); }

// -- elementary functions: the same polynomials, in the same order, as on the CPU -------------------------------------

constant float LN2_HIGH = 0.693145751953125f, LN2_LOW = 1.4286068203094172e-06f;

inline float power_of_two(int exponent) { return as_type<float>((exponent + 127) << 23); }

inline float exp_f32(float x) {
  const float bounded_below = x < -104.0f ? -104.0f : x;
  const float bounded = bounded_below > 89.0f ? 89.0f : bounded_below;
  const float shifted = fma(bounded, 1.4426950408889634f, 12582912.0f);
  const int exponent = int(as_type<uint>(shifted) - 0x4b400000u);
  const float whole = shifted - 12582912.0f;
  const float r = fma(whole, -LN2_LOW, fma(whole, -LN2_HIGH, bounded));
  const float square = r * r;
  const float high = fma(0.0013814596459269524f, r, 0.0083687175065279f);
  const float tail = fma(high, square, fma(0.04166838899254799f, r, 0.1666652113199234f));
  const float mantissa = fma(fma(tail, r, 0.4999999403953552f), square, r) + 1.0f;
  const int first = exponent >> 1;
  const float half_way = mantissa * power_of_two(first);
  return half_way * power_of_two(exponent - first);
}

inline float log_f32(float x) {
  const bool is_subnormal = x < 0x1p-126f;
  const float normal = is_subnormal ? x * 0x1p23f : x;
  const int above_sqrt_half = int(as_type<uint>(normal) - 0x3f3504f3u);
  const int exponent = (above_sqrt_half >> 23) - (is_subnormal ? 23 : 0);
  const float f = as_type<float>((uint(above_sqrt_half) & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float square = f * f;
  const float low = fma(fma(-0.1666799634695053f, f, 0.2000211924314499f), square,
                        fma(-0.25000008940696716f, f, 0.3333331346511841f));
  const float high = fma(fma(-0.11675640940666199f, f, 0.11888174712657928f), square,
                         fma(-0.12405591458082199f, f, 0.14219550788402557f));
  const float fourth = square * square;
  const float tail = fma(fma(0.06746601313352585f, fourth, high), fourth, low);
  const float scale = float(exponent);
  const float small = fma(-0.5f, square, fma(tail, square * f, scale * LN2_LOW));
  const float finite = fma(scale, LN2_HIGH, f + small);
  const float bounded = x < INFINITY ? finite : x;
  const float positive = x > 0.0f ? bounded : -INFINITY;
  return x >= 0.0f ? positive : NAN;
}

inline float acos_f32(float x) {
  const float magnitude = as_type<float>(as_type<uint>(x) & 0x7fffffffu);
  const bool is_large = magnitude > 0.5f;
  const float square = is_large ? (1.0f - magnitude) * 0.5f : x * x;
  const float s = is_large ? precise::sqrt(square) : magnitude;
  float tail = 0.037565186619758606f * square + 0.014402614906430244f;
  tail = tail * square + 0.03181760758161545f;
  tail = tail * square + 0.04451572149991989f;
  tail = tail * square + 0.07500510662794113f;
  tail = tail * square + 0.16666659712791443f;
  const float arcsine = tail * (square * s) + s;
  const float twice = 2.0f * arcsine;
  const float large = x < 0.0f ? 3.1415927410125732f - (twice - -8.742277657347586e-08f) : twice;
  const float small = 1.5707963705062866f - ((x < 0.0f ? -arcsine : arcsine) - -4.371138828673793e-08f);
  return is_large ? large : small;
}

inline float tanh_f32(float x) {
  const float magnitude = as_type<float>(as_type<uint>(x) & 0x7fffffffu);
  const float square = x * x;
  float tail = -0.005717044696211815f * square + 0.020650586113333702f;
  tail = tail * square + -0.05374349653720856f;
  tail = tail * square + 0.13331490755081177f;
  tail = tail * square + -0.3333328366279602f;
  const float small = tail * (square * magnitude) + magnitude;
  const float large = 1.0f - 2.0f / (exp_f32(2.0f * magnitude) + 1.0f);
  const float value = magnitude <= 0.625f ? small : large;
  return as_type<float>(as_type<uint>(value) | (as_type<uint>(x) & 0x80000000u));
}

inline float erf_f32(float x) {
  const float magnitude = as_type<float>(as_type<uint>(x) & 0x7fffffffu);
  const float square = x * x;
  float tail = 7.889122935011983e-05f * square + -0.0008020842215046287f;
  tail = tail * square + 0.005189535673707724f;
  tail = tail * square + -0.026854444295167923f;
  tail = tail * square + 0.11283600330352783f;
  tail = tail * square + -0.3761262595653534f;
  tail = tail * square + 0.12837916612625122f;
  const float small = tail * magnitude + magnitude;
  const float a = magnitude > 4.0f ? 4.0f : magnitude;
  float logarithm = -2.1686762920580804e-05f * a + 0.00044133528717793524f;
  logarithm = logarithm * a + -0.004204556345939636f;
  logarithm = logarithm * a + 0.025208240374922752f;
  logarithm = logarithm * a + -0.1084185540676117f;
  logarithm = logarithm * a + -0.6332198977470398f;
  logarithm = logarithm * a + -1.1295783519744873f;
  logarithm = logarithm * a + 0.0001880370546132326f;
  const float large = 1.0f - exp_f32(logarithm);
  const float value = magnitude <= 1.0f ? small : large;
  return as_type<float>(as_type<uint>(value) | (as_type<uint>(x) & 0x80000000u));
}

// -- random numbers: a function of two keys and an index ---------------------------------------------------------------

inline uint random_round(uint x, uint shift, uint multiplier, uint key) {
  return (x ^ (x >> shift)) * multiplier + key;
}
inline uint random_scramble(uint x) {
  const uint once = random_round(x, 16u, 0x7feb352du, 0u);
  const uint twice = random_round(once, 15u, 0x846ca68bu, 0u);
  return twice ^ (twice >> 16);
}
inline uint random_word(uint key0, uint key1, long index) {
  const uint second_key = key1 + 0xb7e15162u;
  const uint third_key = random_scramble(key0 + random_scramble(second_key));
  const uint block_key = second_key + uint(index >> 32) * 0x9e3779b9u;
  const uint first = random_round(uint(index) ^ key0, 16u, 0x7feb352du, block_key);
  const uint halfway = random_round(first, 15u, 0x846ca68bu, third_key);
  const uint third = random_round(halfway, 17u, 0xed5ad4bbu, 0u);
  const uint last = random_round(third, 11u, 0xac4c1b51u, 0u);
  return (last ^ (last >> 15)) + halfway;
}
inline float uniform_f32(uint key0, uint key1, long index) {
  return float(int(random_word(key0, key1, index) >> 8)) * 0x1p-24f;
}

inline float upper_quantile(float tail) {
  const float logarithm = -log_f32(4.0f * tail * (1.0f - tail));
  const float w = logarithm > 0.0f ? logarithm : 0.0f;
  const float a = w - 3.0f;
  const float a2 = a * a;
  const float near_low = (-0.0011851962190121412f * a + -0.008116877637803555f) * a2 +
                         (0.34171873331069946f * a + 2.2960355281829834f);
  const float near_high = (4.76260936466133e-07f * a + -2.7826358746096957e-06f) * a2 +
                          (-1.6906114979065023e-05f * a + 0.0002771338913589716f);
  const float near = near_high * (a2 * a2) + near_low;
  const float b = precise::sqrt(w) - 3.25f;
  const float b2 = b * b;
  const float far_low = (-0.005257077515125275f * b + 0.0075780428014695644f) * b2 +
                        (1.4216465950012207f * b + 4.361273288726807f);
  const float far_high = (-0.0002709503751248121f * b + 0.0012561162002384663f) * b2 +
                         (-0.002555048791691661f * b + 0.0036059441044926643f);
  const float far = far_high * (b2 * b2) + far_low;
  return (1.0f - 2.0f * tail) * (w <= 6.0f ? near : far);
}
inline float normal_f32(uint key0, uint key1, long index) {
  const uint word = random_word(key0, key1, index);
  const float magnitude = float(int(word & 0x7fffffffu));
  const float z = upper_quantile((magnitude + 0.5f) * 0x1p-32f);
  return word > 0x7fffffffu ? z : -z;
}

// -- float64 as bits in a ulong: what sums of floats need ---------------------------------------------------------------
//
// Only numbers that begin as float32, or as a product of two, are ever added: none of them is subnormal in float64.

constant ulong F64_INFINITY = 0x7ff0000000000000ul, F64_NAN = 0x7ff8000000000000ul, F64_SIGN = 0x8000000000000000ul;

// A finite float32 that is not zero as a mantissa of 24 bits and the exponent of its last bit.
inline uint f32_mantissa(uint magnitude, thread int& exponent) {
  const uint fraction = magnitude & 0x7fffffu;
  const int biased = int(magnitude >> 23);
  const int shift = biased == 0 ? int(clz(fraction)) - 8 : 0;
  exponent = (biased == 0 ? 1 - shift : biased) - 150;
  return biased == 0 ? fraction << shift : fraction | 0x800000u;
}

inline ulong f64_of_f32(float x) {
  const uint bits = as_type<uint>(x);
  const uint magnitude = bits & 0x7fffffffu;
  const ulong sign = ulong(bits >> 31) << 63;
  if (magnitude == 0u) return sign;
  if (magnitude >= 0x7f800000u) return sign | F64_INFINITY | (ulong(magnitude & 0x7fffffu) << 29);
  int exponent;
  const ulong mantissa = f32_mantissa(magnitude, exponent);
  return sign | ((ulong(exponent + 1023 + 23) << 52) + ((mantissa << 29) & 0xffffffffffffful));
}

inline ulong f64_product(float x, float y) {
  const uint x_bits = as_type<uint>(x), y_bits = as_type<uint>(y);
  const uint x_magnitude = x_bits & 0x7fffffffu, y_magnitude = y_bits & 0x7fffffffu;
  const ulong sign = ulong((x_bits ^ y_bits) >> 31) << 63;
  if (max(x_magnitude, y_magnitude) >= 0x7f800000u) {
    const bool is_nan = max(x_magnitude, y_magnitude) > 0x7f800000u || min(x_magnitude, y_magnitude) == 0u;
    return is_nan ? F64_NAN : sign | F64_INFINITY;
  }
  if (min(x_magnitude, y_magnitude) == 0u) return sign;
  int x_exponent, y_exponent;
  const ulong mantissa = ulong(f32_mantissa(x_magnitude, x_exponent)) * ulong(f32_mantissa(y_magnitude, y_exponent));
  const int lead = 63 - int(clz(mantissa));
  const ulong fraction = (mantissa << (52 - lead)) & 0xffffffffffffful;
  return sign | ((ulong(x_exponent + y_exponent + lead + 1023) << 52) + fraction);
}

inline ulong f64_add(ulong x, ulong y) {
  const bool is_ordered = (x << 1) >= (y << 1);
  const ulong a = is_ordered ? x : y;
  const ulong b = is_ordered ? y : x;
  const int a_exponent = int(a >> 52) & 0x7ff;
  const int b_exponent = int(b >> 52) & 0x7ff;
  const bool subtracts = ((a ^ b) >> 63) != 0ul;
  if (a_exponent == 0x7ff) {
    const bool is_nan = (a << 1) > (F64_INFINITY << 1) || (b_exponent == 0x7ff && subtracts);
    return is_nan ? F64_NAN : a;
  }
  if (b_exponent == 0) return a_exponent == 0 ? a & b : a;
  const int distance = a_exponent - b_exponent;
  const ulong larger = ((a & 0xffffffffffffful) | 0x10000000000000ul) << 10;
  const ulong smaller = ((b & 0xffffffffffffful) | 0x10000000000000ul) << 10;
  const int shift = min(distance, 63);
  const ulong shifted = smaller >> shift;
  const ulong aligned = shifted | ((shifted << shift) != smaller ? 1ul : 0ul);
  const ulong total = subtracts ? larger - aligned : larger + aligned;
  if (total == 0ul) return 0ul;
  const int lead = int(clz(total));
  const ulong normal = total << lead;
  const ulong rest = normal & 0x7fful;
  const ulong mantissa = normal >> 11;
  const ulong rounded = mantissa + ((rest > 0x400ul || (rest == 0x400ul && (mantissa & 1ul) != 0ul)) ? 1ul : 0ul);
  return (a & F64_SIGN) | ((ulong(a_exponent + 1 - lead) << 52) + (rounded - 0x10000000000000ul));
}

// A float64 that is not subnormal, rounded to float32.
inline float f32_of_f64(ulong bits) {
  const uint sign = uint(bits >> 63) << 31;
  const ulong magnitude = bits & ~F64_SIGN;
  if (magnitude >= F64_INFINITY) return as_type<float>(magnitude > F64_INFINITY ? 0x7fc00000u : sign | 0x7f800000u);
  if (magnitude == 0ul) return as_type<float>(sign);
  const int exponent = int(magnitude >> 52) - 1023;
  if (exponent > 127) return as_type<float>(sign | 0x7f800000u);
  if (exponent < -150) return as_type<float>(sign);
  const ulong mantissa = (magnitude & 0xffffffffffffful) | 0x10000000000000ul;
  const int dropped = 29 + max(-126 - exponent, 0);  // bits that a float32 of that size has no room for
  const ulong kept = mantissa >> dropped;
  const ulong rest = mantissa - (kept << dropped);
  const ulong half_step = 1ul << (dropped - 1);
  const uint rounded = uint(kept) + ((rest > half_step || (rest == half_step && (kept & 1ul) != 0ul)) ? 1u : 0u);
  const uint base = exponent < -126 ? 0u : uint(exponent + 126) << 23;  // the leading bit adds one to the exponent
  return as_type<float>(sign | (base + rounded));
}

// -- reductions: tiles of 1024 elements, sixteen lanes each, as on the CPU ---------------------------------------------

inline float lesser(float a, float b) { return is_nan_bits(a) ? a : is_nan_bits(b) ? b : a < b ? a : b; }
inline float greater(float a, float b) { return is_nan_bits(a) ? a : is_nan_bits(b) ? b : a > b ? a : b; }
inline int lesser(int a, int b) { return a < b ? a : b; }
inline int greater(int a, int b) { return a > b ? a : b; }
inline long lesser(long a, long b) { return a < b ? a : b; }
inline long greater(long a, long b) { return a > b ? a : b; }

inline float value_of_key(int key) { return as_type<float>(key < 0 ? key ^ 0x7fffffff : key); }

inline ulong shuffled(ulong x, ushort lane) {
  const uint2 halves = simd_shuffle(uint2(uint(x), uint(x >> 32)), lane);
  return (ulong(halves.y) << 32) | ulong(halves.x);
}
inline long shuffled(long x, ushort lane) { return long(shuffled(ulong(x), lane)); }
inline int shuffled(int x, ushort lane) { return simd_shuffle(x, lane); }
inline float shuffled(float x, ushort lane) { return simd_shuffle(x, lane); }
