// -- elementary functions: the same polynomials, in the same order, as on the CPU -------------------------------------

constant float LN2_HIGH = 0.693145751953125f, LN2_LOW = 1.4286068203094172e-06f;

// A positive normal number times a power of two, rounded once if the result is subnormal.
inline float scaled(float x, int exponent) {
  const uint bits = as_type<uint>(x);
  const int biased = int(bits >> 23) + exponent;
  if (biased >= 255) return INFINITY;
  if (biased > 0) return as_type<float>(bits + (uint(exponent) << 23));
  const uint mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int shift = min(1 - biased, 31);
  const uint kept = mantissa >> shift;
  const uint rest = mantissa - (kept << shift);
  const uint half_step = 1u << (shift - 1);
  return as_type<float>(kept + ((rest > half_step || (rest == half_step && (kept & 1u) != 0u)) ? 1u : 0u));
}

// The square root of a subnormal number is that of an integer, scaled.
inline float sqrt_f32(float x) {
  const uint magnitude = magnitude_bits(x);
  if (magnitude == 0u || magnitude >= 0x00800000u) return precise::sqrt(x);
  return magnitude == as_type<uint>(x) ? precise::sqrt(float(magnitude) * 0.5f) * 0x1p-74f : NAN;
}

inline float floor_f32(float x) {
  const uint bits = as_type<uint>(x);
  return bits > 0x80000000u && bits < 0x80800000u ? -1.0f : floor(x);
}

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
  return is_nan_bits(x) ? x : scaled(mantissa, exponent);
}

inline float log_f32(float x) {
  const uint magnitude = magnitude_bits(x);
  const bool is_subnormal = magnitude < 0x00800000u;
  const float normal = is_subnormal ? float(magnitude) * 0x1p-126f : x;
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
  const float positive = magnitude != 0u ? bounded : -INFINITY;
  return magnitude == 0u || as_type<uint>(x) <= 0x7f800000u ? positive : NAN;
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
  const float normal = magnitude <= 0.625f ? small : large;
  const float value = magnitude_bits(x) < 0x00800000u ? magnitude : normal;
  return as_type<float>(as_type<uint>(value) | (as_type<uint>(x) & 0x80000000u));
}

// erf of a number below 2^-123, in units of 2^-149, where the slope times the number may be subnormal.
inline float tiny_erf(uint magnitude) {
  const uint mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint units = magnitude < 0x00800000u ? magnitude : mantissa << ((magnitude >> 23) - 1u);
  const ulong product = ulong(units) * 8615380ul;  // 0.12837916612625122 in units of 2^-26
  const uint kept = uint(product >> 26);
  const uint rest = uint(product) & 0x3ffffffu;
  const uint rounded = kept + ((rest > 0x2000000u || (rest == 0x2000000u && (kept & 1u) != 0u)) ? 1u : 0u);
  return units == 0u ? 0.0f : scaled(float(units + rounded), -149);
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
  const float normal = magnitude <= 1.0f ? small : large;
  const float value = magnitude_bits(x) < 0x02000000u ? tiny_erf(magnitude_bits(x)) : normal;
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
