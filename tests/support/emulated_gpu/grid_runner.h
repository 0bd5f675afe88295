// Runs the blocks of a launch in random order. Blocks that have nothing to do with each other run one after the other;
// from the first word that a block exchanges with others (count_up, wait_for_count) some more of them are resident, as
// on a GPU, and take turns thread by thread. How many is random, and may be one: a wait that needs more than the blocks
// before it ends the process, as does one that nobody can fulfil.
// A launch that overlaps with the one before begins early: some of its blocks run up to where they wait for that one,
// before it has begun.
// Threads: belongs to one thread. Lifetime: serves many launches. Errors: DSPACK_CHECK for what kernels do wrong.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "tests/support/emulated_gpu/block_runner.h"

namespace dspack::gpu {

class GridRunner {
 public:
  explicit GridRunner(uint64_t seed) : random_(seed) {}

  void run(const LaunchShape& shape, const std::function<void()>& thread, bool overlaps);
  /// Some blocks of a launch that overlaps, as far as they come; `run` then does the rest. Borrows both until then.
  void begin(const LaunchShape& shape, const std::function<void()>& thread);

  /// Of the running thread's block.
  [[nodiscard]] BlockRunner& current() { return *current_; }
  /// The running thread waits for the launch before.
  void griddepcontrol_wait(const std::source_location& at);
  /// The running block exchanges something with others.
  void meet();

 private:
  struct FreeAligned {
    void operator()(unsigned char* memory) const { std::free(memory); }  // NOLINT: counterpart of posix_memalign
  };
  /// Room for a block.
  struct Resident {
    explicit Resident(uint64_t seed) : runner(seed) {}
    BlockRunner runner;
    std::unique_ptr<unsigned char, FreeAligned> shared;
    bool is_taken = false;
  };

  void prepare(const LaunchShape& shape, const std::function<void()>& thread, bool overlaps);
  void start_blocks(size_t most);
  void start(Resident& resident, uint64_t block);
  Resident& pick();

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Resident>> residents_;
  BlockRunner* current_ = nullptr;
  // Of the launch that runs.
  const LaunchShape* shape_ = nullptr;
  const std::function<void()>* thread_ = nullptr;
  std::vector<uint64_t> order_;
  uint64_t blocks_ = 0;
  uint64_t next_ = 0;
  bool do_meet_ = false;
  bool overlaps_ = false;
  bool has_begun_ = false;  // early
  uint32_t is_previous_done_ = 1;
  size_t most_resident_ = 1;
};

}  // namespace dspack::gpu
