// Timing on a device that runs nothing before it is told to wait, and whose memory the host cannot address: what a
// trial enqueues, awaits and allocates. How long it takes is no matter here.
#include <doctest/doctest.h>

#include <filesystem>

#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/compute_trial.h"
#include "runtime/budget/link_trial.h"
#include "runtime/generate/loaded_model.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/support/deferred_device.h"

namespace dspack::runtime::trials_test {
namespace {

std::unique_ptr<kernels::Device> cpu() {
  auto device = kernels::make_cpu_device({.threads = 1, .instruction_set = {}});
  REQUIRE(device);
  return std::move(*device);
}

std::unique_ptr<test::DeferredDevice> deferred(uint64_t most_bytes = UINT64_MAX) {
  return std::make_unique<test::DeferredDevice>(cpu(), most_bytes);
}

class Tiny {
 public:
  Tiny() : opened_(std::string(DSPACK_TEST_DATA) + "/tiny-v3") {
    for (uint32_t layer = 0; layer < config.layers; ++layer)
      options.layer_map.emplace_back(layer);
    for (const auto& [key, tensors] : checkpoint().experts())
      experts.layers.insert(key.layer);
    experts.shape = expert_shape(config);
    experts.experts = config.experts;
  }

  [[nodiscard]] LoadContext context(kernels::Device& device, kernels::Queue& queue) {
    return {.device = device, .queue = queue, .access = *opened_.access, .quantization = config.quantization};
  }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return opened_.checkpoint(); }

 private:
  test::OpenedCheckpoint opened_;

 public:
  const ModelConfig config = opened_.config;
  ModelOptions options;
  DeviceExperts experts;
};

TrialPass pass_of(uint32_t rows, Pace pace) {
  return {.rows = rows, .position = 5, .timing = {.pace = pace, .seconds = 0}};
}

TEST_CASE("trials: turns follow each other as a run's do") {
  const auto device = deferred();
  const auto queue = device->make_queue();
  const auto memory = device->allocate(64);
  REQUIRE(memory);
  size_t turns = 0;
  const auto time = [&](Pace pace) {
    turns = 0;
    return seconds_a_turn(*queue, {.pace = pace, .seconds = 0},
                          [&](size_t) -> Result<void> {
                            ++turns;
                            queue->copy({memory->get(), 32}, {memory->get(), 0}, 32);
                            return {};
                          },
                          {});
  };
  const auto counts = device->counts();
  REQUIRE(time(Pace::awaited));
  CHECK(turns == 5);
  CHECK(counts->synchronisations == 6);
  CHECK(counts->steps == 0);
  REQUIRE(time(Pace::enqueued));
  CHECK(turns >= 5);
  CHECK(counts->recordings == 0);
  REQUIRE(time(Pace::recorded));
  CHECK(counts->recordings == 1);
  CHECK(counts->steps == 3);
  std::stop_source stop;
  stop.request_stop();
  const auto stopped = seconds_a_turn(
      *queue, {}, [](size_t) -> Result<void> { return {}; }, stop.get_token());
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().kind == ErrorKind::cancelled);
}

TEST_CASE("trials: a token's operations on a device are timed, recorded or not, and nothing of the weights is read") {
  Tiny tiny;
  for (const Pace pace : {Pace::awaited, Pace::enqueued, Pace::recorded}) {
    const auto device = deferred();
    const auto queue = device->make_queue();
    const auto times = time_compute(tiny.context(*device, *queue), tiny.config, tiny.options, pass_of(1, pace), {});
    REQUIRE_MESSAGE(times, (times ? "" : times.error().message));
    CHECK(times->dense_layer > 0);
    CHECK(times->moe_layer > 0);
    CHECK(times->experts > 0);
    CHECK(times->head > 0);
    CHECK(times->distinct == tiny.config.top_k);
    CHECK(times->expert_rate() > 0);
    CHECK((device->counts()->recordings > 0) == (pace == Pace::recorded));
    CHECK(device->counts()->downloaded_bytes == 0);
  }
}

TEST_CASE("trials: a prompt's operations on a device") {
  Tiny tiny;
  const auto device = deferred();
  const auto queue = device->make_queue();
  const auto times =
      time_compute(tiny.context(*device, *queue), tiny.config, tiny.options, pass_of(12, Pace::enqueued), {});
  REQUIRE_MESSAGE(times, (times ? "" : times.error().message));
  CHECK(times->experts > 0);
  CHECK(times->distinct > tiny.config.top_k);
}

TEST_CASE("trials: no more experts lie in device memory than a plan has room for") {
  Tiny tiny;
  for (const uint64_t most : {1, 2, 7}) {
    CAPTURE(most);
    TrialPass pass = pass_of(1, Pace::enqueued);
    pass.most_experts = most;
    const auto plenty = deferred();
    const auto queue = plenty->make_queue();
    const auto times = time_experts(tiny.context(*plenty, *queue), tiny.config, tiny.options, pass, {});
    REQUIRE_MESSAGE(times, (times ? "" : times.error().message));
    CHECK(times->distinct == tiny.config.top_k);
    // Scratch memory and rows take less than an expert more.
    const auto enough = deferred(static_cast<uint64_t>(times->expert_bytes) * (most + 1));
    const auto other = enough->make_queue();
    CHECK(time_experts(tiny.context(*enough, *other), tiny.config, tiny.options, pass, {}));
  }
}

TEST_CASE("trials: the CPU's experts alone") {
  Tiny tiny;
  const auto device = cpu();
  const auto queue = device->make_queue();
  const auto times =
      time_experts(tiny.context(*device, *queue), tiny.config, tiny.options, pass_of(1, Pace::awaited), {});
  REQUIRE_MESSAGE(times, (times ? "" : times.error().message));
  CHECK(times->experts > 0);
  CHECK(times->distinct == tiny.config.top_k);
  CHECK(times->head == 0);
}

TEST_CASE("trials: experts cross the link one behind the other, into room for two") {
  Tiny tiny;
  const auto device = deferred();
  const auto times = time_link(*device, tiny.checkpoint(), tiny.experts, 4, 0, {});
  REQUIRE_MESSAGE(times, (times ? "" : times.error().message));
  CHECK(times->count == 4);
  CHECK(times->rate() > 0);
  CHECK(times->expert_bytes > 0);
  // Alone and by fours, five turns of each.
  CHECK(device->counts()->uploaded_bytes >= 5 * 5 * times->expert_bytes * 9 / 10);
  CHECK(device->counts()->uploaded_bytes <= 5 * 5 * times->expert_bytes);
  CHECK(time_link(*deferred(2 * times->expert_bytes), tiny.checkpoint(), tiny.experts, 4, 0, {}));
  const auto refused = time_link(*deferred(2 * times->expert_bytes - 1), tiny.checkpoint(), tiny.experts, 4, 0, {});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().kind == ErrorKind::budget);
  DeviceExperts none = tiny.experts;
  none.layers = {LayerId(999)};
  CHECK_FALSE(time_link(*device, tiny.checkpoint(), none, 4, 0, {}));
}

}  // namespace
}  // namespace dspack::runtime::trials_test
