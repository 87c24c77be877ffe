// 8x8 matrices spread over the lanes of a simdgroup.
namespace metal {
// Lane layout of the 8x8 fragment is Apple's: row = (qid & 4) + ((lane / 2) % 4), col = (qid & 2) * 2 + (lane % 2) * 2,
// qid = lane / 4.
template <class T, int Cols, int Rows = Cols> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "only 8x8 simdgroup matrices exist");
  static_assert(is_floating_point<T>::value, "simdgroup_matrix element type must be float, half or bfloat");
  typedef vec<T, 2> storage_type;
  vec<T, 2> __t;
  simdgroup_matrix() = default;
  __MSL_AIM explicit simdgroup_matrix(T diag) thread {
    uint l = __lane(), q = l / 4, row = (q & 4) + (l / 2) % 4, col = (q & 2) * 2 + (l % 2) * 2;
    __t = vec<T, 2>(row == col ? diag : (T)0, row == col + 1 ? diag : (T)0);
  }
  __MSL_AIM thread vec<T, 2> &thread_elements() thread { return __t; }
  __MSL_AIM const thread vec<T, 2> &thread_elements() const thread { return __t; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int C, int R = C> __MSL_AIM simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  m.__t = vec<T, 2>(v, v);
  return m;
}
template <class T, int C, int R = C> __MSL_AIM simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T v) {
  return simdgroup_matrix<T, C, R>(v);
}
#define __MSL_SGCO uint l = __lane(), q = l / 4, row = (q & 4) + (l / 2) % 4, col = (q & 2) * 2 + (l % 2) * 2;
#define __MSL_SGLS(AS)                                                                                                 \
  template <class T> __MSL_AIM void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &d, const AS T *src, ulong ld = 8, \
                                                   ulong2 o = ulong2(0, 0), bool tr = false) {                         \
    __MSL_SGCO                                                                                                         \
    if (!tr) {                                                                                                         \
      const AS T *p = src + (o.y + row) * ld + o.x + col;                                                              \
      d.__t = vec<T, 2>(p[0], p[1]);                                                                                   \
    } else {                                                                                                           \
      const AS T *p = src + (o.y + col) * ld + o.x + row;                                                              \
      d.__t = vec<T, 2>(p[0], p[ld]);                                                                                  \
    }                                                                                                                  \
  }                                                                                                                    \
  template <class T> __MSL_AIM void simdgroup_store(simdgroup_matrix<T, 8, 8> s, AS T *dst, ulong ld = 8,              \
                                                    ulong2 o = ulong2(0, 0), bool tr = false) {                        \
    __MSL_SGCO                                                                                                         \
    if (!tr) {                                                                                                         \
      AS T *p = dst + (o.y + row) * ld + o.x + col;                                                                    \
      p[0] = s.__t.x;                                                                                                  \
      p[1] = s.__t.y;                                                                                                  \
    } else {                                                                                                           \
      AS T *p = dst + (o.y + col) * ld + o.x + row;                                                                    \
      p[0] = s.__t.x;                                                                                                  \
      p[ld] = s.__t.y;                                                                                                 \
    }                                                                                                                  \
  }
__MSL_SGLS(device)
__MSL_SGLS(threadgroup)
#undef __MSL_SGLS
// float sums of any products, or one type for all
template <class TD, class TA, class TB, class TC>
constexpr constant bool __product_ok = is_same_v<TD, TC> && (is_same_v<TD, float> || (is_same_v<TA, TD> && is_same_v<TB, TD>));
    template <class TD, class TA, class TB, class TC, class = enable_if_t<__product_ok<TD, TA, TB, TC>>>
    __MSL_AIM void simdgroup_multiply_accumulate(thread simdgroup_matrix<TD, 8, 8> &d, simdgroup_matrix<TA, 8, 8> a,
                                                 simdgroup_matrix<TB, 8, 8> b, simdgroup_matrix<TC, 8, 8> c) {
  struct P {
    vec<float, 2> a, b, c;
  };
  auto r = __xch(P{vec<float, 2>(a.__t), vec<float, 2>(b.__t), vec<float, 2>(c.__t)});
  __generic float *res = (__generic float *)r->result;
  if (!r->done) {
    float A[8][8], B[8][8];
    for (uint l = 0; l < 32; l++) {
      uint q = l / 4, row = (q & 4) + (l / 2) % 4, col = (q & 2) * 2 + (l % 2) * 2;
      P p = __rd<P>(r, l);
      A[row][col] = p.a.x;
      A[row][col + 1] = p.a.y;
      B[row][col] = p.b.x;
      B[row][col + 1] = p.b.y;
      res[row * 8 + col] = p.c.x;
      res[row * 8 + col + 1] = p.c.y;
    }
    for (int i = 0; i < 8; i++)
      for (int k = 0; k < 8; k++)
        for (int j = 0; j < 8; j++) res[i * 8 + j] += A[i][k] * B[k][j];
    r->done = 1;
  }
  __MSL_SGCO
  d.__t = vec<TD, 2>((TD)res[row * 8 + col], (TD)res[row * 8 + col + 1]);
}
template <class TD, class TA, class TB, class = enable_if_t<__product_ok<TD, TA, TB, TD>>> __MSL_AIM void simdgroup_multiply(thread simdgroup_matrix<TD, 8, 8> &d,
                                                                          simdgroup_matrix<TA, 8, 8> a,
                                                                          simdgroup_matrix<TB, 8, 8> b) {
  simdgroup_matrix<TD, 8, 8> z;
  z.__t = vec<TD, 2>((TD)0, (TD)0);
  simdgroup_multiply_accumulate(d, a, b, z);
}

template <class T>
__MSL_AIM simdgroup_matrix<T, 8, 8> operator*(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> r;
  simdgroup_multiply(r, a, b);
  return r;
}
template <class T>
__MSL_AIM simdgroup_matrix<T, 8, 8> operator+(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> r;
  r.__t = a.__t + b.__t;
  return r;
}
template <class T>
__MSL_AIM simdgroup_matrix<T, 8, 8> operator-(simdgroup_matrix<T, 8, 8> a, simdgroup_matrix<T, 8, 8> b) {
  simdgroup_matrix<T, 8, 8> r;
  r.__t = a.__t - b.__t;
  return r;
}

}  // namespace metal
