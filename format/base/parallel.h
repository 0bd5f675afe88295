// Runs numbered jobs on a few threads.
// Threads: the function is called from several threads at once. Errors: returns the error with the lowest number; after
// the first error no new job starts, and running ones are asked to stop.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "format/base/result.h"

namespace dspack {

using NumberedJob = std::function<Result<void>(uint64_t number, const std::stop_token& stop)>;

/// Calls job(0) ... job(count - 1), at most `threads` at a time, started in ascending order.
[[nodiscard]] Result<void> run_jobs(uint64_t count, unsigned threads, const NumberedJob& job,
                                    const std::stop_token& stop);

}  // namespace dspack
