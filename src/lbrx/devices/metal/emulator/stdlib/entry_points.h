// How the runner's generic pointers become the typed arguments of a kernel.
namespace metal {
__MSL_AI bool __function_constant_defined(int i) { return __msl_fc_defined(i) != 0; }
template <class T> __MSL_AIM T __fc(int i) {
  if constexpr (is_floating_point<T>::value) return (T)__msl_fc_f32(i);
  else return (T)__msl_fc_int(i);
}
template <class F> struct __fn;
template <class R, class... A> struct __fn<R(A...)> {
  typedef R ret;
  static constexpr constant int n = sizeof...(A);
};
template <int I, class F> struct __arg;
template <class R, class H, class... A> struct __arg<0, R(H, A...)> {
  typedef H type;
};
template <int I, class R, class H, class... A> struct __arg<I, R(H, A...)> {
  typedef typename __arg<I - 1, R(A...)>::type type;
};
template <class P> struct __bind {
  static __MSL_AIM P get(__generic uchar *) {
    static_assert(!sizeof(P), "kernel parameter must be a device/constant/threadgroup pointer or reference");
  }
};
template <class T> struct __bind<device T *> {
  static __MSL_AIM device T *get(__generic uchar *p) { return (device T *)p; }
};
template <class T> struct __bind<__global T *> {
  static __MSL_AIM __global T *get(__generic uchar *p) { return (__global T *)p; }
};
template <class T> struct __bind<threadgroup T *> {
  static __MSL_AIM threadgroup T *get(__generic uchar *p) { return (threadgroup T *)p; }
};
template <class T> struct __bind<device T &> {
  static __MSL_AIM device T &get(__generic uchar *p) { return *(device T *)p; }
};
template <class T> struct __bind<__global T &> {
  static __MSL_AIM __global T &get(__generic uchar *p) { return *(__global T *)p; }
};
template <class T> struct __bind<threadgroup T &> {
  static __MSL_AIM threadgroup T &get(__generic uchar *p) { return *(threadgroup T *)p; }
};
template <class T> struct __attr {
  static constexpr constant int n = 0;
};
template <> struct __attr<uint> {
  static constexpr constant int n = 1;
  static __MSL_AIM uint get(const __generic uint *p) { return p[0]; }
};
template <> struct __attr<ushort> {
  static constexpr constant int n = 1;
  static __MSL_AIM ushort get(const __generic uint *p) { return (ushort)p[0]; }
};
template <class T> struct __attr<vec<T, 2>> {
  static constexpr constant int n = (is_same_v<T, uint> || is_same_v<T, ushort>) ? 2 : 0;
  static __MSL_AIM vec<T, 2> get(const __generic uint *p) { return vec<T, 2>((T)p[0], (T)p[1]); }
};
template <class T> struct __attr<vec<T, 3>> {
  static constexpr constant int n = (is_same_v<T, uint> || is_same_v<T, ushort>) ? 3 : 0;
  static __MSL_AIM vec<T, 3> get(const __generic uint *p) { return vec<T, 3>((T)p[0], (T)p[1], (T)p[2]); }
};
template <class P, int maxn> __MSL_AIM remove_cv_t<P> __attr_get(const __generic uint *p) {
  typedef __attr<remove_cv_t<P>> A;
  static_assert(A::n != 0, "invalid type for this attribute: must be ushort, ushort2, ushort3, uint, uint2 or uint3");
  static_assert(A::n == 0 || A::n <= maxn, "invalid type for this attribute: must be a scalar ushort or uint");
  return A::get(p);
}
template <class T> struct __psz {
  static constexpr constant ulong s = 0, a = 1;
};
template <class T> struct __psz0 {
  static constexpr constant ulong s = sizeof(T), a = alignof(T);
};
template <> struct __psz0<void> {
  static constexpr constant ulong s = 0, a = 1;
};
template <class T> struct __psz<T *> : __psz0<remove_cv_t<remove_addrspace_t<remove_cv_t<T>>>> {};
template <class T> struct __psz<T &> : __psz0<remove_cv_t<remove_addrspace_t<remove_cv_t<T>>>> {};
}  // namespace metal
// clang's built-in p += <class convertible to int> candidates do not accept __private pointers
template <class T, class C, class = metal::enable_if_t<__is_class(C)>> __MSL_AIM constexpr T *&operator+=(T *&p, C c) {
  p = p + (ptrdiff_t)c;
  return p;
}
template <class T, class C, class = metal::enable_if_t<__is_class(C)>> __MSL_AIM constexpr T *&operator-=(T *&p, C c) {
  p = p - (ptrdiff_t)c;
  return p;
}
