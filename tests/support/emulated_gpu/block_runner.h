// Runs the threads of one block as fibers. See emulator.h for what it is strict about.
// Threads: belongs to one thread. Lifetime: one runner serves many blocks, one after the other; what a block borrows
// (body, shared memory) lives until it is done. Errors: DSPACK_CHECK for what kernels do wrong.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/emulated_gpu/emulator.h"
#include "tests/support/emulated_gpu/fiber.h"

namespace dspack::gpu {

/// Numbers for a choice at every step of every thread, where a good generator and a division would take as long as the
/// step. Source: Marsaglia, "Xorshift RNGs" (2003); the reduction: Lemire (2019), without its rejection, so that
/// numbers are even but for 1 in 2^32.
class QuickRandom {
 public:
  explicit QuickRandom(uint64_t seed) : state_(seed | 1U) {}
  [[nodiscard]] uint32_t below(uint32_t end) {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return static_cast<uint32_t>((state_ >> 32U) * end >> 32U);
  }

 private:
  uint64_t state_;
};

class BlockRunner {
 public:
  explicit BlockRunner(uint64_t seed) : random_(seed) {}

  /// `place`: of the block's first thread. Precondition: is_done().
  /// `must_wait`: every thread must wait for the launch before.
  void start(const ThreadPlace& place, const std::function<void()>& body, bool must_wait);
  /// Whether some thread can go on; threads that wait for a count look at it again.
  [[nodiscard]] bool is_ready();
  /// One thread goes on, up to where it waits next. Precondition: is_ready().
  void step();
  [[nodiscard]] bool is_done() const { return done_ == count_; }
  /// What a thread waits for in vain, if nothing can go on. Precondition: not done.
  [[nodiscard]] std::string what_is_missing() const;

  /// From here on other blocks take turns with this one, thread by thread. Until then its threads go on one after the
  /// other, without a detour by whoever calls step().
  void meet_others() { is_alone_ = false; }

  [[nodiscard]] const ThreadPlace& current_place() const { return current_->place; }
  void block_barrier(const std::source_location& at);
  /// Others, of any block, may go on before this thread does.
  void take_turns();
  void wait_for_count(const uint32_t* counter, uint32_t count, const std::source_location& at);
  /// Until *is_done is 1.
  void griddepcontrol_wait(const uint32_t* is_done, const std::source_location& at);
  const ExchangeWords* exchange(const ExchangeWords& mine, const std::source_location& at);
  void start_copy(void* shared, const void* global, bool valid);
  void end_copy_group();
  void wait_for_copies(size_t pending_groups);

 private:
  enum class Waits { no, block, warp, count };
  struct Copy {
    void* to;
    const void* from;
    bool valid;
  };
  struct Thread {
    Fiber fiber;
    ThreadPlace place;
    Waits waits = Waits::no;
    std::source_location at;  // of what it waits for
    const uint32_t* counter = nullptr;
    uint32_t wanted = 0;  // of the counter
    unsigned exchanges = 0;
    bool has_waited = false;  // for the launch before
    // Asynchronous copies in order, and for each group that was closed where in them it ends.
    std::vector<Copy> copies;
    std::vector<size_t> group_ends;
    size_t carried_out = 0;  // copies
    size_t past_groups = 0;  // groups whose copies are all carried out
  };
  struct Warp {
    ExchangeWords words[2][32];  // by turns: a lane may be one exchange ahead of those that still read
    unsigned waiting = 0;
  };

  /// A thread that can go on, drawn at random and taken from those that wait for their turn.
  [[nodiscard]] Thread* draw();
  void wait(Waits what, const std::source_location& at);
  /// The running thread stops for now.
  void yield();
  void release_block();
  void release_warp(unsigned warp);
  static void carry_out(const Copy& copy);

  QuickRandom random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;
  std::vector<Thread*> counting_;  // that wait for a count
  Thread* current_ = nullptr;
  unsigned count_ = 0;    // threads of this block
  unsigned waiting_ = 0;  // for the block's barrier
  unsigned done_ = 0;
  bool must_wait_ = false;
  bool is_alone_ = true;
};

}  // namespace dspack::gpu
