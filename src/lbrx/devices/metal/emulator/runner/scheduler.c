// The order in which the threads of a threadgroup run, simdgroup operations, and barriers.
#include "runner.h"

parameters *request;
group_state group;
gpu_thread *threads, *current;
simdgroup *simdgroups;
int thread_count, simdgroup_count;
static uint64_t random_state;

static uint32_t random_number(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 16);
}

void scheduler_begin(void) { random_state = request->seed * 2862933555777941757ull + 88172645463325252ull; }

static void make_order(int *order, int count) {
  for (int i = 0; i < count; i++) order[i] = request->order == REVERSE ? count - 1 - i : i;
  if (request->order != RANDOM) return;
  for (int i = count - 1; i > 0; i--) {
    int j = random_number() % (i + 1), swapped = order[i];
    order[i] = order[j];
    order[j] = swapped;
  }
}

// All lanes are blocked: let those go on that wait at the lowest call site, as a GPU does after a branch.
static int release_lanes(simdgroup *self, gpu_thread *first) {
  uintptr_t site = 0;
  uint32_t chosen = 0, others = 0;
  for (int i = 0; i < self->lanes; i++) {
    gpu_thread *thread = first + i;
    if (thread->state != AT_SIMDGROUP_OPERATION) continue;
    if (!chosen || thread->call_site < site) {
      others |= chosen;
      chosen = 1u << i;
      site = thread->call_site;
    } else if (thread->call_site == site) chosen |= 1u << i;
    else others |= 1u << i;
  }
  if (!chosen) return 0;
  request->simdgroup_operations++;
  if (request->strict_simdgroups && others)
    fail(DIVERGENCE, "divergent simdgroup operation in simdgroup %u: lanes %#x are at one call, lanes %#x at another",
         first->simdgroup, chosen, others);
  self->shared.mask = chosen;
  self->shared.done = 0;
  self->runnable = 0;
  for (int i = 0; i < self->lanes; i++) {
    if (!(chosen >> i & 1)) continue;
    gpu_thread *thread = first + i;
    self->shared.slot[i] = thread->slot[thread->parity];
    thread->parity ^= 1;
    thread->state = RUNNING;
    thread->operations++;
  }
  for (int i = 0; i < self->lanes; i++)
    if (chosen >> self->schedule[i] & 1) self->runnable |= 1u << i;
  return 1;
}

// The lane of a simdgroup that runs next, or 0 if all wait at a barrier or are finished.
gpu_thread *next_lane(uint32_t index) {
  simdgroup *self = &simdgroups[index];
  gpu_thread *first = threads + index * LANES;
  if (!self->runnable && !release_lanes(self, first)) return 0;
  int place = __builtin_ctz(self->runnable);
  self->runnable &= self->runnable - 1;
  return first + self->schedule[place];
}

static void wait_for_others(enum thread_state state, uintptr_t call_site) {
  gpu_thread *self = current;
  self->state = state;
  self->call_site = call_site;
  gpu_thread *next = next_lane(self->simdgroup);
  if (next == self) self->state = RUNNING;
  else if (next) fiber_resume(next);
  else fiber_leave();
}

EXPORT gpu_thread *__msl_self(void) { return current; }
EXPORT void *__msl_slot(void) { return current->slot[current->parity]; }
EXPORT __attribute__((noinline)) exchange *__msl_simd_sync(void) {
  wait_for_others(AT_SIMDGROUP_OPERATION, (uintptr_t)__builtin_return_address(0));
  return &simdgroups[current->simdgroup].shared;
}
EXPORT __attribute__((noinline)) void __msl_tg_barrier(int flags) {
  (void)flags;
  wait_for_others(AT_BARRIER, (uintptr_t)__builtin_return_address(0));
}
EXPORT void __msl_trap(const char *what) { fail(TRAP, "%s", what); }

static void start_threads(void) {
  uint32_t width = group.threads_per_threadgroup.v[0], height = group.threads_per_threadgroup.v[1];
  for (int i = 0; i < thread_count; i++) {
    gpu_thread *thread = threads + i;
    thread->state = NOT_STARTED;
    thread->parity = 0;
    thread->operations = 0;
    thread->group = &group;
    thread->position_in_threadgroup = (uint3){{i % width, i / width % height, i / width / height}};
    for (int d = 0; d < 3; d++)
      thread->position_in_grid.v[d] =
          group.threadgroup_position.v[d] * request->threadgroup[d] + thread->position_in_threadgroup.v[d];
    thread->index = i;
    thread->lane = i % LANES;
    thread->simdgroup = i / LANES;
  }
  for (int g = 0; g < simdgroup_count; g++) {
    simdgroup *self = &simdgroups[g];
    int order[LANES], rest = thread_count - g * LANES;
    self->lanes = rest < LANES ? rest : LANES;
    self->live = self->runnable = self->lanes == LANES ? ~0u : (1u << self->lanes) - 1;
    make_order(order, self->lanes);
    for (int i = 0; i < self->lanes; i++) self->schedule[i] = order[i];
  }
}

// Every thread is finished or waits at a barrier: check that it is the same one, and open it. 0 if all are finished.
static int open_barrier(void) {
  gpu_thread *waiting = 0;
  int finished = 0;
  for (int i = 0; i < thread_count; i++) {
    gpu_thread *thread = threads + i;
    if (thread->state == FINISHED) {
      finished++;
      continue;
    }
    if (!waiting) waiting = thread;
    else if (thread->call_site != waiting->call_site) {
      current = thread;
      fail(BARRIER, "divergent threadgroup_barrier: thread %d waits at another barrier than thread %u", i,
           waiting->index);
    }
  }
  if (!waiting) return 0;
  if (finished && request->strict_barriers) {
    current = waiting;
    fail(BARRIER, "divergent threadgroup_barrier: %d of %d threads returned without reaching it", finished,
         thread_count);
  }
  request->barriers++;
  findings_barrier();
  for (int i = 0; i < thread_count; i++)
    if (threads[i].state == AT_BARRIER) threads[i].state = RUNNING;
  for (int g = 0; g < simdgroup_count; g++) {
    simdgroup *self = &simdgroups[g];
    self->runnable = 0;
    for (int i = 0; i < self->lanes; i++)
      if (threads[g * LANES + self->schedule[i]].state == RUNNING) self->runnable |= 1u << i;
  }
  return 1;
}

void run_threadgroup(void) {
  start_threads();
  do {
    int order[MAX_THREADS / LANES];
    make_order(order, simdgroup_count);
    for (int i = 0; i < simdgroup_count; i++) {
      gpu_thread *thread = next_lane(order[i]);
      if (thread) fiber_resume(thread);
    }
  } while (open_barrier());
}
