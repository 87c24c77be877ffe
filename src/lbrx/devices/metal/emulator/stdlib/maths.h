// The maths library, with Metal's semantics and without fast-math.
namespace metal {
// Real overload sets (not templates) for scalars: max(float,int) is ambiguous exactly as in Metal.
#define __MSL_B __builtin_elementwise_
#define __MSL_V1(name)                                                                        \
  template <class T, int N> __MSL_AIM auto name(vec<T, N> a) -> vec<decltype(name(a.x)), N> { \
    return __gen<decltype(name(a.x)), N>([&](int i) { return name(a[i]); });                  \
  }
#define __MSL_V2(name)                                                                                          \
  template <class T, int N> __MSL_AIM auto name(vec<T, N> a, vec<T, N> b) -> vec<decltype(name(a.x, b.x)), N> { \
    return __gen<decltype(name(a.x, b.x)), N>([&](int i) { return name(a[i], b[i]); });                         \
  }                                                                                                             \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>> __MSL_AIM auto name(vec<T, N> a, S b)      \
      -> vec<decltype(name(a.x, (T)b)), N> {                                                                    \
    return name(a, vec<T, N>((T)b));                                                                            \
  }                                                                                                             \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>> __MSL_AIM auto name(S a, vec<T, N> b)      \
      -> vec<decltype(name((T)a, b.x)), N> {                                                                    \
    return name(vec<T, N>((T)a), b);                                                                            \
  }
#define __MSL_V3(name)                                                                             \
  template <class T, int N> __MSL_AIM auto name(vec<T, N> a, vec<T, N> b, vec<T, N> c)             \
      -> vec<decltype(name(a.x, b.x, c.x)), N> {                                                   \
    return __gen<decltype(name(a.x, b.x, c.x)), N>([&](int i) { return name(a[i], b[i], c[i]); }); \
  }                                                                                                \
  template <class T, int N, class S1, class S2, class = enable_if_t<__is_s<S1> && __is_s<S2>>>     \
  __MSL_AIM auto name(vec<T, N> a, S1 b, S2 c) -> vec<decltype(name(a.x, (T)b, (T)c)), N> {        \
    return name(a, vec<T, N>((T)b), vec<T, N>((T)c));                                              \
  }
// bfloat has no math overloads in Metal: it converts to float (templates so that user overloads for bfloat win)
#define __MSL_BF1(name)                                                                                                \
  template <class T, class = enable_if_t<is_same_v<T, bfloat>>> __MSL_AIM auto name(T x) -> decltype(name((float)x)) { \
    return name((float)x);                                                                                             \
  }
#define __MSL_BF2(name)                                                                                    \
  template <class A, class B,                                                                              \
            class = enable_if_t<(is_same_v<A, bfloat> && (is_same_v<B, bfloat> || is_same_v<B, float>)) || \
                                (is_same_v<A, float> && is_same_v<B, bfloat>)>>                            \
  __MSL_AIM float name(A x, B y) {                                                                         \
    return name((float)x, (float)y);                                                                       \
  }
#define __MSL_M1(name, expr)                      \
  __MSL_AI float name(float x) { return (expr); } \
  __MSL_AI half name(half h) {                    \
    float x = h;                                  \
    return (half)(expr);                          \
  }
#define __MSL_M2(name, expr)                               \
  __MSL_AI float name(float x, float y) { return (expr); } \
  __MSL_AI half name(half a, half b) {                     \
    float x = a, y = b;                                    \
    return (half)(expr);                                   \
  }
__MSL_AI half __msl_nextafter_half(half x, half y) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  short b = as_type<short>(x);
  if ((b & 0x7fff) == 0) return as_type<half>((short)(y > (half)0 ? 1 : 0x8001));
  return as_type<half>((short)(b + ((x < y) == (b >= 0) ? 1 : -1)));
}
__MSL_AI float __msl_rint(float x) { return __builtin_rintf(x); }
__MSL_AI float __msl_sinpi(float x) {
  float r = x - 2.0f * __builtin_floorf(x * 0.5f);
  return __m_sin(3.14159265358979323846f * r);
}
__MSL_AI float __msl_cospi(float x) {
  float r = x - 2.0f * __builtin_floorf(x * 0.5f);
  return __m_cos(3.14159265358979323846f * r);
}
__MSL_AI float __msl_exp10(float x) { return __m_pow(10.0f, x); }
__MSL_AI float __msl_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : (x == 0.0f ? x : 0.0f); }
__MSL_AI float __msl_round(float x) { return __builtin_roundf(x); }
__MSL_AI float __msl_fract(float x) {
  float f = x - __builtin_floorf(x);
  return f < 0x1.fffffep-1f ? f : 0x1.fffffep-1f;
}
__MSL_AI float __msl_fmin(float x, float y) { return x != x ? y : y != y ? x : y < x ? y : x; }
__MSL_AI float __msl_fmax(float x, float y) { return x != x ? y : y != y ? x : x < y ? y : x; }
#define __MSL_LIST1(M)                                                                                                 \
  M(acos, __m_acos(x))                                                                                                 \
  M(acosh, __m_acosh(x)) M(asin, __m_asin(x)) M(asinh, __m_asinh(x)) M(atan, __m_atan(x)) M(atanh, __m_atanh(x))       \
      M(ceil, __builtin_ceilf(x)) M(cos, __m_cos(x)) M(cosh, __m_cosh(x)) M(cospi, __msl_cospi(x)) M(exp, __m_exp(x))  \
          M(exp2, __m_exp2(x)) M(exp10, __msl_exp10(x)) M(fabs, __builtin_fabsf(x)) M(floor, __builtin_floorf(x))      \
              M(log, __m_log(x)) M(log2, __m_log2(x)) M(log10, __m_log10(x)) M(rint, __msl_rint(x))                    \
                  M(round, __msl_round(x)) M(rsqrt, 1.0f / __builtin_sqrtf(x)) M(sin, __m_sin(x)) M(sinh, __m_sinh(x)) \
                      M(sinpi, __msl_sinpi(x)) M(sqrt, __builtin_sqrtf(x)) M(tan, __m_tan(x)) M(tanh, __m_tanh(x))     \
                          M(tanpi, (__msl_sinpi(x) / __msl_cospi(x))) M(trunc, __builtin_truncf(x))                    \
                              M(fract, __msl_fract(x)) M(sign, __msl_sign(x))                                          \
                                  M(saturate, __msl_fmin(__msl_fmax(x, 0.0f), 1.0f))
