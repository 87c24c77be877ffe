// Threadgroup memory and buffers, both ending at pages that cannot be touched.
#include "runner.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POISON 0xff  // NaN in every floating-point type
#define CANARY 0xa5
#define GUARD_BYTES ((size_t)256 << 20)  // of address space, not of memory: even a wild index must not hit anything else

char *arena;
static int regions_used;
static uint32_t used_bytes, generation;
static int32_t region_variable[REGIONS];
static char *region_start[REGIONS];

size_t page_bytes(void) {
  static size_t bytes;
  return bytes ? bytes : (bytes = (size_t)sysconf(_SC_PAGESIZE));
}

static size_t region_stride(void) { return REGION_BYTES + page_bytes(); }
size_t arena_bytes(void) { return REGIONS * region_stride(); }

static char *map_memory(size_t bytes, int protection) {
  char *base = mmap(0, bytes, protection, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? 0 : base;
}

void threadgroup_memory_begin(void) {
  generation++;
  regions_used = 0;
  used_bytes = 0;
  if (arena) return;
  char *base = map_memory(arena_bytes() + 2 * GUARD_BYTES, PROT_NONE);
  if (!base) fail(NO_MEMORY, "no memory for threadgroup memory");
  arena = base + GUARD_BYTES;
  for (int i = 0; i < REGIONS; i++) mprotect(arena + i * region_stride(), REGION_BYTES, PROT_READ | PROT_WRITE);
}

// A variable, or an argument if `variable` is negative, whose end touches a forbidden page.
void *threadgroup_allocate(size_t bytes, size_t alignment, int32_t variable) {
  if (alignment < 16) alignment = 16;
  size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
  if (regions_used >= REGIONS || rounded > REGION_BYTES)
    fail(THREADGROUP_MEMORY, "threadgroup memory of %zu bytes is too large", bytes);
  char *start = arena + regions_used * region_stride() + REGION_BYTES - rounded;
  region_variable[regions_used] = variable;
  region_start[regions_used++] = start;
  size_t before = rounded + 256 <= REGION_BYTES ? 256 : 0;
  memset(start - before, POISON, rounded + before);
  used_bytes += rounded;
  if (used_bytes > request->threadgroup_bytes) request->threadgroup_bytes = used_bytes;
  if (used_bytes > request->threadgroup_limit_bytes)
    fail(THREADGROUP_MEMORY, "the kernel uses %u bytes of threadgroup memory, but the device has %u", used_bytes,
         request->threadgroup_limit_bytes);
  return start;
}

typedef struct {
  uint32_t generation, variable;
  void *start;
} variable_key;

EXPORT void *__msl_tg_var(variable_key *key, size_t bytes, size_t alignment) {
  if (key->generation != generation) {
    key->start = threadgroup_allocate(bytes, alignment, (int32_t)key->variable);
    key->generation = generation;
  }
  return key->start;
}

// The region of an address in the arena, or -1; the offset is counted from the variable's first byte.
int region_of(uintptr_t address, uint64_t *offset) {
  uintptr_t distance = address - (uintptr_t)arena;
  if (!arena || distance >= arena_bytes()) return -1;
  int region = (int)(distance / region_stride());
  if (region >= regions_used) return -1;
  *offset = (uint64_t)(address - (uintptr_t)region_start[region]);
  return region;
}

// Which threadgroup variable an address belongs to: its number, or -1 - index of a kernel argument. 0: none.
EXPORT int msl_locate(uint64_t address, int32_t *variable, int64_t *offset) {
  uint64_t distance = 0;
  int region = region_of((uintptr_t)address, &distance);
  if (region < 0) return 0;
  *variable = region_variable[region];
  *offset = (int64_t)distance;
  return 1;
}
EXPORT int32_t msl_region_variable(int region) { return region_variable[region]; }

// Memory for `capacity` bytes between two forbidden stretches; `base` and `mapped` are for msl_free.
EXPORT void *msl_allocate(size_t capacity, void **base, size_t *mapped) {
  size_t page = page_bytes(), body = (capacity + page - 1) / page * page;
  if (!body) body = page;
  char *start = capacity > SIZE_MAX / 2 ? 0 : map_memory(body + 2 * GUARD_BYTES, PROT_NONE);
  if (!start) return 0;
  if (mprotect(start + GUARD_BYTES, body, PROT_READ | PROT_WRITE)) {
    munmap(start, body + 2 * GUARD_BYTES);
    return 0;
  }
  *base = start;
  *mapped = body + 2 * GUARD_BYTES;
  return start + GUARD_BYTES;
}
EXPORT size_t msl_guard_bytes(void) { return GUARD_BYTES; }
EXPORT void msl_free(void *base, size_t mapped) { munmap(base, mapped); }
EXPORT int msl_protect(void *base, size_t mapped, int read_only) {
  return mprotect((char *)base + GUARD_BYTES, mapped - 2 * GUARD_BYTES,
                  read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}
EXPORT void msl_fill_canary(void *start, size_t bytes) { memset(start, CANARY, bytes); }
EXPORT int msl_canary_intact(const uint8_t *start, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (start[i] != CANARY) return 0;
  return 1;
}

// Read-only poison, for arguments that a function constant turned off.
EXPORT void *msl_unbound(size_t *bytes) {
  static char *page;
  *bytes = 1 << 20;
  if (!page) {
    page = map_memory(*bytes, PROT_READ | PROT_WRITE);
    if (!page) return 0;
    memset(page, POISON, *bytes);
    mprotect(page, *bytes, PROT_READ);
  }
  return page;
}
