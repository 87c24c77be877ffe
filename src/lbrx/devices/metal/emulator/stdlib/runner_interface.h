// What the runner (runner/*.c) offers to a kernel; the layouts are those of runner/runner.h.
struct __msl_rec {
  uint mask, done;
  __generic uchar *ptr[32];
  __attribute__((aligned(64))) uchar result[2048];
};
struct __msl_shared {
  uint tg_pos[3], threads_per_grid[3], threads_per_tg[3], tgs_per_grid[3], disp_threads_per_tg[3];
  uint nsg, nthreads;
  __generic uchar * __generic * bufs;
  __generic uchar * __generic * tgm;
};
struct __msl_thread {
  uint pos_grid[3], pos_tg[3], idx_tg, lane, sg, pad;
  __generic __msl_shared *sh;
};
struct __msl_tgkey {
  uint epoch, pad;
  __generic uchar *p;
};
#ifdef __APPLE__
#define __MSL_SYMBOL "_"
#else
#define __MSL_SYMBOL ""
#endif
extern "C" {
__generic __msl_thread *__msl_self(void);
__generic uchar *__msl_slot(void);
__generic __msl_rec *__msl_simd_sync(void) __attribute__((convergent, nomerge));
void __msl_tg_barrier(int) __attribute__((convergent, nomerge));
__generic uchar *__msl_tg_var(__generic __msl_tgkey *, size_t, size_t);
int __msl_fc_defined(int);
long __msl_fc_int(int);
float __msl_fc_f32(int);
void __msl_trap(__generic const char *);
void __msl_atomic(int);
// the C library's functions, under names of our own
#define __MSL_C1(name) float __m_##name(float) __asm__(__MSL_SYMBOL #name "f");
#define __MSL_C2(name) float __m_##name(float, float) __asm__(__MSL_SYMBOL #name "f");
__MSL_C1(sin)
__MSL_C1(cos) __MSL_C1(tan) __MSL_C1(asin) __MSL_C1(acos) __MSL_C1(atan) __MSL_C1(sinh) __MSL_C1(cosh) __MSL_C1(tanh)
    __MSL_C1(asinh) __MSL_C1(acosh) __MSL_C1(atanh) __MSL_C1(exp) __MSL_C1(exp2) __MSL_C1(log) __MSL_C1(log2)
        __MSL_C1(log10) __MSL_C2(atan2) __MSL_C2(pow) __MSL_C2(fmod)
            __MSL_C2(nextafter) float __m_ldexp(float, int) __asm__(__MSL_SYMBOL "ldexpf");
}
