// The expected and the actual cost of reading a prompt's experts.
// Threads: fetch_outlook is pure; a meter is single-thread. Errors: budget (--max-fetch).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "format/base/result.h"
#include "format/checkpoint.h"
#include "runtime/access/tier.h"

namespace dspack::runtime {

/// Expected number of distinct experts of a layer that `tokens` tokens pick, `top_k` each, if all experts are equally
/// likely and tokens independent: E (1 - (1 - k/E)^n). Text is neither, so there are rather fewer.
[[nodiscard]] double expected_experts(uint64_t experts, uint32_t top_k, uint64_t tokens);

struct FetchOutlook {
  uint64_t experts = 0;        // to be read
  uint64_t bytes = 0;          // sum over these experts
  uint64_t network_bytes = 0;  // the part of `bytes` that comes over the network and is then kept on disk
};

/// The properties of a prompt that determine which experts are read.
struct PromptShape {
  std::set<LayerId> layers;  // layers of the pass
  uint32_t top_k = 0;
  uint64_t tokens = 0;  // to be computed
  uint64_t chunk = 1;   // tokens that go through the model at once; an expert is read once for each chunk
};

/// Where experts are.
struct ExpertPlaces {
  double cached_share = 0;  // share of all experts that stays in memory from one chunk to the next
  std::function<bool(ExpertKey)> is_in_memory;
  std::function<Medium(ExpertKey)> medium_of;
};

[[nodiscard]] FetchOutlook fetch_outlook(const format::Checkpoint& checkpoint, const PromptShape& prompt,
                                         const ExpertPlaces& places);

/// Measures reads of experts: bytes per prompt and its answer, and bytes per second.
class FetchMeter {
 public:
  /// `max_fetch`: bytes for a prompt and its answer; absent: no limit.
  explicit FetchMeter(std::optional<uint64_t> max_fetch) : max_fetch_(max_fetch) {}

  void begin_prompt() { fetched_ = 0; }
  /// An expert of `bytes` bytes is about to be read. Errors: budget, with the figures.
  [[nodiscard]] Result<void> begin(uint64_t bytes);
  /// Reading an expert of `bytes` bytes has ended; `read` of them were read.
  void end(uint64_t bytes, uint64_t read);
  /// The rate of reading in this run; nullopt: too little was read to tell.
  [[nodiscard]] std::optional<double> bytes_per_second() const;

 private:
  std::optional<uint64_t> max_fetch_;
  uint64_t fetched_ = 0;  // since the prompt began
  std::chrono::steady_clock::time_point start_;
  uint64_t experts_ = 0;  // being read
  uint64_t bytes_ = 0;    // total read
  double seconds_ = 0;    // time during which any was read
};

}  // namespace dspack::runtime
