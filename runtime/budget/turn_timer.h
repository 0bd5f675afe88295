// Measures how long an operation that a run repeats takes when it is run many times in a row.
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
  enqueued,  // one after the other, without waiting
  recorded,  // the same, as one recorded step if the queue records
};

struct TurnTiming {
  Pace pace = Pace::awaited;
  double seconds = 0.2;  // to spend; at least three measurements are made, or one if a turn takes long
  bool warms_up = true;  // the first turns do not count, even if they take long: a GPU loads kernels in them
};

/// Enqueues turn `number`, and synchronises its own uploads and downloads; if recorded it has neither.
using Turn = std::function<Result<void>(size_t number)>;

/// Median seconds of one turn, by the device's clock unless turns are awaited. Two turns warm up. When it
/// returns the queue has run everything.
[[nodiscard]] Result<double> seconds_a_turn(kernels::Queue& queue, const TurnTiming& how, const Turn& turn,
                                            const std::stop_token& stop);

/// 0 if empty.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace dspack::runtime
