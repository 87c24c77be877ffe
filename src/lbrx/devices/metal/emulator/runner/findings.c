// Races and reads of uninitialised threadgroup memory. Kernels compiled with -fsanitize=thread announce every access;
// the runtime behind those calls is ours and looks at threadgroup memory and at the bound buffers.
#include "runner.h"

#include <string.h>
#include <sys/mman.h>

typedef struct {  // the last write and the last read of a byte
  uint32_t write_epoch, read_epoch;
  uint32_t write_group, read_group;
  uint16_t write_thread, write_operation, read_thread, read_operation;
  uint8_t many_readers;     // simdgroups of this threadgroup read it since the last barrier
  uint8_t foreign_readers;  // several threadgroups read it
} shadow;

#define MAX_FINDINGS 16
static finding found[MAX_FINDINGS];
static int found_count, atomic_depth;
static shadow *arena_shadow, *range_shadow[MAX_BUFFERS];
static size_t range_shadow_bytes[MAX_BUFFERS];
static uint32_t epoch, first_epoch_of_group, first_epoch_of_dispatch, group_number;

static shadow *map_shadow(size_t bytes) {
  void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(NO_MEMORY, "no memory for the race detector");
  return memory;
}

void findings_begin(void) {
  found_count = 0;
  atomic_depth = 0;
  group_number = 0;
  first_epoch_of_dispatch = ++epoch;
  for (int i = 0; i < MAX_BUFFERS; i++) {
    if (range_shadow[i]) munmap(range_shadow[i], range_shadow_bytes[i]);
    range_shadow[i] = 0;
  }
  if (!request->instrumented) return;
  if (!arena_shadow) arena_shadow = map_shadow(sizeof(shadow) * arena_bytes());
  for (uint32_t i = 0; i < request->range_count; i++) {
    range_shadow_bytes[i] = sizeof(shadow) * (request->ranges[i].bytes + 1);
    range_shadow[i] = map_shadow(range_shadow_bytes[i]);
  }
}

void findings_new_threadgroup(void) {
  first_epoch_of_group = ++epoch;
  group_number++;
}
void findings_barrier(void) { epoch++; }
int findings_count(void) { return found_count; }

EXPORT int msl_findings(finding *out, int most) {
  int count = found_count < MAX_FINDINGS ? found_count : MAX_FINDINGS;
  memcpy(out, found, sizeof(finding) * (count < most ? count : most));
  return count;
}

static void report(enum finding_kind kind, int place, uint64_t offset, uint32_t other_thread, uint32_t other_group) {
  if (found_count < MAX_FINDINGS) {
    finding *entry = &found[found_count];
    *entry = (finding){.kind = kind,
                       .place = place,
                       .offset = offset,
                       .other_thread = other_thread,
                       .thread = current->index,
                       .other_threadgroup = other_group};
    memcpy(entry->threadgroup, &group.threadgroup_position, sizeof entry->threadgroup);
  }
  found_count++;
}

// Accesses of one thread are ordered; so are those of a simdgroup around a simdgroup operation, and those of a
// threadgroup around a barrier. Nothing orders two threadgroups.
static int unordered(uint32_t then, uint32_t other_group, uint32_t other_thread, uint16_t other_operation) {
  if (other_group != group_number) return 1;
  if (then != epoch || other_thread == current->index) return 0;
  return other_thread / LANES != current->simdgroup || other_operation == (uint16_t)current->operations;
}

