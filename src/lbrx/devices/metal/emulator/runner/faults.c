// From a fault or an endless loop inside a kernel back to msl_dispatch, with the place it happened.
#include "runner.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALTERNATE_STACK_BYTES 65536

sigjmp_buf escape;
int fault_signal;
uintptr_t fault_address;
static char message[512];
static volatile int inside_kernel, timed_out, watching;
static pthread_t kernel_thread, watchdog;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGURG};
#define SIGNALS (sizeof signals / sizeof *signals)
static struct sigaction previous[SIGNALS];
static stack_t previous_stack;

uint64_t now_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fail(enum outcome outcome, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  siglongjmp(escape, outcome);
}
EXPORT const char *msl_message(void) { return message; }

// Called by code that clang's -fsanitize-minimal-runtime inserts.
EXPORT void __ubsan_handle_out_of_bounds_minimal_abort(void) { fail(TRAP, "array index out of bounds"); }
EXPORT void __ubsan_handle_type_mismatch_minimal_abort(void) { fail(TRAP, "misaligned or null pointer access"); }

EXPORT void __ubsan_handle_divrem_overflow_minimal_abort(void) { fail(TRAP, "integer division by zero"); }

static void on_signal(int number, siginfo_t *information, void *context) {
  (void)context;
  if (!inside_kernel || !pthread_equal(pthread_self(), kernel_thread)) {
    if (number != SIGURG) signal(number, SIG_DFL);  // not ours: the access is repeated and takes its course
    return;
  }
  if (number == SIGURG) {
    if (timed_out)
      fail(TIMEOUT, "the kernel did not finish in %u ms (an endless loop, or threads that wait for each other)",
           request->timeout_ms);
    return;
  }
  fault_address = (uintptr_t)information->si_addr;
  fault_signal = number;
  siglongjmp(escape, MEMORY_FAULT);
}

static void *watch(void *unused) {
  (void)unused;
  struct timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += request->timeout_ms / 1000;
  deadline.tv_nsec += (long)(request->timeout_ms % 1000) * 1000000;
  if (deadline.tv_nsec >= 1000000000) deadline.tv_sec++, deadline.tv_nsec -= 1000000000;
  pthread_mutex_lock(&lock);
  while (watching && pthread_cond_timedwait(&finished, &lock, &deadline) != ETIMEDOUT) {}
  if (watching) {
    timed_out = 1;
    pthread_kill(kernel_thread, SIGURG);
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

void faults_begin(void) {
  static char *alternate_stack;
  if (!alternate_stack) alternate_stack = malloc(ALTERNATE_STACK_BYTES);
  stack_t stack = {.ss_sp = alternate_stack, .ss_size = ALTERNATE_STACK_BYTES};
  sigaltstack(&stack, &previous_stack);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < SIGNALS; i++) sigaction(signals[i], &action, &previous[i]);
  message[0] = 0;
  fault_signal = 0;
  fault_address = 0;
  timed_out = 0;
  kernel_thread = pthread_self();
  inside_kernel = 1;
  watching = request->timeout_ms > 0;  // before the thread begins, which reads it
  if (watching && pthread_create(&watchdog, 0, watch, 0) != 0) watching = 0;
}

void faults_end(void) {
  inside_kernel = 0;
  if (request->timeout_ms && watching) {
    pthread_mutex_lock(&lock);
    watching = 0;
    pthread_cond_signal(&finished);
    pthread_mutex_unlock(&lock);
    pthread_join(watchdog, 0);
  }
  for (size_t i = 0; i < SIGNALS; i++) sigaction(signals[i], &previous[i], 0);
  if (previous_stack.ss_flags & SS_DISABLE) previous_stack.ss_size = ALTERNATE_STACK_BYTES;  // macOS checks it
  sigaltstack(&previous_stack, 0);
}
