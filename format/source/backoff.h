// Pauses: how long before a repetition, and waiting that can be interrupted.
// Threads: thread-safe.
#pragma once

#include <stop_token>

namespace dspack::format {

/// Seconds to wait before attempt `attempt` (1 is the first repetition): 0.5 s doubling to a minute, plus up to a
/// quarter of jitter from `random` in [0, 1), so that many clients do not return in step.
[[nodiscard]] double backoff_seconds(unsigned attempt, double random);

/// Waits, or returns early with false when a stop is requested.
[[nodiscard]] bool wait_for(double seconds, const std::stop_token& stop);

}  // namespace dspack::format
