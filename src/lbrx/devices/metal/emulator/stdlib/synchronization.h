// Barriers, fences, memory flags.
namespace metal {
enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
__MSL_AI constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
__MSL_AI constexpr mem_flags operator&(mem_flags a, mem_flags b) { return (mem_flags)((int)a & (int)b); }
enum memory_order {
  memory_order_relaxed = 0,
  memory_order_acquire = 2,
  memory_order_release = 3,
  memory_order_acq_rel = 4,
  memory_order_seq_cst = 5
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
typedef mem_flags __mf;
__MSL_AI void threadgroup_barrier(mem_flags f) { __msl_tg_barrier((int)f); }
__MSL_AI void threadgroup_barrier(mem_flags f, memory_order, thread_scope) { __msl_tg_barrier((int)f); }
__MSL_AI void simdgroup_barrier(mem_flags) { __msl_simd_sync(); }
__MSL_AI void simdgroup_barrier(mem_flags, memory_order, thread_scope) { __msl_simd_sync(); }
__MSL_AI void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}
}  // namespace metal
