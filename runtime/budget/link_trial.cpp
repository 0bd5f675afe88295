#include "runtime/budget/link_trial.h"

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/turn_timer.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {

Result<TrialExpert> find_trial_expert(const format::Checkpoint& checkpoint, const DeviceExperts& experts) {
  const auto first = std::ranges::find_if(
      checkpoint.experts(), [&](const auto& expert) { return experts.layers.contains(expert.first.layer); });
  if (first == checkpoint.experts().end()) return Error{ErrorKind::not_found, "the checkpoint holds no routed expert"};
  TrialExpert found;
  found.key = first->first;
  TRY_ASSIGN(found.slot, plan_slot(checkpoint, found.key, experts.shape));
  found.layout = layout_of(found.slot);
  return found;
}

namespace {

constexpr size_t kHostExperts = 2;  // in host memory, taking turns

}  // namespace

double LinkTimes::seconds(double experts) const {
  if (experts <= 0) return 0;
  if (count <= 1 || several <= one) return experts * several / std::max(1U, count);
  return one + (experts - 1) * (several - one) / (count - 1);
}

double LinkTimes::rate() const {
  const double each = seconds(2) - seconds(1);
  return each > 0 ? static_cast<double>(expert_bytes) / each : 0;
}

Result<LinkTimes> time_link(kernels::Device& device, const format::Checkpoint& checkpoint, const DeviceExperts& experts,
                            uint32_t count, double seconds, const std::stop_token& stop) {
  TRY_ASSIGN(const TrialExpert like, find_trial_expert(checkpoint, experts));
  std::vector<std::unique_ptr<kernels::Buffer>> host;
  std::vector<ExpertWeights> from;
  for (size_t i = 0; i < kHostExperts; ++i) {
    TRY_ASSIGN(auto memory, device.allocate_host(like.slot.slot_bytes));
    std::ranges::fill(kernels::host_bytes(*memory), std::byte{0});  // allocates the pages
    from.push_back(weights_in(like.slot, *memory));
    host.push_back(std::move(memory));
  }
  TRY_ASSIGN(const auto window, device.allocate(like.layout.expert_bytes * kVramWindow));
  const auto queue = device.make_queue();
  const auto copy = [&](size_t number) {
    upload_expert(*queue, like.layout, from[number % kHostExperts],
                  weights_at(like.layout, {window.get(), number % kVramWindow * like.layout.expert_bytes}));
  };
  const auto time = [&](uint32_t several) -> Result<double> {
    size_t turn = 0;
    return seconds_a_turn(
        *queue, {.pace = Pace::awaited, .seconds = seconds / 2},
        [&](size_t) -> Result<void> {
          for (uint32_t i = 0; i < several; ++i)
            copy(turn++);
          return {};
        },
        stop);
  };
  LinkTimes times{.count = std::max(1U, count), .expert_bytes = like.layout.expert_bytes};
  TRY_ASSIGN(times.one, time(1));
  TRY_ASSIGN(times.several, time(times.count));
  return times;
}

}  // namespace dspack::runtime
