// Vector and packed vector types with swizzles and operators.
namespace metal {
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
template <class T, int... I> struct __wswz;
}  // namespace metal
template <class T> constexpr constant bool __three_components<metal::vec<T, 3>> = true;
namespace metal {
// how many components a scalar or vector has, and a list of them
template <class T> struct __cnt {
  static constexpr constant int n = (is_arithmetic<T>::value || __is_enum(T)) ? 1 : -100;
};
template <class T, int N> struct __cnt<vec<T, N>> {
  static constexpr constant int n = N;
};
template <class T, int N> struct __cnt<packed_vec<T, N>> {
  static constexpr constant int n = N;
};
template <class... A> struct __sumcnt {
  static constexpr constant int n = 0;
};
template <class H, class... A> struct __sumcnt<H, A...> {
  static constexpr constant int n = __cnt<H>::n + __sumcnt<A...>::n;
};
template <class S> constexpr constant bool __is_s = is_arithmetic<S>::value || __is_enum(S);
// copies of operands of conditional expressions, see conditionals.py
template <class T> __MSL_AIM constexpr T __rv(T v) { return v; }
struct __rvc {};
template <class T> __MSL_AIM constexpr T operator,(__rvc, T v) { return v; }
// conversion; between half and bfloat it goes through float
template <class T, class S> __MSL_AIM constexpr T __cv(S s) {
  if constexpr ((is_same_v<S, bfloat> || is_same_v<T, bfloat>) && is_floating_point<S>::value &&
                is_floating_point<T>::value)
    return (T)(float)s;
  else return (T)s;
}
// component I of a scalar or vector, and component K of a list of both
template <int I, class S> __MSL_AIM constexpr auto __at(S s) {
  if constexpr (__is_s<remove_addrspace_t<S>>) return s;
  else return s.template __get<I>();
}
template <class T, int K, class H, class... A> __MSL_AIM constexpr T __pick(H h, A... a) {
  if constexpr (K < __cnt<H>::n) return __cv<T>(__at<K>(h));
  else return __pick<T, K - __cnt<H>::n>(a...);
}

template <int... I> struct __distinct {
  static constexpr constant bool value = true;
};
template <int H, int... I> struct __distinct<H, I...> {
  static constexpr constant bool value = ((H != I) && ...) && __distinct<I...>::value;
};
// v.xyz is rewritten to v.template __swizzle<0, 1, 2>(), and v.xyz = ... to v.template __swizzle_ref<0, 1, 2>() = ...
#define __MSL_SWIZZLES(N)                                                                                   \
  template <int... I> __MSL_AIM constexpr vec<T, sizeof...(I)> __swizzle() const {                          \
    static_assert(((I < N) && ...), "swizzle of a component that the vector does not have");                \
    return vec<T, sizeof...(I)>(__get<I>()...);                                                             \
  }                                                                                                         \
  template <int... I> __MSL_AIM __wswz<T, I...> __swizzle_ref() {                                           \
    static_assert(((I < N) && ...), "swizzle of a component that the vector does not have");                \
    static_assert(__distinct<I...>::value, "a swizzle that names a component twice cannot be assigned to"); \
    return __wswz<T, I...>{(__generic T *)this};                                                            \
  }
#define __MSL_VEC_COMMON(N)                                                                                       \
  typedef T __elem;                                                                                               \
  static constexpr constant int __n = N;                                                                          \
  vec() = default;                                                                                                \
  template <class S, class = enable_if_t<__is_s<S>>> __MSL_AIM constexpr vec(S s) : vec(__splat{}, __cv<T>(s)) {} \
  template <class A, class B, class... C, class = enable_if_t<__sumcnt<A, B, C...>::n == N>>                      \
  __MSL_AIM constexpr vec(A a, B b, C... c) : vec(__flat{}, a, b, c...) {}                                        \
  template <class U, class = enable_if_t<!is_same_v<U, T>>> __MSL_AIM explicit constexpr vec(vec<U, N> o)         \
      : vec(__conv{}, o) {}                                                                                       \
  template <class U> __MSL_AIM constexpr vec(packed_vec<U, N> o) : vec(__conv{}, o) {}                            \
  __MSL_AIM __generic T &operator[](int i) { return ((__generic T *)this)[i]; }                                   \
  __MSL_AIM constexpr T operator[](int i) const {                                                                 \
    if (__builtin_is_constant_evaluated()) return __cget(i);                                                      \
    return ((const __generic T *)this)[i];                                                                        \
  }                                                                                                               \
  struct __splat {};                                                                                              \
  struct __flat {};                                                                                               \
  struct __conv {};
#define __MSL_OPASG(op)                                               \
  template <class B> __MSL_AIM __generic vec &operator op## = (B b) { \
    *this = *this op b;                                               \
    return *this;                                                     \
  }
