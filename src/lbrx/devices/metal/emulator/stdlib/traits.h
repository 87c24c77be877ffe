// as_type, type traits and numeric limits.
template <class T> constexpr __global const bool __three_components = false;
template <class T, class U> __MSL_AIM constexpr T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type: source and destination must have the same size");
  static_assert(__three_components<T> == __three_components<U>,
                "as_type: source and destination must have the same number of components");
  return __builtin_bit_cast(T, u);
}

namespace metal {
using ::as_type;
using ::ptrdiff_t;
using ::size_t;
template <class T, T v> struct integral_constant {
  static constexpr constant T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B> constexpr constant bool is_same_v = __is_same(A, B);
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> {
  typedef T type;
};
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional {
  typedef T type;
};
template <class T, class F> struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct remove_const {
  typedef T type;
};
template <class T> struct remove_const<const T> {
  typedef T type;
};
template <class T> struct remove_volatile {
  typedef T type;
};
template <class T> struct remove_volatile<volatile T> {
  typedef T type;
};
template <class T> struct remove_cv {
  typedef typename remove_const<typename remove_volatile<T>::type>::type type;
};
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_reference {
  typedef T type;
};
template <class T> struct remove_reference<T &> {
  typedef T type;
};
template <class T> struct remove_reference<T &&> {
  typedef T type;
};
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_pointer {
  typedef T type;
};
template <class T> struct remove_pointer<T *> {
  typedef T type;
};
template <class T> struct remove_pointer<T *const> {
  typedef T type;
};
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct remove_addrspace {
  typedef T type;
};
template <class T> struct remove_addrspace<thread T> {
  typedef T type;
};
template <class T> struct remove_addrspace<device T> {
  typedef T type;
};
template <class T> struct remove_addrspace<__global T> {
  typedef T type;
};
template <class T> struct remove_addrspace<threadgroup T> {
  typedef T type;
};
template <class T> struct remove_addrspace<__generic T> {
  typedef T type;
};
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T> struct decay {
  typedef remove_cv_t<remove_addrspace_t<remove_reference_t<T>>> type;
};
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T *> : true_type {};
template <class T> constexpr constant bool is_pointer_v = is_pointer<T>::value;
template <class T> struct __is_fp : false_type {};
template <> struct __is_fp<float> : true_type {};
template <> struct __is_fp<half> : true_type {};
template <> struct __is_fp<bfloat> : true_type {};
template <class T> struct is_floating_point : __is_fp<remove_cv_t<T>> {};
template <class T> constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
template <class T> struct is_integral : bool_constant<__is_integral(T)> {};
template <class T> constexpr constant bool is_integral_v = __is_integral(T);
template <class T> struct is_arithmetic : bool_constant<__is_integral(T) || is_floating_point<T>::value> {};
template <class T> constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> struct is_scalar : bool_constant<is_arithmetic<T>::value || __is_enum(T) || is_pointer<T>::value> {};
template <class T> constexpr constant bool is_scalar_v = is_scalar<T>::value;
template <class T, bool = is_arithmetic<T>::value> struct __sgn {
  static constexpr constant bool s = (T(-1) < T(0));
};
template <class T> struct __sgn<T, false> {
  static constexpr constant bool s = false;
};
template <class T> struct is_signed : bool_constant<__sgn<T>::s> {};
template <class T> constexpr constant bool is_signed_v = __sgn<T>::s;
template <class T> struct is_unsigned : bool_constant<is_integral<T>::value && !__sgn<T>::s> {};
template <class T> constexpr constant bool is_unsigned_v = is_unsigned<T>::value;
template <class A, class B> struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};
template <class A, class B> constexpr constant bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_base_of : bool_constant<__is_base_of(A, B)> {};
template <class A, class B> constexpr constant bool is_base_of_v = __is_base_of(A, B);
template <class T> struct is_const : false_type {};
template <class T> struct is_const<const T> : true_type {};
template <class T> constexpr constant bool is_const_v = is_const<T>::value;
template <class T> struct is_class : bool_constant<__is_class(T)> {};
template <class T> constexpr constant bool is_class_v = __is_class(T);
template <class T> struct make_unsigned {
  typedef __make_unsigned(T) type;
};
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct make_signed {
  typedef __make_signed(T) type;
};
template <class T> using make_signed_t = typename make_signed<T>::type;
template <class T> constexpr T &&declval() noexcept;
template <class... B> struct _disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct _conjunction : bool_constant<(B::value && ...)> {};
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};

template <class T> struct numeric_limits {
  static constexpr constant bool is_specialized = false;
};
#define __MSL_LIM_I(T, MN, MX)                                                                        \
  template <> struct numeric_limits<T> {                                                              \
    static constexpr constant bool is_specialized = true, is_integer = true, is_signed = __sgn<T>::s; \
    static constexpr constant int digits = sizeof(T) * 8 - is_signed;                                 \
    static constexpr T max() { return MX; }                                                           \
    static constexpr T min() { return MN; }                                                           \
    static constexpr T lowest() { return MN; }                                                        \
  };
__MSL_LIM_I(bool, false, true)
__MSL_LIM_I(char, -128, 127) __MSL_LIM_I(signed char, -128, 127) __MSL_LIM_I(uchar, 0, 255)
    __MSL_LIM_I(short, -32768, 32767) __MSL_LIM_I(ushort, 0, 65535) __MSL_LIM_I(int, -2147483647 - 1, 2147483647)
        __MSL_LIM_I(uint, 0, 4294967295u) __MSL_LIM_I(long, -9223372036854775807l - 1, 9223372036854775807l)
            __MSL_LIM_I(ulong, 0, 18446744073709551615ul)
#define __MSL_LIM_F(T, U, MX, MN, EPS, INF, NAN_, DEN, DIG)                                                          \
  template <> struct numeric_limits<T> {                                                                             \
    static constexpr constant bool is_specialized = true, is_integer = false, is_signed = true, has_infinity = true, \
                                   has_quiet_NaN = true;                                                             \
    static constexpr constant int digits = DIG;                                                                      \
    static constexpr T max() { return __builtin_bit_cast(T, (U)MX); }                                                \
    static constexpr T lowest() { return __builtin_bit_cast(T, (U)(MX | (U)1 << (sizeof(U) * 8 - 1))); }             \
    static constexpr T min() { return __builtin_bit_cast(T, (U)MN); }                                                \
    static constexpr T epsilon() { return __builtin_bit_cast(T, (U)EPS); }                                           \
    static constexpr T infinity() { return __builtin_bit_cast(T, (U)INF); }                                          \
    static constexpr T quiet_NaN() { return __builtin_bit_cast(T, (U)NAN_); }                                        \
    static constexpr T signaling_NaN() { return quiet_NaN(); }                                                       \
    static constexpr T denorm_min() { return __builtin_bit_cast(T, (U)DEN); }                                        \
  };
                __MSL_LIM_F(float, uint, 0x7f7fffffu, 0x00800000u, 0x34000000u, 0x7f800000u, 0x7fc00000u, 1u, 24)
                    __MSL_LIM_F(half, ushort, 0x7bff, 0x0400, 0x1400, 0x7c00, 0x7e00, 1, 11)
                        __MSL_LIM_F(bfloat, ushort, 0x7f7f, 0x0080, 0x3c00, 0x7f80, 0x7fc0, 1, 8)
}  // namespace metal
