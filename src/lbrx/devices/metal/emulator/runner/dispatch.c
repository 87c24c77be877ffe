// One dispatch: all threadgroups of a grid, one after the other. And function constants.
#include "runner.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
  int32_t index, unused;
  int64_t integer;
  double floating;
} function_constant;
static const function_constant *constants;
static int constant_count;

// Must be called before a library of kernels is loaded: its program-scope constants are initialised then.
EXPORT void msl_set_constants(const function_constant *values, int count) {
  constants = values;
  constant_count = count;
}
static const function_constant *find_constant(int index) {
  for (int i = 0; i < constant_count; i++)
    if (constants[i].index == index) return &constants[i];
  return 0;
}
EXPORT int __msl_fc_defined(int index) { return find_constant(index) != 0; }
EXPORT int64_t __msl_fc_int(int index) {
  const function_constant *found = find_constant(index);
  return found ? found->integer : 0;
}
EXPORT float __msl_fc_f32(int index) {
  const function_constant *found = find_constant(index);
  return found ? (float)found->floating : 0;
}

#if defined(__x86_64__)
// clang calls this to round float to bfloat; the result is in the low 16 bits of the register.
EXPORT float __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if (value != value) bits = (bits >> 16) | 0x40;
  else bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  memcpy(&value, &bits, 4);
  return value;
}
#endif

// The control word of floating-point arithmetic. Flushing: subnormal operands and results of f32 are zeros.
#if defined(__x86_64__)
#define FLUSH_TO_ZERO 0x8040u  // FTZ and DAZ
typedef unsigned control_word;
static control_word read_control(void) { return __builtin_ia32_stmxcsr(); }
static void write_control(control_word word) { __builtin_ia32_ldmxcsr(word); }
#else
#define FLUSH_TO_ZERO (1ull << 24)  // FZ; FZ16 would flush f16 too
typedef uint64_t control_word;
static control_word read_control(void) {
  control_word word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  return word;
}
static void write_control(control_word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#endif

static void *map_state(size_t bytes) {
  void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (memory == MAP_FAILED) fail(NO_MEMORY, "no memory for the state of threads");
  return memory;
}

static void choose_threadgroup(uint64_t number, const uint32_t count[3]) {
  group.threadgroup_position =
      (uint3){{number % count[0], number / count[0] % count[1], (uint32_t)(number / count[0] / count[1])}};
  thread_count = 1;
  for (int d = 0; d < 3; d++) {
    uint32_t size = request->threadgroup[d], first = group.threadgroup_position.v[d] * size;
    if (request->grid_is_threads && request->grid[d] - first < size) size = request->grid[d] - first;
    group.threads_per_threadgroup.v[d] = size;
    thread_count *= size;
  }
  simdgroup_count = (thread_count + LANES - 1) / LANES;
  group.simdgroups = simdgroup_count;
  group.threads = thread_count;
}

static void run_grid(void (*entry)(gpu_thread *), void **buffers) {
  void *arguments[MAX_BUFFERS] = {0};
  uint32_t count[3];
  for (int d = 0; d < 3; d++) {
    uint32_t size = request->threadgroup[d], grid = request->grid[d];
    count[d] = request->grid_is_threads ? (grid + size - 1) / size : grid;
    group.threadgroups_per_grid.v[d] = count[d];
    group.threads_per_grid.v[d] = request->grid_is_threads ? grid : grid * size;
    group.dispatch_threads_per_threadgroup.v[d] = size;
  }
  group.buffers = buffers;
  group.threadgroup_arguments = arguments;
  if (!threads) threads = map_state(sizeof(gpu_thread) * MAX_THREADS);
  if (!simdgroups) simdgroups = map_state(sizeof(simdgroup) * (MAX_THREADS / LANES));
  scheduler_begin();
  fibers_begin(entry);
  threadgroup_memory_begin();
  findings_begin();
  uint64_t total = (uint64_t)count[0] * count[1] * count[2];
  for (uint64_t k = 0; k < total && !findings_count(); k++) {
    choose_threadgroup(request->order == REVERSE ? total - 1 - k : k, count);
    threadgroup_memory_begin();
    findings_new_threadgroup();
    for (uint32_t i = 0; i < request->argument_count; i++)
      if (request->argument_bytes[i])
        arguments[i] = threadgroup_allocate(request->argument_bytes[i], 16, -1 - (int32_t)i);
    run_threadgroup();
  }
}

// Runs a kernel over a grid; everything but the arrays behind `buffers` is in the request. Not for two threads at once.
EXPORT int msl_dispatch(void (*entry)(gpu_thread *), void **buffers, parameters *asked) {
  request = asked;
  current = 0;
  switches = 0;
  uint64_t start = now_nanoseconds();
  faults_begin();
  control_word control = read_control();
  if (request->flush_to_zero) write_control(control | FLUSH_TO_ZERO);
  int outcome = sigsetjmp(escape, 1);
  if (outcome == FINE) run_grid(entry, buffers);
  else {
    memset(request->fault_thread, 0xff, sizeof request->fault_thread);
    if (current) memcpy(request->fault_thread, &current->position_in_threadgroup, sizeof request->fault_thread);
    memcpy(request->fault_threadgroup, &group.threadgroup_position, sizeof request->fault_threadgroup);
    request->fault_address = fault_address;
    request->fault_signal = fault_signal;
  }
  write_control(control);
  faults_end();
  current = 0;
  request->switches = switches;
  request->finding_count = findings_count();
  request->nanoseconds = now_nanoseconds() - start;
  return outcome;
}
