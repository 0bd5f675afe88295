// Measures how long an operation that a run repeats takes when many follow each other.
// Threads: single-thread. Lifetime: borrows the queue for the call. Errors: those of the turns; cancelled.
#pragma once

#include <functional>
#include <stop_token>
#include <vector>

#include "format/base/result.h"
#include "kernels/ops.h"

namespace dspack::runtime {

/// How turns follow each other in a run.
enum class Pace {
  awaited,   // the host waits for each before it enqueues the next
  enqueued,  // one behind the other
  recorded,  // likewise, as one step where the queue records
};

struct TurnTiming {
  Pace pace = Pace::awaited;
  double seconds = 0.2;  // to spend, but three measurements are made in any case, or one of what takes long
};

/// Enqueues the turn of this number. What it uploads or downloads it synchronises itself; where it is recorded it does
/// neither.
using Turn = std::function<Result<void>(size_t number)>;

/// Median seconds of one turn, by the device's clock where turns are not awaited. Two turns warm up. When it
/// returns the queue has run everything.
[[nodiscard]] Result<double> seconds_a_turn(kernels::Queue& queue, const TurnTiming& how, const Turn& turn,
                                            const std::stop_token& stop);

/// 0 of none.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace dspack::runtime