#define __MSL_LIST2(M)                                                                               \
  M(atan2, __m_atan2(x, y))                                                                          \
  M(copysign, __builtin_copysignf(x, y)) M(fdim, (x > y ? x - y : 0.0f)) M(fmax, __msl_fmax(x, y))   \
      M(fmin, __msl_fmin(x, y)) M(fmod, __m_fmod(x, y)) M(pow, __m_pow(x, y)) M(powr, __m_pow(x, y)) \
          M(divide, (x / y)) M(step, (y < x ? 0.0f : 1.0f))
#define __MSL_D1(name, expr) __MSL_M1(name, expr) __MSL_V1(name) __MSL_BF1(name)
#define __MSL_D2(name, expr) __MSL_M2(name, expr) __MSL_V2(name) __MSL_BF2(name)
#define __MSL_P1(name, expr) using metal::name;
#define __MSL_I1(name, expr) \
  template <class T> __MSL_AIM T __metal_##name(T a, bool) { return (T)metal::name(a); }
#define __MSL_I2(name, expr) \
  template <class T> __MSL_AIM T __metal_##name(T a, T b, bool) { return (T)metal::name(a, b); }
__MSL_LIST1(__MSL_D1) __MSL_LIST2(__MSL_D2) __MSL_AI float nextafter(float x, float y) { return __m_nextafter(x, y); }
__MSL_AI half nextafter(half x, half y) { return __msl_nextafter_half(x, y); }
__MSL_V2(nextafter)
__MSL_AI float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__MSL_AI half fma(half a, half b, half c) { return (half)__builtin_fmaf(a, b, c); }
__MSL_V3(fma)
template <class A, class = enable_if_t<is_same_v<A, bfloat>>> __MSL_AIM float fma(A a, A b, A c) {
  return fma((float)a, (float)b, (float)c);
}
__MSL_AI float abs(float x) { return __builtin_fabsf(x); }
__MSL_AI half abs(half x) { return (half)__builtin_fabsf(x); }
#define __MSL_ILIST(M) M(char) M(signed char) M(uchar) M(short) M(ushort) M(int) M(uint) M(long) M(ulong)
#define __MSL_FLIST(M) M(float) M(half)
#define __MSL_X(T) \
  __MSL_AI T abs(T x) { return x < 0 ? (T) - x : x; }
__MSL_X(char)
__MSL_X(signed char) __MSL_X(short) __MSL_X(int) __MSL_X(long)
#undef __MSL_X
#define __MSL_X(T) \
  __MSL_AI T abs(T x) { return x; }
    __MSL_X(uchar) __MSL_X(ushort) __MSL_X(uint) __MSL_X(ulong)
#undef __MSL_X
        __MSL_V1(abs) __MSL_BF1(abs)
