// What reading a prompt's experts is expected to take, before it begins.
// Threads: thread-safe (pure functions). Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <set>

#include "format/checkpoint.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

/// Distinct experts of a layer that `tokens` tokens pick, `top_k` each, if all of them are equally likely and tokens
/// independent: E (1 - (1 - k/E)^n). Text is neither, so there are rather fewer.
[[nodiscard]] double expected_experts(uint64_t experts, uint32_t top_k, uint64_t tokens);

struct FetchOutlook {
  uint64_t experts = 0;        // to be read
  uint64_t bytes = 0;          // of them
  uint64_t network_bytes = 0;  // of these, those that come over the network and are then kept on disk
};

/// A prompt, as far as it says which experts are read.
struct PromptShape {
  std::set<LayerId> layers;  // of the pass
  uint32_t top_k = 0;
  uint64_t tokens = 0;  // to be computed
  uint64_t chunk = 1;   // of them, those that go through the model at once: an expert is read once for each chunk
};

/// Where experts are.
struct ExpertPlaces {
  double cached_share = 0;  // of all experts: what memory holds of them from one chunk to the next
  std::function<bool(ExpertKey)> is_in_memory;
  std::function<StorageTier(ExpertKey)> tier_of;
};

[[nodiscard]] FetchOutlook fetch_outlook(const format::Checkpoint& checkpoint, const PromptShape& prompt,
                                         const ExpertPlaces& places);

}  // namespace dspack::runtime
