// Atomics: fibers never preempt each other, so plain accesses are atomic; the race detector is told to look away.
namespace metal {
template <class T> struct atomic {
  T __v;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
template <class T> struct _atomic : atomic<T> {};
#ifdef __MSL_INSTRUMENTED
struct __atomic_section {
  __MSL_AIM __atomic_section() { __msl_atomic(1); }
  __MSL_AIM ~__atomic_section() { __msl_atomic(-1); }
};
#define __MSL_ATOMIC __atomic_section section;
#else
#define __MSL_ATOMIC
#endif
template <class T> struct __id {
  typedef T type;
};
#define __MSL_OBJECT volatile __generic atomic<T> *object
#define __MSL_VALUE typename __id<T>::type value  // not deduced: the object's type decides
template <class T> __MSL_AIM void atomic_store_explicit(__MSL_OBJECT, __MSL_VALUE, memory_order) {
  __MSL_ATOMIC object->__v = value;
}
template <class T> __MSL_AIM T atomic_load_explicit(const __MSL_OBJECT, memory_order) {
  __MSL_ATOMIC return object->__v;
}
template <class T> __MSL_AIM T atomic_exchange_explicit(__MSL_OBJECT, __MSL_VALUE, memory_order) {
  __MSL_ATOMIC T old = object->__v;
  object->__v = value;
  return old;
}
template <class T> __MSL_AIM bool atomic_compare_exchange_weak_explicit(__MSL_OBJECT, __generic T *expected,
                                                                        __MSL_VALUE, memory_order, memory_order) {
  __MSL_ATOMIC T old = object->__v;
  if (__builtin_memcmp(&old, (__generic void *)expected, sizeof old) == 0) {
    object->__v = value;
    return true;
  }
  *expected = old;
  return false;
}
// An atomic float exists in device memory only.
#define __MSL_NO_FLOAT volatile threadgroup atomic<float> *
void atomic_store_explicit(__MSL_NO_FLOAT, float, memory_order) = delete;
float atomic_load_explicit(const __MSL_NO_FLOAT, memory_order) = delete;
float atomic_exchange_explicit(__MSL_NO_FLOAT, float, memory_order) = delete;
float atomic_fetch_add_explicit(__MSL_NO_FLOAT, float, memory_order) = delete;
float atomic_fetch_sub_explicit(__MSL_NO_FLOAT, float, memory_order) = delete;
// Integers of 32 bits have all operations; a float is only added to, and an unsigned 64-bit integer only raised or
// lowered, without the old value.
template <class T> constexpr constant bool __atomic_int = is_same_v<T, int> || is_same_v<T, uint>;
template <class T> constexpr constant bool __atomic_sum = __atomic_int<T> || is_same_v<T, float>;
#define __MSL_UPDATE(name, type, allowed, result, given)                                   \
  template <class T, class = enable_if_t<allowed>>                                         \
  __MSL_AIM type atomic_##name##_explicit(__MSL_OBJECT, __MSL_VALUE, memory_order) {       \
    __MSL_ATOMIC T old = object->__v;                                                      \
    object->__v = (T)(result);                                                             \
    return given;                                                                          \
  }
#define __MSL_FETCH(name, allowed, result) __MSL_UPDATE(fetch_##name, T, allowed<T>, result, old)
__MSL_FETCH(add, __atomic_sum, old + value)
__MSL_FETCH(sub, __atomic_sum, old - value)
__MSL_FETCH(and, __atomic_int, old &value)
__MSL_FETCH(or, __atomic_int, old | value)
__MSL_FETCH(xor, __atomic_int, old ^ value)
__MSL_FETCH(min, __atomic_int, old < value ? old : value)
__MSL_FETCH(max, __atomic_int, old > value ? old : value)
__MSL_UPDATE(min, void, (is_same_v<T, ulong>), old < value ? old : value, )
__MSL_UPDATE(max, void, (is_same_v<T, ulong>), old > value ? old : value, )

struct os_log {
  template <class... A> constexpr os_log(A...) {}
  template <class... A> void log_debug(A...) const {}
  template <class... A> void log(A...) const {}
  template <class... A> void log_info(A...) const {}
  template <class... A> void log_error(A...) const {}
};
}  // namespace metal
