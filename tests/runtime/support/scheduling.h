// Generations of a small model in a scheduler: who listens, and the calls that every test of it makes.
// Threads: as the scheduler. Errors: failed checks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/generate/scheduler.h"
#include "tests/runtime/support/recording_model.h"

namespace dspack::test {

using runtime::Generation;
using runtime::GenerationListener;
using runtime::Sampler;
using runtime::SamplerOptions;
using runtime::Scheduler;
using runtime::SchedulerOptions;
using runtime::StopReason;

/// Keeps what it is told.
class Listener final : public GenerationListener {
 public:
  explicit Listener(std::function<bool()> wants_more = [] { return true; }) : wants_more_(std::move(wants_more)) {}
  void started(uint32_t kept) override {
    kept_ = kept;
    ++starts;
  }
  void prompt_read(uint32_t count) override { read_ = count; }
  void prompt_scored(std::span<const uint32_t> prompt, std::span<const float> logits) override {
    CHECK(tokens.empty());
    CHECK(ends == 0);
    scored.insert(scored.end(), prompt.begin(), prompt.end());
    scores.insert(scores.end(), logits.begin(), logits.end());
    if (on_scores) on_scores();
  }
  bool wants_logits() const override { return looks_at_logits; }
  void drafted(uint32_t count, uint32_t accepted_count) override {
    CHECK(accepted_count <= count);
    drafts += count;
    accepted += accepted_count;
  }
  bool token(uint32_t id, std::span<const float> logits) override {
    if (looks_at_logits) CHECK(logits.size() > id);
    if (logits.size() > id && is_greedy) CHECK(logits[id] == *std::ranges::max_element(logits));
    tokens.push_back(id);
    return wants_more_();
  }
  void end_token(uint32_t id, std::span<const float> logits) override {
    CHECK(!ended_by);
    if (looks_at_logits) CHECK(logits[id] == *std::ranges::max_element(logits));
    ended_by = id;
  }
  void ended(const Result<StopReason>& reason) override {
    ++ends;
    if (reason) stop = *reason;
    if (!reason) error = reason.error().message;
    if (on_end) on_end();
  }

  bool looks_at_logits = true;
  bool is_greedy = false;
  uint32_t drafts = 0, accepted = 0;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> scored;  // of the prompt
  std::vector<float> scores;     // before each but the first
  std::function<void()> on_scores;
  std::function<void()> on_end;
  std::optional<uint32_t> ended_by;
  std::optional<StopReason> stop;
  std::string error;
  int starts = 0;
  int ends = 0;
  [[nodiscard]] uint32_t kept() const { return kept_; }
  [[nodiscard]] uint32_t read() const { return read_; }

 private:
  std::function<bool()> wants_more_;
  uint32_t kept_ = 0;
  uint32_t read_ = 0;
};

inline Sampler sampler_of(const SamplerOptions& options) {
  auto sampler = Sampler::make(options);
  REQUIRE(sampler);
  return *std::move(sampler);
}

inline std::unique_ptr<Scheduler> scheduler_of(RecordingModel& rig, const SchedulerOptions& options) {
  auto scheduler = Scheduler::make(rig.engine(), options);
  REQUIRE(scheduler);
  return *std::move(scheduler);
}

inline Result<void> submit_one(Scheduler& scheduler, Generation generation) {
  return scheduler.submit(std::vector{std::move(generation)});
}

/// Runs until nothing is left.
inline void finish(Scheduler& scheduler) {
  scheduler.drain();
  scheduler.run({});
}

}  // namespace dspack::test
