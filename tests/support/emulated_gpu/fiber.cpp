#include "tests/support/emulated_gpu/fiber.h"

#include <sys/mman.h>

#include <cstdint>

#include "format/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "fibers are written for x86-64; tests/CMakeLists.txt leaves the emulated GPU out elsewhere"
#endif

// Saves what a function must keep (System V ABI) on the stack, the stack pointer in *from, and goes on at `to`.
extern "C" void dspack_switch_stack(void** from, void* to);
asm(R"(
.text
.globl dspack_switch_stack
.type dspack_switch_stack,@function
dspack_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dspack_switch_stack,.-dspack_switch_stack
)");

namespace dspack::gpu {
namespace {

// Enough for a kernel whose register arrays lie on the stack, with the red zones of a sanitizer.
constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kGuardBytes = 4096;

thread_local Fiber* t_starting = nullptr;

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  DSPACK_CHECK(memory != MAP_FAILED, "no memory for a fiber's stack");
  stack_ = static_cast<std::byte*>(memory);
  DSPACK_CHECK(mprotect(stack_, kGuardBytes, PROT_NONE) == 0, "no guard page below a stack");
}

Fiber::~Fiber() {
  munmap(stack_, kStackBytes);
}

void Fiber::start(const std::function<void()>& body) {
  DSPACK_CHECK(is_done_, "the fiber is still at work");
  body_ = &body;
  is_done_ = false;
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes);
  // The function begins as if it had been called: the stack is 8 bytes off a multiple of 16.
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(+[] { run(t_starting); });
  for (int saved = 0; saved < 6; ++saved)
    *--top = 0;
  own_place_ = top;
  fake_stack_ = nullptr;
}

void Fiber::run(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
#endif
  (*fiber->body_)();
  fiber->is_done_ = true;
  fiber->leave(true);
}

void Fiber::resume() {
  DSPACK_CHECK(!is_done_, "the fiber has ended");
  t_starting = this;
#if defined(__SANITIZE_ADDRESS__)
  void* mine = nullptr;
  __sanitizer_start_switch_fiber(&mine, stack_, kStackBytes);
#endif
  dspack_switch_stack(&caller_place_, own_place_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
#endif
}

void Fiber::yield() {
  leave(false);
}

void Fiber::yield_to(Fiber& next) {
  DSPACK_CHECK(kSwitchesDirectly && !next.is_done_, "a switch to a fiber that has ended, or that a sanitizer misses");
  next.caller_place_ = caller_place_;
  t_starting = &next;
  dspack_switch_stack(&own_place_, next.own_place_);
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, caller_stack_, caller_stack_bytes_);
#endif
  dspack_switch_stack(&own_place_, caller_place_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

}  // namespace dspack::gpu
