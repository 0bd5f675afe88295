#include "format/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "format/base/result.h"

namespace dspack {

Result<void> run_jobs(uint64_t count, unsigned threads, const NumberedJob& job, const std::stop_token& stop) {
  std::stop_source stop_all;
  const std::stop_callback pass_on(stop, [&stop_all] { stop_all.request_stop(); });
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::optional<Error> first_error;  // guarded by mutex
  uint64_t first_number = 0;         // guarded by mutex

  const auto work = [&] {
    while (!stop_all.stop_requested()) {
      const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
      if (number >= count) return;
      const Result<void> done = guarded([&] { return job(number, stop_all.get_token()); });
      if (done.has_value()) continue;
      const std::lock_guard lock(mutex);
      // Jobs cancelled because another failed must not hide that failure.
      const bool real = done.error().kind != ErrorKind::cancelled;
      const bool had_real = first_error && first_error->kind != ErrorKind::cancelled;
      if (!first_error || (real && !had_real) || (real == had_real && number < first_number)) {
        first_error = done.error();
        first_number = number;
      }
      stop_all.request_stop();
    }
  };
  {
    std::vector<std::jthread> workers;
    const uint64_t extra = std::min<uint64_t>(std::max(threads, 1U), std::max<uint64_t>(count, 1)) - 1;
    for (uint64_t i = 0; i < extra; ++i) {
      // If no further thread can be created, the existing ones do the work.
      if (!guarded([&]() -> Result<void> {
            workers.emplace_back(work);
            return {};
          }))
        break;
    }
    work();
  }
  if (first_error) return *first_error;
  if (stop.stop_requested()) return stopped();
  return {};
}

}  // namespace dspack