#define __MSL_X(T)                                                  \
  __MSL_AI T min(T a, T b) { return b < a ? b : a; }                \
  __MSL_AI T max(T a, T b) { return a < b ? b : a; }                \
  __MSL_AI T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); } \
  __MSL_AI T min3(T a, T b, T c) { return min(min(a, b), c); }      \
  __MSL_AI T max3(T a, T b, T c) { return max(max(a, b), c); }      \
  __MSL_AI T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }
            __MSL_ILIST(__MSL_X)
#undef __MSL_X
#define __MSL_X(T)                                                                \
  __MSL_AI T min(T a, T b) { return (T)__msl_fmin(a, b); }                        \
  __MSL_AI T max(T a, T b) { return (T)__msl_fmax(a, b); }                        \
  __MSL_AI T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }               \
  __MSL_AI T min3(T a, T b, T c) { return min(min(a, b), c); }                    \
  __MSL_AI T max3(T a, T b, T c) { return max(max(a, b), c); }                    \
  __MSL_AI T fmin3(T a, T b, T c) { return min(min(a, b), c); }                   \
  __MSL_AI T fmax3(T a, T b, T c) { return max(max(a, b), c); }                   \
  __MSL_AI T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); } \
  __MSL_AI T mix(T a, T b, T t) { return a + (b - a) * t; }                       \
  __MSL_AI T smoothstep(T e0, T e1, T x) {                                        \
    T t = clamp((T)((x - e0) / (e1 - e0)), (T)0, (T)1);                           \
    return t * t * ((T)3 - (T)2 * t);                                             \
  }
                __MSL_FLIST(__MSL_X)
#undef __MSL_X
                    __MSL_V2(min) __MSL_V2(max) __MSL_V3(clamp) __MSL_V3(mix) __MSL_V3(smoothstep) __MSL_V3(min3)
                        __MSL_V3(max3) __MSL_V3(median3) __MSL_BF2(min) __MSL_BF2(max)
#define __MSL_X(T)                                                     \
  __MSL_AI bool isnan(T x) { return x != x; }                          \
  __MSL_AI bool isinf(T x) { return __builtin_isinf((float)x); }       \
  __MSL_AI bool isfinite(T x) { return __builtin_isfinite((float)x); } \
  __MSL_AI bool isnormal(T x) { return __builtin_isnormal((float)x); } \
  __MSL_AI bool signbit(T x) { return __builtin_signbit((float)x); }   \
  __MSL_AI T ldexp(T x, int e) { return (T)__m_ldexp(x, e); }          \
  __MSL_AI T modf(T x, __generic T &ip) {                              \
    ip = trunc(x);                                                     \
    return x - ip;                                                     \
  }                                                                    \
  __MSL_AI T sincos(T x, __generic T &c) {                             \
    c = cos(x);                                                        \
    return sin(x);                                                     \
  }                                                                    \
  __MSL_AI T frexp(T x, __generic int &e) {                            \
    float f = x;                                                       \
    if (f == 0.0f || !__builtin_isfinite(f)) {                         \
      e = 0;                                                           \
      return x;                                                        \
    }                                                                  \
    int k = 0;                                                         \
    while (__builtin_fabsf(f) >= 1.0f) {                               \
      f *= 0.5f;                                                       \
      k++;                                                             \
    }                                                                  \
    while (__builtin_fabsf(f) < 0.5f) {                                \
      f *= 2.0f;                                                       \
      k--;                                                             \
    }                                                                  \
    e = k;                                                             \
    return (T)f;                                                       \
  }                                                                    \
  __MSL_AI int ilogb(T x) {                                            \
    int e;                                                             \
    frexp(x, e);                                                       \
    return e - 1;                                                      \
  }
                            __MSL_FLIST(__MSL_X)
#undef __MSL_X
                                __MSL_V1(isnan) __MSL_V1(isinf) __MSL_V1(isfinite) __MSL_V1(isnormal) __MSL_V1(signbit)
                                    __MSL_BF1(isnan) __MSL_BF1(isinf) __MSL_BF1(isfinite) __MSL_BF1(signbit)
#define __MSL_X(T) \
  __MSL_AI T select(T a, T b, bool c) { return c ? b : a; }
                                        __MSL_ILIST(__MSL_X) __MSL_FLIST(__MSL_X) __MSL_X(bool) __MSL_X(bfloat)
#undef __MSL_X
                                            template <class T, int N>
                                            __MSL_AIM vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  return __gen<T, N>([&](int i) { return c[i] ? b[i] : a[i]; });
}
template <class T, int N> __MSL_AIM vec<T, N> select(vec<T, N> a, vec<T, N> b, bool c) {
  if (c) return b;
  return a;
}
}  // namespace metal
