// Operations over the 32 lanes of a simdgroup, and over quads.
namespace metal {
template <class T> __MSL_AIM __generic __msl_rec *__xch(T v) {
  static_assert(sizeof(T) <= 256, "");
  *(__generic T *)__msl_slot() = v;
  return __msl_simd_sync();
}
__MSL_AI uint __lane() { return __msl_self()->lane; }
template <class T> struct __simd_ok {
  static constexpr constant bool v = is_arithmetic<T>::value && !is_same_v<T, bool> && sizeof(T) < 8;
};
template <class T, int N> struct __simd_ok<vec<T, N>> {
  static constexpr constant bool v = !is_same_v<T, bool> && sizeof(T) < 8;
};
#define __MSL_SIMDT template <class T, class = enable_if_t<__simd_ok<T>::v>> __MSL_AIM
// read lane l of the record; inactive lanes give poison (all ones), as reading them is undefined in Metal
template <class T> __MSL_AIM T __rd(__generic __msl_rec *r, uint l) {
  if (l < 32u && (r->mask >> l & 1)) return *(__generic T *)r->ptr[l];
  T t;
  __builtin_memset(&t, 0xff, sizeof t);
  return t;
}
__MSL_SIMDT T simd_shuffle(T v, ushort l) {
  auto r = __xch(v);
  return __rd<T>(r, l);
}
__MSL_SIMDT T simd_broadcast(T v, ushort l) {
  auto r = __xch(v);
  return __rd<T>(r, l);
}
__MSL_SIMDT T simd_broadcast_first(T v) {
  auto r = __xch(v);
  return __rd<T>(r, __builtin_ctz(r->mask));
}
__MSL_SIMDT T simd_shuffle_xor(T v, ushort m) {
  auto r = __xch(v);
  return __rd<T>(r, __lane() ^ m);
}
__MSL_SIMDT T simd_shuffle_down(T v, ushort d) {
  auto r = __xch(v);
  uint l = __lane();
  if (l + d < 32u) return __rd<T>(r, l + d);
  return v;
}
__MSL_SIMDT T simd_shuffle_up(T v, ushort d) {
  auto r = __xch(v);
  uint l = __lane();
  if (l >= d) return __rd<T>(r, l - d);
  return v;
}
__MSL_SIMDT T simd_shuffle_rotate_down(T v, ushort d) {
  auto r = __xch(v);
  return __rd<T>(r, (__lane() + d) & 31);
}
__MSL_SIMDT T simd_shuffle_rotate_up(T v, ushort d) {
  auto r = __xch(v);
  return __rd<T>(r, (__lane() - d) & 31);
}
__MSL_SIMDT T simd_shuffle_and_fill_down(T v, T f, ushort d) {
  struct P {
    T v, f;
  };
  auto r = __xch(P{v, f});
  uint l = __lane() + d;
  P p = __rd<P>(r, l & 31);
  if (l < 32u) return p.v;
  return p.f;
}
__MSL_SIMDT T simd_shuffle_and_fill_up(T v, T f, ushort d) {
  struct P {
    T v, f;
  };
  auto r = __xch(P{v, f});
  uint l = __lane();
  P p = __rd<P>(r, (l - d) & 31);
  if (l >= d) return p.v;
  return p.f;
}
// tree reduction, computed once by the first lane that resumes
template <class T, class F> __MSL_AIM T __red(T v, F f) {
  auto r = __xch(v);
  if (!r->done) {
    T a[32];
    uint have = r->mask;
    for (uint i = 0; i < 32; i++)
      if (have >> i & 1) a[i] = *(__generic T *)r->ptr[i];
    for (uint s = 16; s; s >>= 1)
      for (uint i = 0; i < s; i++) {
        bool x = have >> i & 1, y = have >> (i + s) & 1;
        if (x && y) a[i] = f(a[i], a[i + s]);
        else if (y) {
          a[i] = a[i + s];
          have |= 1u << i;
        }
      }
    *(__generic T *)r->result = a[0];
    r->done = 1;
  }
  return *(__generic T *)r->result;
}
__MSL_SIMDT T simd_sum(T v) {
  return __red(v, [](T a, T b) { return (T)(a + b); });
}
__MSL_SIMDT T simd_product(T v) {
  return __red(v, [](T a, T b) { return (T)(a * b); });
}
__MSL_SIMDT T simd_max(T v) {
  return __red(v, [](T a, T b) { return (T)metal::max(a, b); });
}
__MSL_SIMDT T simd_min(T v) {
  return __red(v, [](T a, T b) { return (T)metal::min(a, b); });
}
__MSL_SIMDT T simd_and(T v) {
  return __red(v, [](T a, T b) { return (T)(a & b); });
}
__MSL_SIMDT T simd_or(T v) {
  return __red(v, [](T a, T b) { return (T)(a | b); });
}
__MSL_SIMDT T simd_xor(T v) {
  return __red(v, [](T a, T b) { return (T)(a ^ b); });
}
template <class T, class F> __MSL_AIM T __scan(T v, T id, bool inc, F f) {
  auto r = __xch(v);
  uint l = __lane();
  T a = id;
  bool any = false;
  for (uint i = 0; i < l + (inc ? 1 : 0); i++)
    if (r->mask >> i & 1) {
      T x = *(__generic T *)r->ptr[i];
      if (any) a = f(a, x);
      else a = x;
      any = true;
    }
  return a;
}
__MSL_SIMDT T simd_prefix_inclusive_sum(T v) {
  return __scan(v, T(0), true, [](T a, T b) { return (T)(a + b); });
}
__MSL_SIMDT T simd_prefix_exclusive_sum(T v) {
  return __scan(v, T(0), false, [](T a, T b) { return (T)(a + b); });
}
__MSL_SIMDT T simd_prefix_inclusive_product(T v) {
  return __scan(v, T(1), true, [](T a, T b) { return (T)(a * b); });
}
__MSL_SIMDT T simd_prefix_exclusive_product(T v) {
  return __scan(v, T(1), false, [](T a, T b) { return (T)(a * b); });
}
__MSL_AI bool simd_any(bool b) {
  return __red((uint)b, [](uint a, uint c) { return a | c; }) != 0;
}
__MSL_AI bool simd_all(bool b) {
  return __red((uint)b, [](uint a, uint c) { return a & c; }) != 0;
}
struct simd_vote {
  ulong __m;
  simd_vote() = default;
  explicit constexpr simd_vote(ulong m) : __m(m) {}
  bool all() const { return __m == 0xffffffffu; }
  bool any() const { return __m != 0; }
  explicit operator ulong() const { return __m; }
  explicit operator uint() const { return (uint)__m; }
};
__MSL_AI simd_vote simd_ballot(bool b) {
  auto r = __xch((uint)b);
  ulong m = 0;
  for (uint i = 0; i < 32; i++)
    if ((r->mask >> i & 1) && *(__generic uint *)r->ptr[i]) m |= 1ul << i;
  return simd_vote(m);
}
__MSL_AI simd_vote simd_active_threads_mask() { return simd_vote(__xch(0u)->mask); }
__MSL_AI bool simd_is_first() {
  auto r = __xch(0u);
  return __builtin_ctz(r->mask) == (int)__lane();
}
__MSL_SIMDT T simd_shuffle_and_fill_down(T v, T f, ushort d, ushort m) {
  struct P {
    T v, f;
  };
  auto r = __xch(P{v, f});
  uint l = __lane(), b = l & ~(uint)(m - 1), k = (l - b) + d;
  P p = __rd<P>(r, b + (k & (m - 1)));
  if (k < m) return p.v;
  return p.f;
}
__MSL_SIMDT T simd_shuffle_and_fill_up(T v, T f, ushort d, ushort m) {
  struct P {
    T v, f;
  };
  auto r = __xch(P{v, f});
  uint l = __lane(), b = l & ~(uint)(m - 1), k = l - b;
  P p = __rd<P>(r, b + ((k - d) & (m - 1)));
  if (k >= d) return p.v;
  return p.f;
}
#define __MSL_SI(n)                                                                                  \
  template <class... A> __MSL_AIM auto __metal_simd_##n(A... a) -> decltype(metal::simd_##n(a...)) { \
    return metal::simd_##n(a...);                                                                    \
  }
