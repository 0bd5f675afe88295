// What the emulated GPU promises about blocks that count together.
#include <set>
#include <vector>

#include "tests/kernels/cuda/emulator_lab.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test::emulator_counts_test {
namespace {

constexpr unsigned kBlocks = 24;
constexpr unsigned kThreads = 64;

enum class Order { ticket, block };
enum class Wait { before_reading, none };

/// Block n copies what block n - 1 wrote, plus one; n: its ticket or its index. counters: tickets, blocks that wrote.
__global__ void chain(unsigned* values, uint32_t* counters, Order order, Wait wait) {
  auto* shared = gpu::shared_memory<unsigned>();
  if (gpu::thread_index() == 0) shared[0] = gpu::take_ticket(counters);
  gpu::block_barrier();
  const unsigned mine = order == Order::ticket ? shared[0] : gpu::block_index().x;
  if (wait == Wait::before_reading && gpu::thread_index() == 0) gpu::wait_for_count(counters + 1, mine);
  gpu::block_barrier();
  unsigned* to = values + mine * kThreads + gpu::thread_index();
  *to = mine == 0 ? 0 : *(to - kThreads) + 1;
  gpu::block_barrier();
  if (gpu::thread_index() == 0) gpu::count_up(counters + 1);
}

/// As chain, but the block counts before all of its threads have written.
__global__ void hasty_chain(unsigned* values, uint32_t* counters) {
  auto* shared = gpu::shared_memory<unsigned>();
  if (gpu::thread_index() == 0) shared[0] = gpu::take_ticket(counters);
  gpu::block_barrier();
  const unsigned mine = shared[0];
  if (gpu::thread_index() == 0) gpu::wait_for_count(counters + 1, mine);
  gpu::block_barrier();
  unsigned* to = values + mine * kThreads + gpu::thread_index();
  *to = mine == 0 ? 0 : *(to - kThreads) + 1;
  if (gpu::thread_index() == 0) gpu::count_up(counters + 1);
}

struct Chain {
  std::vector<unsigned> values = std::vector<unsigned>(size_t{kBlocks} * kThreads, 1'000'000);
  std::vector<uint32_t> counters = {0, 0};

  template <class... Arguments>
  void go(uint64_t seed, Arguments... arguments) {
    gpu::configure_emulator({.seed = seed});
    run({.grid_x = kBlocks, .threads = kThreads, .shared_bytes = 16}, arguments...);
  }
  [[nodiscard]] bool is_whole() const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != i / kThreads) return false;
    }
    return true;
  }
};

constexpr uint64_t kSeeds = 12;

}  // namespace

TEST_CASE("emulated GPU: blocks that wait for smaller tickets all end") {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Chain c;
    c.go(seed, chain, c.values.data(), c.counters.data(), Order::ticket, Wait::before_reading);
    CHECK(c.is_whole());
    CHECK(c.counters == std::vector<uint32_t>{kBlocks, kBlocks});
  }
}

TEST_CASE("emulated GPU: a block that waits for one that has not begun ends the process") {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Ending ending = end_of([&] {
      Chain c;
      c.go(seed, chain, c.values.data(), c.counters.data(), Order::block, Wait::before_reading);
    });
    CHECK(ending.is_abort);
    CHECK(ending.text.find("thread 0 waits for a count of ") != std::string::npos);
    CHECK(ending.text.find("emulator_counts_test.cpp") != std::string::npos);
  }
}

TEST_CASE("emulated GPU: reading without waiting, and counting before all have written, come out wrong") {
  unsigned wrong[2] = {};
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Chain without;
    without.go(seed, chain, without.values.data(), without.counters.data(), Order::ticket, Wait::none);
    wrong[0] += without.is_whole() ? 0 : 1;
    Chain hasty;
    hasty.go(seed, hasty_chain, hasty.values.data(), hasty.counters.data());
    wrong[1] += hasty.is_whole() ? 0 : 1;
  }
  CHECK(wrong[0] > 0);
  CHECK(wrong[1] > 0);
}

TEST_CASE("emulated GPU: a counter at an odd place ends the process") {
  CHECK(aborts([] {
    alignas(4) unsigned char bytes[12] = {};
    Chain c;
    c.go(0, chain, c.values.data(), reinterpret_cast<uint32_t*>(bytes + 1), Order::ticket, Wait::none);
  }));
}

}  // namespace dspack::test::emulator_counts_test
