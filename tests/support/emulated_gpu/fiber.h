// A thread of control that runs until it hands back: how the threads of an emulated block take turns on one thread of
// the host. Threads: belongs to the thread that resumes it. Lifetime: owns its stack; a fiber is resumed until it is
// done before it goes. Errors: memory for a stack is a DSPACK_CHECK.
#pragma once

#include <cstddef>
#include <functional>

namespace dspack::gpu {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes `body` what the next `resume` begins with; it is borrowed until the fiber is done. Precondition: is_done().
  void start(const std::function<void()>& body);
  /// Goes on with the body until it yields or ends.
  void resume();
  /// Within the body: goes on with whoever called `resume`.
  void yield();
  /// Within the body: resumes `next` in place of this fiber; `next` then yields to this fiber's caller. Precondition:
  /// `next` is not done.
  void yield_to(Fiber& next);
#if defined(__SANITIZE_ADDRESS__)
  static constexpr bool kSwitchesDirectly = false;  // the sanitizer follows switches with a caller only
#else
  static constexpr bool kSwitchesDirectly = true;
#endif
  [[nodiscard]] bool is_done() const {
    return is_done_;
  }

 private:
  static void run(Fiber* fiber);
  void leave(bool for_good);

  std::byte* stack_ = nullptr;
  void* own_place_ = nullptr;     // stack pointer while it rests
  void* caller_place_ = nullptr;  // of whoever resumed it
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
  void* fake_stack_ = nullptr;  // of the address sanitizer
  const std::function<void()>* body_ = nullptr;
  bool is_done_ = true;
};

}  // namespace dspack::gpu
