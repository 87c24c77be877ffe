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

inline float lesser(float a, float b) { return is_nan_bits(a) || lt_f32(a, b) ? a : b; }
inline float greater(float a, float b) { return is_nan_bits(a) || gt_f32(a, b) ? a : b; }
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