#define __MSL_VEC_OPS                                                                                      \
  __MSL_OPASG(+)                                                                                           \
  __MSL_OPASG(-) __MSL_OPASG(*) __MSL_OPASG(/) __MSL_OPASG(%) __MSL_OPASG(&) __MSL_OPASG(|) __MSL_OPASG(^) \
      __MSL_OPASG(<<) __MSL_OPASG(>>) __MSL_AIM __generic vec &                                            \
      operator++() {                                                                                       \
    *this = *this + T(1);                                                                                  \
    return *this;                                                                                          \
  }                                                                                                        \
  __MSL_AIM __generic vec &operator--() {                                                                  \
    *this = *this - T(1);                                                                                  \
    return *this;                                                                                          \
  }                                                                                                        \
  __MSL_AIM vec operator++(int) {                                                                          \
    vec t = *this;                                                                                         \
    *this = *this + T(1);                                                                                  \
    return t;                                                                                              \
  }                                                                                                        \
  __MSL_AIM vec operator--(int) {                                                                          \
    vec t = *this;                                                                                         \
    *this = *this - T(1);                                                                                  \
    return t;                                                                                              \
  }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
  };
  template <int I> __MSL_AIM constexpr T __get() const {
    if constexpr (I == 0) return x;
    else return y;
  }
  __MSL_AIM constexpr T __cget(int i) const { return i == 0 ? x : y; }
  __MSL_VEC_COMMON(2) __MSL_VEC_OPS __MSL_SWIZZLES(2)
 private:
  __MSL_AIM constexpr vec(__splat, T s) : x(s), y(s) {}
  template <class... A> __MSL_AIM constexpr vec(__flat, A... a) : x(__pick<T, 0>(a...)), y(__pick<T, 1>(a...)) {}
  template <class O> __MSL_AIM constexpr vec(__conv, O o) : x(__cv<T>(o.x)), y(__cv<T>(o.y)) {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
  };
  template <int I> __MSL_AIM constexpr T __get() const {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else return z;
  }
  __MSL_AIM constexpr T __cget(int i) const { return i == 0 ? x : i == 1 ? y : z; }
 __MSL_VEC_COMMON(3)
 __MSL_VEC_OPS __MSL_SWIZZLES(3) private : __MSL_AIM constexpr vec(__splat, T s) : x(s), y(s), z(s) {}
  template <class... A> __MSL_AIM constexpr vec(__flat, A... a)
      : x(__pick<T, 0>(a...)), y(__pick<T, 1>(a...)), z(__pick<T, 2>(a...)) {}
  template <class O> __MSL_AIM constexpr vec(__conv, O o) : x(__cv<T>(o.x)), y(__cv<T>(o.y)), z(__cv<T>(o.z)) {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
  };
  template <int I> __MSL_AIM constexpr T __get() const {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else if constexpr (I == 2) return z;
    else return w;
  }
  __MSL_AIM constexpr T __cget(int i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
 __MSL_VEC_COMMON(4)
 __MSL_VEC_OPS __MSL_SWIZZLES(4) private : __MSL_AIM constexpr vec(__splat, T s) : x(s), y(s), z(s), w(s) {}
  template <class... A> __MSL_AIM constexpr vec(__flat, A... a)
      : x(__pick<T, 0>(a...)), y(__pick<T, 1>(a...)), z(__pick<T, 2>(a...)), w(__pick<T, 3>(a...)) {}
  template <class O> __MSL_AIM constexpr vec(__conv, O o)
      : x(__cv<T>(o.x)), y(__cv<T>(o.y)), z(__cv<T>(o.z)), w(__cv<T>(o.w)) {}
};
// what a swizzle on the left of an assignment is
template <class T, int... I> struct __wswz {
  __generic T *p;
  template <class B> __MSL_AIM void operator=(B b) {
    vec<T, sizeof...(I)> t = vec<T, sizeof...(I)>(b);
    int k = 0;
    ((p[I] = t[k++]), ...);
  }
  __MSL_AIM vec<T, sizeof...(I)> __r() const { return vec<T, sizeof...(I)>(p[I]...); }
#define __MSL_WOP(op) \
  template <class B> __MSL_AIM void operator op## = (B b) { *this = __r() op b; }
  __MSL_WOP(+)
  __MSL_WOP(-) __MSL_WOP(*) __MSL_WOP(/) __MSL_WOP(%) __MSL_WOP(&) __MSL_WOP(|) __MSL_WOP(^) __MSL_WOP(<<) __MSL_WOP(>>)
};
#define __MSL_PACKED_COMMON(N)                                                   \
  packed_vec() = default;                                                        \
  __MSL_AIM __generic T &operator[](int i) { return ((__generic T *)this)[i]; }  \
  __MSL_AIM T operator[](int i) const { return ((const __generic T *)this)[i]; } \
  __MSL_SWIZZLES(N)
