#include "runtime/budget/turn_timer.h"
#include "format/base/seconds.h"

#include <algorithm>
#include <chrono>

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLeastTurns = 3;
// For a longer turn one measurement is enough.
constexpr double kLongTurn = 0.25;
// Turns that are not awaited are timed together: at most this many, and for about this long, so that starting them does
// not count.
constexpr double kMaxTurnsTogether = 16;
constexpr double kTogetherSeconds = 0.005;

Result<double> awaited_seconds(kernels::Queue& queue, const Turn& turn, size_t number) {
  const auto start = Clock::now();
  TRY(turn(number));
  TRY(queue.finish());
  return seconds_since(start);
}

/// Some turns in a row.
class Round {
 public:
  Round(kernels::Queue& queue, const Turn& turn, size_t turns) : queue_(queue), turn_(turn), turns_(turns) {}

  Result<void> record() {
    Result<void> outcome;
    step_ = queue_.record([&] { outcome = enqueue(); });
    return outcome;
  }

  Result<double> seconds_a_turn() {
    const auto begin = queue_.mark();
    if (step_ != nullptr) {
      queue_.run(*step_);
    } else {
      TRY(enqueue());
    }
    const auto end = queue_.mark();
    end->wait();
    return end->seconds_since(*begin) / static_cast<double>(turns_);
  }

 private:
  Result<void> enqueue() {
    for (size_t i = 0; i < turns_; ++i)
      TRY(turn_(i));
    return {};
  }

  kernels::Queue& queue_;
  const Turn& turn_;
  size_t turns_;
  std::unique_ptr<kernels::Step> step_;  // null: nothing is recorded
};

Result<double> median_seconds(kernels::Queue& queue, const TurnTiming& how, const Turn& turn,
                              const std::stop_token& stop) {
  TRY_ASSIGN(double once, awaited_seconds(queue, turn, 0));
  if (once > kLongTurn && !how.warms_up) return once;
  TRY_ASSIGN(once, awaited_seconds(queue, turn, 1));
  if (once > kLongTurn) return once;
  const double together = once > 0 ? std::clamp(kTogetherSeconds / once, 1.0, kMaxTurnsTogether) : kMaxTurnsTogether;
  Round round(queue, turn, static_cast<size_t>(together));
  if (how.pace == Pace::recorded) TRY(round.record());
  std::vector<double> seconds;
  const auto start = Clock::now();
  while (seconds.size() < kLeastTurns || seconds_since(start) < how.seconds) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    if (how.pace == Pace::awaited) {
      TRY_ASSIGN(once, awaited_seconds(queue, turn, 2 + seconds.size()));
    } else {
      TRY_ASSIGN(once, round.seconds_a_turn());
    }
    seconds.push_back(once);
  }
  return median(std::move(seconds));
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Result<double> seconds_a_turn(kernels::Queue& queue, const TurnTiming& how, const Turn& turn,
                              const std::stop_token& stop) {
  auto seconds = median_seconds(queue, how, turn, stop);
  const auto finished = queue.finish();  // also after a failed turn, whose memory is freed next
  if (seconds && !finished) return finished.error();
  return seconds;
}

}  // namespace dspack::runtime
