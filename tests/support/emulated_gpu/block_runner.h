// Runs the threads of one block as fibers. See emulator.h for what it is strict about.
// Threads: belongs to one thread. Lifetime: one runner serves many blocks. Errors: DSPACK_CHECK for what kernels do
// wrong.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/emulated_gpu/emulator.h"
#include "tests/support/emulated_gpu/fiber.h"

namespace dspack::gpu {

class BlockRunner {
 public:
  explicit BlockRunner(uint64_t seed) : random_(seed) {}

  /// `place`: of the block's first thread.
  void run(const ThreadPlace& place, const std::function<void()>& body);

  [[nodiscard]] const ThreadPlace& current_place() const { return current_->place; }
  void block_barrier(const std::source_location& at);
  const ExchangeWords* exchange(const ExchangeWords& mine, const std::source_location& at);
  void start_copy(void* shared, const void* global, bool valid);
  void end_copy_group();
  void wait_for_copies(size_t pending_groups);

 private:
  enum class Waits { no, block, warp };
  struct Copy {
    void* to;
    const void* from;
    bool valid;
  };
  struct Thread {
    Fiber fiber;
    ThreadPlace place;
    Waits waits = Waits::no;
    std::source_location at;  // of the barrier that it waits for
    unsigned exchanges = 0;
    std::vector<Copy> open_group;
    std::deque<std::vector<Copy>> groups;
  };
  struct Warp {
    ExchangeWords words[2][32];  // by turns: a lane may be one exchange ahead of those that still read
    unsigned waiting = 0;
  };

  void wait(Waits what, const std::source_location& at);
  void release_block();
  void release_warp(unsigned warp);
  static void carry_out(const Copy& copy);

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;
  Thread* current_ = nullptr;
  unsigned count_ = 0;    // threads of this block
  unsigned waiting_ = 0;  // for the block's barrier
  unsigned done_ = 0;
};

}  // namespace dspack::gpu
