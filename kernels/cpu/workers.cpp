#include "kernels/cpu/workers.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <system_error>

namespace dspack::kernels {
namespace {

// Waking a thread takes some microseconds, about as long as a core takes for this many multiply-adds on weights in
// memory.
constexpr uint64_t kWorthAThread = 32768;

unsigned cores() {
  return static_cast<unsigned>(tbb::info::default_concurrency());
}

}  // namespace

struct Workers::Arena {
  explicit Arena(unsigned threads) : arena(static_cast<int>(threads)) {
    if (threads > cores()) more_than_cores.emplace(tbb::global_control::max_allowed_parallelism, threads);
  }
  std::optional<tbb::global_control> more_than_cores;  // the library's own limit is one thread per core
  tbb::task_arena arena;                               // creates its threads on first use
};

Workers::Workers(unsigned threads)
    : threads_(threads != 0 ? threads : cores()), arena_(std::make_unique<Arena>(threads_)) {}

Workers::~Workers() = default;

void Workers::split(uint32_t items, uint64_t item_cost, const std::function<void(uint32_t, uint32_t)>& body) {
  if (items == 0) return;
  const uint64_t affordable = std::max<uint64_t>(1, items * item_cost / kWorthAThread);
  const auto parts = static_cast<uint32_t>(std::min<uint64_t>({threads_, items, affordable}));
  if (parts == 1) return body(0, items);
  const auto bound = [&](uint32_t part) { return static_cast<uint32_t>(uint64_t{items} * part / parts); };
  // TBB orders all of this, but if it is not instrumented the thread sanitizer sees only these two atomics.
  std::atomic<uint32_t> begun{0};
  std::atomic<uint32_t> ended{0};
  begun.store(parts, std::memory_order_release);
  const auto run = [&](uint32_t part) {
    (void)begun.load(std::memory_order_acquire);
    body(bound(part), bound(part + 1));
    ended.fetch_add(1, std::memory_order_release);
  };
  try {
    arena_->arena.execute([&] { tbb::parallel_for(uint32_t{0}, parts, run, tbb::static_partitioner{}); });
    (void)ended.load(std::memory_order_acquire);
  } catch (const std::runtime_error& refusal) {  // "pthread_create has failed"; bodies do not throw
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), refusal.what());
  }
}

}  // namespace dspack::kernels
