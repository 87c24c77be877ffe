// Metal's keywords in clang's "C++ for OpenCL" mode.
//
// That mode already has Metal's rules: named address spaces, methods qualified by them, no double, new, virtual,
// exceptions, RTTI, thread_local or varargs, 'half' with an 'h' suffix, convergent functions.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#pragma OPENCL EXTENSION __cl_clang_variadic_functions : disable

#define device __attribute__((opencl_global_device))
#define constant __global const
#define threadgroup __local
#define thread __private
#define ray_data __private
#define object_data __local
// OpenCL predeclares these typedefs; MSL has its own
#define atomic_int __msl_ty_atomic_int
#define atomic_uint __msl_ty_atomic_uint
#define atomic_bool __msl_ty_atomic_bool
#define atomic_float __msl_ty_atomic_float
#define atomic_ulong __msl_ty_atomic_ulong
#define atomic_long __msl_ty_atomic_long
#define atomic_flag __msl_ty_atomic_flag
#define atomic_double __msl_ty_atomic_double
#define atomic_size_t __msl_ty_atomic_size_t
#define atomic_intptr_t __msl_ty_atomic_intptr_t
#define atomic_uintptr_t __msl_ty_atomic_uintptr_t
#define atomic_ptrdiff_t __msl_ty_atomic_ptrdiff_t
#define event_t __msl_ty_event_t
#define clk_event_t __msl_ty_clk_event_t
#define queue_t __msl_ty_queue_t
#define reserve_id_t __msl_ty_reserve_id_t
#define sampler_t __msl_ty_sampler_t
#define ndrange_t __msl_ty_ndrange_t
#define METAL_FUNC inline __attribute__((__always_inline__))
#define METAL_INTERNAL static inline __attribute__((__always_inline__))
#define METAL_CONST
#define METAL_VALID_LOAD_STORE
// functions, and members or templates, that must vanish into their callers
#define __MSL_AI static inline __attribute__((__always_inline__))
#define __MSL_AIM inline __attribute__((__always_inline__))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef __bf16 bfloat;
