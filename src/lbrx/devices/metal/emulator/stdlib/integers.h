// Integer, geometric and packing functions; the names inside precise and fast.
namespace metal {
// integer
#define __MSL_X(T)                                                                                               \
  __MSL_AI T popcount(T x) { return (T)__builtin_popcountl((make_unsigned_t<T>)x); }                             \
  __MSL_AI T clz(T x) {                                                                                          \
    return x ? (T)(__builtin_clzl((make_unsigned_t<T>)x) - (64 - 8 * (int)sizeof(T))) : (T)(8 * sizeof(T));      \
  }                                                                                                              \
  __MSL_AI T ctz(T x) { return x ? (T)__builtin_ctzl((make_unsigned_t<T>)x) : (T)(8 * sizeof(T)); }              \
  __MSL_AI T reverse_bits(T x) {                                                                                 \
    make_unsigned_t<T> u = x, r = 0;                                                                             \
    for (int i = 0; i < (int)sizeof(T) * 8; i++) {                                                               \
      r = (r << 1) | (u & 1);                                                                                    \
      u >>= 1;                                                                                                   \
    }                                                                                                            \
    return (T)r;                                                                                                 \
  }                                                                                                              \
  __MSL_AI T rotate(T x, T n) {                                                                                  \
    constexpr int W = sizeof(T) * 8;                                                                             \
    make_unsigned_t<T> u = x;                                                                                    \
    int s = (int)n & (W - 1);                                                                                    \
    return s ? (T)((u << s) | (u >> (W - s))) : x;                                                               \
  }                                                                                                              \
  __MSL_AI T extract_bits(T x, uint o, uint b) {                                                                 \
    constexpr uint W = sizeof(T) * 8;                                                                            \
    if (b == 0) return 0;                                                                                        \
    return (T)((T)((make_unsigned_t<T>)x << (W - o - b)) >> (W - b));                                            \
  }                                                                                                              \
  __MSL_AI T insert_bits(T base, T ins, uint o, uint b) {                                                        \
    constexpr uint W = sizeof(T) * 8;                                                                            \
    make_unsigned_t<T> m =                                                                                       \
        b >= W ? ~(make_unsigned_t<T>)0 : (make_unsigned_t<T>)((((make_unsigned_t<T>)1 << b) - 1) << o);         \
    return (T)(((make_unsigned_t<T>)base & ~m) | (((make_unsigned_t<T>)ins << o) & m));                          \
  }                                                                                                              \
  __MSL_AI T absdiff(T a, T b) { return a > b ? a - b : b - a; }                                                 \
  __MSL_AI T hadd(T a, T b) { return (T)(((__int128)a + b) >> 1); }                                              \
  __MSL_AI T rhadd(T a, T b) { return (T)(((__int128)a + b + 1) >> 1); }                                         \
  __MSL_AI T mulhi(T a, T b) { return (T)(((__int128)a * (__int128)b) >> (8 * sizeof(T))); }                     \
  __MSL_AI T madhi(T a, T b, T c) { return mulhi(a, b) + c; }                                                    \
  __MSL_AI T mad24(T a, T b, T c) { return a * b + c; }                                                          \
  __MSL_AI T mul24(T a, T b) { return a * b; }                                                                   \
  __MSL_AI T addsat(T a, T b) {                                                                                  \
    T r;                                                                                                         \
    return __builtin_add_overflow(a, b, &r) ? (a < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max()) : r; \
  }                                                                                                              \
  __MSL_AI T subsat(T a, T b) {                                                                                  \
    T r;                                                                                                         \
    return __builtin_sub_overflow(a, b, &r)                                                                      \
               ? ((is_unsigned<T>::value || b > 0) ? numeric_limits<T>::min() : numeric_limits<T>::max())        \
               : r;                                                                                              \
  }
__MSL_ILIST(__MSL_X)
#undef __MSL_X
__MSL_V1(popcount)
__MSL_V1(clz) __MSL_V1(ctz) __MSL_V1(reverse_bits) __MSL_V2(rotate) __MSL_V2(absdiff) __MSL_V2(mulhi) __MSL_V2(addsat)
    __MSL_V2(subsat)
    // geometric
    template <class T, int N>
    __MSL_AIM T dot(vec<T, N> a, vec<T, N> b) {
  T s = a.x * b.x;
  for (int i = 1; i < N; i++) s += a[i] * b[i];
  return s;
}
template <class T, int N> __MSL_AIM T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> __MSL_AIM T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> __MSL_AIM T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> __MSL_AIM vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T> __MSL_AIM vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
// packing
__MSL_AI float4 unpack_unorm4x8_to_float(uint x) {
  return float4((x & 255) / 255.0f, (x >> 8 & 255) / 255.0f, (x >> 16 & 255) / 255.0f, (x >> 24) / 255.0f);
}
__MSL_LIST1(__MSL_I1) __MSL_LIST2(__MSL_I2) template <class T> __MSL_AIM T __metal_fma(T a, T b, T c) {
  return (T)metal::fma(a, b, c);
}
template <class T> __MSL_AIM T __metal_fma(T a, T b, T c, bool) { return (T)metal::fma(a, b, c); }
template <class T> __MSL_AIM bool __metal_isnan(T a, bool) { return a != a; }
template <class T> __MSL_AIM bool __metal_isinf(T a, bool) { return metal::isinf((float)a); }
template <class T> __MSL_AIM bool __metal_isfinite(T a, bool) { return metal::isfinite((float)a); }
template <class T> __MSL_AIM bool __metal_isnormal(T a, bool) { return metal::isnormal((float)a); }
template <class T> __MSL_AIM bool __metal_signbit(T a) { return metal::signbit((float)a); }
template <class T> __MSL_AIM bool __metal_isunordered(T a, T b, bool) { return a != a || b != b; }
template <class T> __MSL_AIM bool __metal_isordered(T a, T b, bool) { return !(a != a || b != b); }
template <class T> __MSL_AIM T __metal_fmax3(T a, T b, T c, bool) { return (T)metal::max(metal::max(a, b), c); }
template <class T> __MSL_AIM T __metal_fmin3(T a, T b, T c, bool) { return (T)metal::min(metal::min(a, b), c); }
template <class T> __MSL_AIM T __metal_fmedian3(T a, T b, T c, bool) { return (T)metal::median3(a, b, c); }
template <class T> __MSL_AIM T __metal_nextafter(T a, T b) { return (T)metal::nextafter(a, b); }
template <class T> __MSL_AIM T __metal_frexp(T x, __generic int *e, bool = false) {
  int k;
  T r = metal::frexp(x, k);
  *e = k;
  return r;
}
template <class T> __MSL_AIM int __metal_ilogb(T x) { return metal::ilogb(x); }
template <class T> __MSL_AIM T __metal_ldexp(T x, int e, bool) { return metal::ldexp(x, e); }
template <class T> __MSL_AIM T __metal_modf(T x, __generic T *p, bool) {
  T k;
  T r = metal::modf(x, k);
  *p = k;
  return r;
}
template <class T> __MSL_AIM T __metal_sincos(T x, T c, bool) { return metal::sin(x); }
#define __MSL_NS           \
  using metal::abs;        \
  using metal::min;        \
  using metal::max;        \
  using metal::clamp;      \
  using metal::mix;        \
  using metal::fma;        \
  using metal::isnan;      \
  using metal::isinf;      \
  using metal::isfinite;   \
  using metal::ldexp;      \
  using metal::frexp;      \
  using metal::modf;       \
  using metal::sincos;     \
  using metal::smoothstep; \
  using metal::min3;       \
  using metal::max3;       \
  using metal::normalize;  \
  using metal::length;     \
  using metal::distance;
namespace precise {
__MSL_LIST1(__MSL_P1) __MSL_LIST2(__MSL_P1) __MSL_NS
}
namespace fast {
__MSL_LIST1(__MSL_P1) __MSL_LIST2(__MSL_P1) __MSL_NS
}
}  // namespace metal
