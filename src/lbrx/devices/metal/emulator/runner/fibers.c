// Fibers: a hand-written switch of stacks (5-20 ns) and a store of stacks that dispatches share.
#include "runner.h"

#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES (512 * 1024)

uint64_t switches;
static void *main_stack_pointer;
static void (*kernel_entry)(gpu_thread *);
static void *all_stacks[MAX_THREADS], *free_stacks[MAX_THREADS];
static int stack_count, free_count;

void msl_switch(void **save, void *load);
#ifdef __APPLE__
#define SYMBOL(name) "_" name
#define HIDDEN ".private_extern "
#else
#define SYMBOL(name) name
#define HIDDEN ".hidden "
#endif
#define FUNCTION(name) ".text\n.globl " SYMBOL(name) "\n" HIDDEN SYMBOL(name) "\n" SYMBOL(name) ":\n"

#if defined(__x86_64__)
__asm__(FUNCTION("msl_switch")
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n");

static void *first_stack_pointer(void *top, void (*function)(void)) {
  uintptr_t *words = (uintptr_t *)((uintptr_t)top & ~(uintptr_t)63);
  *--words = 0;  // a return address that aligns the stack as a call would
  *--words = (uintptr_t)function;
  for (int i = 0; i < 6; i++) *--words = 0;
  return words;
}
#elif defined(__aarch64__)
__asm__(FUNCTION("msl_switch")
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x2,sp\nstr x2,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n");

static void *first_stack_pointer(void *top, void (*function)(void)) {
  uintptr_t *words = (uintptr_t *)(((uintptr_t)top & ~(uintptr_t)63) - 160);
  memset(words, 0, 160);
  words[11] = (uintptr_t)function;  // the saved x30
  return words;
}
#else
#error "the emulator runs on x86-64 and on arm64"
#endif

static void *new_stack(void) {
  char *base = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail(NO_MEMORY, "no memory for the stacks of %d threads", thread_count);
  mprotect(base, 4 * page_bytes(), PROT_NONE);
  // Without different offsets the hot lines of all stacks would fall into the same sets of the cache.
  char *top = base + STACK_BYTES - 64 - (stack_count % 61) * 1088;
  all_stacks[stack_count++] = top;
  return top;
}

void fibers_begin(void (*entry)(gpu_thread *)) {
  kernel_entry = entry;
  memcpy(free_stacks, all_stacks, sizeof all_stacks);
  free_count = stack_count;
}

static void fiber_main(void) {
  for (;;) {
    gpu_thread *self = current;
    void *stack = self->stack;
    kernel_entry(self);
    self = current;
    self->state = FINISHED;
    simdgroups[self->simdgroup].live &= ~(1u << self->lane);
    request->threads++;
    gpu_thread *next = next_lane(self->simdgroup);
    if (next && next->state == NOT_STARTED) {  // it takes over this stack, without a switch
      next->stack = stack;
      next->state = RUNNING;
      current = next;
      continue;
    }
    free_stacks[free_count++] = stack;
    if (next) fiber_resume(next);
    else fiber_leave();
    __builtin_unreachable();
  }
}

// From the current fiber, or from the scheduler if there is none, to a thread.
void fiber_resume(gpu_thread *thread) {
  void **save = current ? &current->stack_pointer : &main_stack_pointer;
  if (thread->state == NOT_STARTED) {
    thread->stack = free_count ? free_stacks[--free_count] : new_stack();
    thread->stack_pointer = first_stack_pointer(thread->stack, fiber_main);
  }
  thread->state = RUNNING;
  current = thread;
  switches++;
  msl_switch(save, thread->stack_pointer);
}

// From the current fiber back to the scheduler.
void fiber_leave(void) {
  gpu_thread *self = current;
  current = 0;
  switches++;
  msl_switch(&self->stack_pointer, main_stack_pointer);
}
