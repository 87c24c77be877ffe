// Matrices (column major), array, uniform, and the names of all vector and matrix types.
namespace metal {
template <class T, int C, int R> struct matrix {
  vec<T, R> __c[C];
  matrix() = default;
  template <class S, class = enable_if_t<__is_s<S>>> __MSL_AIM explicit matrix(S s) {
    for (int i = 0; i < C; i++) {
      __c[i] = vec<T, R>(T(0));
      if (i < R) __c[i][i] = (T)s;
    }
  }
  __MSL_AIM matrix(vec<T, R> a, vec<T, R> b) {
    static_assert(C == 2, "matrix");
    __c[0] = a;
    __c[1] = b;
  }
  __MSL_AIM matrix(vec<T, R> a, vec<T, R> b, vec<T, R> c) {
    static_assert(C == 3, "matrix");
    __c[0] = a;
    __c[1] = b;
    __c[2] = c;
  }
  __MSL_AIM matrix(vec<T, R> a, vec<T, R> b, vec<T, R> c, vec<T, R> d) {
    static_assert(C == 4, "matrix");
    __c[0] = a;
    __c[1] = b;
    __c[2] = c;
    __c[3] = d;
  }
  template <class U, class = enable_if_t<!is_same_v<U, T>>> __MSL_AIM explicit matrix(matrix<U, C, R> o) {
    for (int i = 0; i < C; i++) __c[i] = vec<T, R>(o.__c[i]);
  }
  __MSL_AIM thread vec<T, R> &operator[](int i) thread & { return __c[i]; }
  __MSL_AIM threadgroup vec<T, R> &operator[](int i) threadgroup & { return __c[i]; }
  __MSL_AIM __global vec<T, R> &operator[](int i) __global & { return __c[i]; }
  __MSL_AIM const thread vec<T, R> &operator[](int i) const thread & { return __c[i]; }
  __MSL_AIM const threadgroup vec<T, R> &operator[](int i) const threadgroup & { return __c[i]; }
  __MSL_AIM const __global vec<T, R> &operator[](int i) const __global & { return __c[i]; }
  __MSL_AIM const __generic vec<T, R> &operator[](int i) const __generic & { return __c[i]; }
  __MSL_AIM vec<T, R> operator[](int i) const __generic && { return __c[i]; }
};
template <class T, int C, int R> __MSL_AIM vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) {
  vec<T, R> r = m.__c[0] * v[0];
  for (int i = 1; i < C; i++) r += m.__c[i] * v[i];
  return r;
}
template <class T, int C, int R> __MSL_AIM vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) {
  vec<T, C> r;
  for (int i = 0; i < C; i++) {
    T s = 0;
    for (int k = 0; k < R; k++) s += v[k] * m.__c[i][k];
    r[i] = s;
  }
  return r;
}
template <class T, int C, int R, int K> __MSL_AIM matrix<T, K, R> operator*(matrix<T, C, R> a, matrix<T, K, C> b) {
  matrix<T, K, R> r;
  for (int j = 0; j < K; j++) r.__c[j] = a * b.__c[j];
  return r;
}
template <class T, int C, int R> __MSL_AIM matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R> b) {
  matrix<T, C, R> r;
  for (int j = 0; j < C; j++) r.__c[j] = a.__c[j] + b.__c[j];
  return r;
}
template <class T, int C, int R> __MSL_AIM matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R> b) {
  matrix<T, C, R> r;
  for (int j = 0; j < C; j++) r.__c[j] = a.__c[j] - b.__c[j];
  return r;
}
template <class T, int C, int R, class S, class = enable_if_t<__is_s<S>>>
__MSL_AIM matrix<T, C, R> operator*(matrix<T, C, R> a, S s) {
  matrix<T, C, R> r;
  for (int j = 0; j < C; j++) r.__c[j] = a.__c[j] * s;
  return r;
}
template <class T, int C, int R, class S, class = enable_if_t<__is_s<S>>>
__MSL_AIM matrix<T, C, R> operator*(S s, matrix<T, C, R> a) {
  return a * s;
}
template <class T, int C, int R> __MSL_AIM matrix<T, R, C> transpose(matrix<T, C, R> a) {
  matrix<T, R, C> r;
  for (int i = 0; i < C; i++)
    for (int j = 0; j < R; j++) r.__c[j][i] = a.__c[i][j];
  return r;
}

template <class T, size_t N> struct array {
  T __a[N];
  __MSL_AIM constexpr thread T &operator[](size_t i) thread & { return __a[i]; }
  __MSL_AIM constexpr threadgroup T &operator[](size_t i) threadgroup & { return __a[i]; }
  __MSL_AIM constexpr __global T &operator[](size_t i) __global & { return __a[i]; }
  __MSL_AIM constexpr const thread T &operator[](size_t i) const thread & { return __a[i]; }
  __MSL_AIM constexpr const threadgroup T &operator[](size_t i) const threadgroup & { return __a[i]; }
  __MSL_AIM constexpr const __global T &operator[](size_t i) const __global & { return __a[i]; }
  __MSL_AIM constexpr T operator[](size_t i) const __generic && { return __a[i]; }
  constexpr size_t size() const { return N; }
};
template <class T> struct uniform {
  T __v;
  uniform() = default;
  constexpr uniform(T v) : __v(v) {}
  constexpr operator T() const { return __v; }
};
template <class T> __MSL_AIM constexpr uniform<T> make_uniform(T v) { return uniform<T>(v); }
template <class A, class B> struct pair {
  A first;
  B second;
};
}  // namespace metal

#define __MSL_VT(T)                              \
  typedef metal::vec<T, 2> T##2;                 \
  typedef metal::vec<T, 3> T##3;                 \
  typedef metal::vec<T, 4> T##4;                 \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
__MSL_VT(bool)
__MSL_VT(char) __MSL_VT(uchar) __MSL_VT(short) __MSL_VT(ushort) __MSL_VT(int) __MSL_VT(uint) __MSL_VT(long)
    __MSL_VT(ulong) __MSL_VT(float) __MSL_VT(half) __MSL_VT(bfloat)
#define __MSL_MT(T)                      \
  typedef metal::matrix<T, 2, 2> T##2x2; \
  typedef metal::matrix<T, 2, 3> T##2x3; \
  typedef metal::matrix<T, 2, 4> T##2x4; \
  typedef metal::matrix<T, 3, 2> T##3x2; \
  typedef metal::matrix<T, 3, 3> T##3x3; \
  typedef metal::matrix<T, 3, 4> T##3x4; \
  typedef metal::matrix<T, 4, 2> T##4x2; \
  typedef metal::matrix<T, 4, 3> T##4x3; \
  typedef metal::matrix<T, 4, 4> T##4x4;
        __MSL_MT(float) __MSL_MT(half)