template <class T> struct packed_vec<T, 2> {
  T x, y;
  __MSL_PACKED_COMMON(2)
  template <class S, class = enable_if_t<__is_s<S>>> constexpr packed_vec(S s) : x(s), y(s) {}
  constexpr packed_vec(T a, T b) : x(a), y(b) {}
  constexpr packed_vec(vec<T, 2> v) : x(v.x), y(v.y) {}
  template <int I> constexpr T __get() const {
    if constexpr (I == 0) return x;
    else return y;
  }
};
template <class T> struct packed_vec<T, 3> {
  T x, y, z;
  __MSL_PACKED_COMMON(3)
  template <class S, class = enable_if_t<__is_s<S>>> constexpr packed_vec(S s) : x(s), y(s), z(s) {}
  constexpr packed_vec(T a, T b, T c) : x(a), y(b), z(c) {}
  constexpr packed_vec(vec<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
  template <int I> constexpr T __get() const {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else return z;
  }
};
template <class T> struct packed_vec<T, 4> {
  T x, y, z, w;
  __MSL_PACKED_COMMON(4)
  template <class S, class = enable_if_t<__is_s<S>>> constexpr packed_vec(S s) : x(s), y(s), z(s), w(s) {}
  constexpr packed_vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  constexpr packed_vec(vec<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  template <int I> constexpr T __get() const {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else if constexpr (I == 2) return z;
    else return w;
  }
};
template <class T, int N> __MSL_AIM constexpr vec<T, N> __v(vec<T, N> v) { return v; }
template <class T, int N> __MSL_AIM constexpr vec<T, N> __v(packed_vec<T, N> v) { return vec<T, N>(v); }

template <class R, int N, class F> __MSL_AIM constexpr vec<R, N> __gen(F f) {
  if constexpr (N == 2) return vec<R, 2>(f(0), f(1));
  else if constexpr (N == 3) return vec<R, 3>(f(0), f(1), f(2));
  else return vec<R, 4>(f(0), f(1), f(2), f(3));
}
#define __MSL_BIN(op, RT)                                                                                        \
  template <class T, int N> __MSL_AIM constexpr vec<RT, N> operator op(vec<T, N> a, vec<T, N> b) {               \
    vec<RT, N> r;                                                                                                \
    if constexpr (N == 2) r = vec<RT, 2>((RT)(a.x op b.x), (RT)(a.y op b.y));                                    \
    else if constexpr (N == 3) r = vec<RT, 3>((RT)(a.x op b.x), (RT)(a.y op b.y), (RT)(a.z op b.z));             \
    else r = vec<RT, 4>((RT)(a.x op b.x), (RT)(a.y op b.y), (RT)(a.z op b.z), (RT)(a.w op b.w));                 \
    return r;                                                                                                    \
  }                                                                                                              \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>>                                             \
  __MSL_AIM constexpr vec<RT, N> operator op(vec<T, N> a, S b) {                                                 \
    return a op vec<T, N>((T)b);                                                                                 \
  }                                                                                                              \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>>                                             \
  __MSL_AIM constexpr vec<RT, N> operator op(S a, vec<T, N> b) {                                                 \
    return vec<T, N>((T)a) op b;                                                                                 \
  }                                                                                                              \
  template <class T, int N> __MSL_AIM constexpr vec<RT, N> operator op(packed_vec<T, N> a, packed_vec<T, N> b) { \
    return __v(a) op __v(b);                                                                                     \
  }                                                                                                              \
  template <class T, int N> __MSL_AIM constexpr vec<RT, N> operator op(vec<T, N> a, packed_vec<T, N> b) {        \
    return a op __v(b);                                                                                          \
  }                                                                                                              \
  template <class T, int N> __MSL_AIM constexpr vec<RT, N> operator op(packed_vec<T, N> a, vec<T, N> b) {        \
    return __v(a) op b;                                                                                          \
  }                                                                                                              \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>>                                             \
  __MSL_AIM constexpr vec<RT, N> operator op(packed_vec<T, N> a, S b) {                                          \
    return __v(a) op vec<T, N>((T)b);                                                                            \
  }                                                                                                              \
  template <class T, int N, class S, class = enable_if_t<__is_s<S>>>                                             \
  __MSL_AIM constexpr vec<RT, N> operator op(S a, packed_vec<T, N> b) {                                          \
    return vec<T, N>((T)a) op __v(b);                                                                            \
  }
__MSL_BIN(+, T)
__MSL_BIN(-, T) __MSL_BIN(*, T) __MSL_BIN(/, T) __MSL_BIN(%, T) __MSL_BIN(&, T) __MSL_BIN(|, T) __MSL_BIN(^, T)
    __MSL_BIN(<<, T) __MSL_BIN(>>, T) __MSL_BIN(==, bool) __MSL_BIN(!=, bool) __MSL_BIN(<, bool) __MSL_BIN(>, bool)
        __MSL_BIN(<=, bool) __MSL_BIN(>=, bool) __MSL_BIN(&&, bool) __MSL_BIN(||, bool) template <class T, int N>
        __MSL_AIM constexpr vec<T, N> operator-(vec<T, N> a) {
  return __gen<T, N>([&](int i) { return (T)-a[i]; });
}
template <class T, int N> __MSL_AIM constexpr vec<T, N> operator+(vec<T, N> a) { return a; }
template <class T, int N> __MSL_AIM constexpr vec<T, N> operator~(vec<T, N> a) {
  return __gen<T, N>([&](int i) { return (T)~a[i]; });
}
template <class T, int N> __MSL_AIM constexpr vec<bool, N> operator!(vec<T, N> a) {
  return __gen<bool, N>([&](int i) { return !a[i]; });
}
template <int N> __MSL_AIM bool any(vec<bool, N> v) {
  bool r = false;
  for (int i = 0; i < N; i++) r = r || v[i];
  return r;
}
template <int N> __MSL_AIM bool all(vec<bool, N> v) {
  bool r = true;
  for (int i = 0; i < N; i++) r = r && v[i];
  return r;
}
__MSL_AI bool any(bool b) { return b; }
__MSL_AI bool all(bool b) { return b; }

}  // namespace metal