__MSL_SI(broadcast)
__MSL_SI(shuffle) __MSL_SI(shuffle_and_fill_down) __MSL_SI(shuffle_and_fill_up) __MSL_SI(shuffle_down)
    __MSL_SI(shuffle_up) __MSL_SI(shuffle_rotate_down) __MSL_SI(shuffle_rotate_up) __MSL_SI(shuffle_xor) __MSL_SI(max)
        __MSL_SI(min) __MSL_SI(product) __MSL_SI(sum) __MSL_SI(prefix_exclusive_product) __MSL_SI(prefix_exclusive_sum)
            __MSL_SI(prefix_inclusive_product) __MSL_SI(prefix_inclusive_sum) template <class T>
            __MSL_AIM T __metal_simd_xor(T v) {
  if constexpr (is_integral<T>::value) return simd_xor(v);
  else return as_type<float>(simd_xor(as_type<uint>((float)v)));
}
#define __metal_get_simdgroup_size(x) ((ushort)32)
// quadgroup ops (4 consecutive lanes)
__MSL_SIMDT T quad_shuffle(T v, ushort l) {
  auto r = __xch(v);
  return __rd<T>(r, (__lane() & ~3u) + (l & 3));
}
__MSL_SIMDT T quad_broadcast(T v, ushort l) {
  auto r = __xch(v);
  return __rd<T>(r, (__lane() & ~3u) + (l & 3));
}
__MSL_SIMDT T quad_shuffle_xor(T v, ushort m) {
  auto r = __xch(v);
  return __rd<T>(r, __lane() ^ (m & 3));
}
__MSL_SIMDT T quad_shuffle_down(T v, ushort d) {
  auto r = __xch(v);
  uint l = __lane();
  if ((l & 3) + d < 4u) return __rd<T>(r, l + d);
  return v;
}
__MSL_SIMDT T quad_shuffle_up(T v, ushort d) {
  auto r = __xch(v);
  uint l = __lane();
  if ((l & 3) >= d) return __rd<T>(r, l - d);
  return v;
}
template <class T, class F> __MSL_AIM T __qred(T v, F f) {
  auto r = __xch(v);
  uint b = __lane() & ~3u;
  T a = v;
  bool any = false;
  for (uint i = b; i < b + 4; i++)
    if (r->mask >> i & 1) {
      T x = *(__generic T *)r->ptr[i];
      if (any) a = f(a, x);
      else a = x;
      any = true;
    }
  return a;
}
__MSL_SIMDT T quad_sum(T v) {
  return __qred(v, [](T a, T b) { return (T)(a + b); });
}
__MSL_SIMDT T quad_max(T v) {
  return __qred(v, [](T a, T b) { return (T)metal::max(a, b); });
}
__MSL_SIMDT T quad_min(T v) {
  return __qred(v, [](T a, T b) { return (T)metal::min(a, b); });
}

}  // namespace metal
