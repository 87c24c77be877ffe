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
#define __MSL_FETCH(name, result)                                                                          \
  template <class T> __MSL_AIM T atomic_fetch_##name##_explicit(__MSL_OBJECT, __MSL_VALUE, memory_order) { \
    __MSL_ATOMIC T old = object->__v;                                                                      \
    object->__v = (T)(result);                                                                             \
    return old;                                                                                            \
  }
__MSL_FETCH(add, old + value)
__MSL_FETCH(sub, old - value)
__MSL_FETCH(and, old &value)
__MSL_FETCH(or, old | value)
__MSL_FETCH(xor, old ^ value)
__MSL_FETCH(min, old < value ? old : value)
__MSL_FETCH(max, old > value ? old : value)

struct os_log {
  template <class... A> constexpr os_log(A...) {}
  template <class... A> void log_debug(A...) const {}
  template <class... A> void log(A...) const {}
  template <class... A> void log_info(A...) const {}
  template <class... A> void log_error(A...) const {}
};
}  // namespace metal
