// The runner executes one threadgroup at a time; every GPU thread is a fiber on a stack of its own.
// Functions named msl_* are called from Python (ctypes), those named __msl_* from compiled kernels.
#pragma once
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define LANES 32                  // threads of a simdgroup
#define MAX_THREADS 1024          // threads of a threadgroup
#define MAX_BUFFERS 31            // buffer and threadgroup indices of Metal
#define REGION_BYTES (64 * 1024)  // the largest threadgroup variable
#define REGIONS 48                // threadgroup variables per kernel

typedef struct {
  uint32_t v[3];
} uint3;

// What the lanes that take part in one simdgroup operation share.
typedef struct {
  uint32_t mask;  // lanes that take part
  uint32_t done;  // set by the first lane that computed `result`
  void *slot[LANES];
  uint8_t result[2048] __attribute__((aligned(64)));
} exchange;

typedef struct {  // constants of a threadgroup; read by kernels
  uint3 threadgroup_position, threads_per_grid, threads_per_threadgroup, threadgroups_per_grid;
  uint3 dispatch_threads_per_threadgroup;
  uint32_t simdgroups, threads;
  void **buffers;
  void **threadgroup_arguments;
} group_state;

enum thread_state { NOT_STARTED, RUNNING, AT_SIMDGROUP_OPERATION, AT_BARRIER, FINISHED };

typedef struct {
  // read by kernels
  uint3 position_in_grid, position_in_threadgroup;
  uint32_t index, lane, simdgroup, unused;
  group_state *group;
  // the scheduler's own
  void *stack_pointer, *stack;
  uintptr_t call_site;
  enum thread_state state;
  int parity;           // which of the two operand slots is next
  uint32_t operations;  // simdgroup operations so far: they order memory within a simdgroup
  uint8_t slot[2][256] __attribute__((aligned(64)));
} gpu_thread;

typedef struct {
  exchange shared;
  uint32_t runnable, live;  // runnable: bits in schedule order; live: bits by lane
  int lanes;
  uint8_t schedule[LANES];
} simdgroup;

enum order { FORWARD, REVERSE, RANDOM };
enum outcome { FINE, BAD_ARGUMENT, BARRIER, MEMORY_FAULT, THREADGROUP_MEMORY, TRAP, DIVERGENCE, TIMEOUT, NO_MEMORY };

typedef struct {  // a buffer that accesses are checked in when a kernel is instrumented
  uintptr_t address;
  uint64_t bytes;
} memory_range;

typedef struct {
  uint32_t grid[3];  // threads if `grid_is_threads`, else threadgroups
  uint32_t threadgroup[3];
  int32_t grid_is_threads, order, strict_barriers, strict_simdgroups, instrumented, flush_to_zero;
  uint32_t threadgroup_limit_bytes, timeout_ms;
  uint64_t seed;
  uint32_t argument_count, argument_bytes[MAX_BUFFERS];
  uint32_t range_count;
  memory_range ranges[MAX_BUFFERS];
  // results
  uint64_t threads, switches, simdgroup_operations, barriers, nanoseconds;
  uint32_t threadgroup_bytes, fault_threadgroup[3], fault_thread[3];
  int32_t fault_signal, finding_count;
  uint64_t fault_address;
} parameters;

enum finding_kind { WRITE_WRITE, WRITE_READ, READ_WRITE, UNINITIALISED };

typedef struct {        // an access of an instrumented kernel that is not ordered, or reads what was never written
  int32_t kind, place;  // place: index into ranges, or -1 - region for threadgroup memory
  uint64_t offset;      // bytes from the start of the buffer or variable
  uint32_t other_thread, thread, other_threadgroup, threadgroup[3];
} finding;

extern parameters *request;
extern group_state group;
extern gpu_thread *threads;
extern simdgroup *simdgroups;
extern gpu_thread *current;
extern int thread_count, simdgroup_count;
extern sigjmp_buf escape;
extern uint64_t switches;

size_t page_bytes(void);
uint64_t now_nanoseconds(void);
__attribute__((noreturn)) void fail(enum outcome outcome, const char *format, ...);

// fibers.c
void fibers_begin(void (*entry)(gpu_thread *));
void fiber_resume(gpu_thread *thread);
void fiber_leave(void);

// scheduler.c
void scheduler_begin(void);
void run_threadgroup(void);
gpu_thread *next_lane(uint32_t index);

// memory.c
void threadgroup_memory_begin(void);
void *threadgroup_allocate(size_t bytes, size_t alignment, int32_t variable);
int region_of(uintptr_t address, uint64_t *offset);
extern char *arena;
size_t arena_bytes(void);

// findings.c
void findings_begin(void);
void findings_new_threadgroup(void);
void findings_barrier(void);
int findings_count(void);

// faults.c
void faults_begin(void);
void faults_end(void);
extern int fault_signal;
extern uintptr_t fault_address;