static int check_byte(shadow *byte, int is_write, int place, uint64_t offset) {
  uint32_t oldest = place < 0 ? first_epoch_of_group : first_epoch_of_dispatch;
  int written = byte->write_epoch >= oldest, read = byte->read_epoch >= oldest;
  if (place < 0 && !is_write && !written) {
    report(UNINITIALISED, place, offset, 0, 0);
    return 0;
  }
  if (written && unordered(byte->write_epoch, byte->write_group, byte->write_thread, byte->write_operation)) {
    report(is_write ? WRITE_WRITE : WRITE_READ, place, offset, byte->write_thread, byte->write_group - 1);
    return 0;
  }
  if (!is_write) {
    int same_epoch = read && byte->read_epoch == epoch;
    byte->many_readers = same_epoch && (byte->many_readers || byte->read_thread / LANES != current->simdgroup);
    byte->foreign_readers = read && (byte->foreign_readers || byte->read_group != group_number);
    byte->read_epoch = epoch;
    byte->read_group = group_number;
    byte->read_thread = current->index;
    byte->read_operation = (uint16_t)current->operations;
    return 1;
  }
  if (read && (byte->foreign_readers || (byte->many_readers && byte->read_epoch == epoch) ||
               unordered(byte->read_epoch, byte->read_group, byte->read_thread, byte->read_operation))) {
    report(READ_WRITE, place, offset, byte->read_thread, byte->read_group - 1);
    return 0;
  }
  byte->write_epoch = epoch;
  byte->write_group = group_number;
  byte->write_thread = current->index;
  byte->write_operation = (uint16_t)current->operations;
  return 1;
}

static void access_memory(const void *pointer, size_t bytes, int is_write) {
  if (!current || atomic_depth || !request->instrumented) return;
  uintptr_t address = (uintptr_t)pointer;
  uint64_t offset = 0;
  shadow *first = 0;
  int region = region_of(address, &offset), place = -1 - region;
  if (region >= 0) first = arena_shadow + (address - (uintptr_t)arena);
  for (uint32_t i = 0; !first && i < request->range_count; i++) {
    if (address - request->ranges[i].address >= request->ranges[i].bytes) continue;
    offset = address - request->ranges[i].address;
    place = (int)i;
    first = range_shadow[i] + offset;
    if (bytes > request->ranges[i].bytes - offset) bytes = request->ranges[i].bytes - offset;
  }
  if (!first) return;
  for (size_t i = 0; i < bytes; i++)
    if (!check_byte(first + i, is_write, place, offset + i)) return;
}

EXPORT void __msl_atomic(int change) { atomic_depth += change; }

#define ACCESSES(n)                                                          \
  EXPORT void __tsan_read##n(void *p) { access_memory(p, n, 0); }            \
  EXPORT void __tsan_write##n(void *p) { access_memory(p, n, 1); }           \
  EXPORT void __tsan_unaligned_read##n(void *p) { access_memory(p, n, 0); }  \
  EXPORT void __tsan_unaligned_write##n(void *p) { access_memory(p, n, 1); } \
  EXPORT void __tsan_volatile_read##n(void *p) { access_memory(p, n, 0); }   \
  EXPORT void __tsan_volatile_write##n(void *p) { access_memory(p, n, 1); }  \
  EXPORT void __tsan_read_write##n(void *p) {                                \
    access_memory(p, n, 0);                                                  \
    access_memory(p, n, 1);                                                  \
  }                                                                          \
  EXPORT void __tsan_unaligned_read_write##n(void *p) {                      \
    access_memory(p, n, 0);                                                  \
    access_memory(p, n, 1);                                                  \
  }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
EXPORT void __tsan_read_range(void *p, size_t n) { access_memory(p, n, 0); }
EXPORT void __tsan_write_range(void *p, size_t n) { access_memory(p, n, 1); }
EXPORT void *__tsan_memcpy(void *to, const void *from, size_t n) {
  access_memory(from, n, 0);
  access_memory(to, n, 1);
  return memcpy(to, from, n);
}
EXPORT void *__tsan_memmove(void *to, const void *from, size_t n) {
  access_memory(from, n, 0);
  access_memory(to, n, 1);
  return memmove(to, from, n);
}
EXPORT void *__tsan_memset(void *to, int value, size_t n) {
  access_memory(to, n, 1);
  return memset(to, value, n);
}
EXPORT void __tsan_init(void) {}
EXPORT void __tsan_func_entry(void *p) { (void)p; }
EXPORT void __tsan_func_exit(void) {}
EXPORT void __tsan_vptr_update(void **p, void *v) { (void)p, (void)v; }
EXPORT void __tsan_vptr_read(void **p) { (void)p; }
EXPORT void __tsan_ignore_thread_begin(void) {}
EXPORT void __tsan_ignore_thread_end(void) {}
