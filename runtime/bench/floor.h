// The least time that tokens can take: the work that they need, over the machine's measured rates.
// Threads: pure functions on plain values. Errors: none.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// The work that a model needs per token, by part.
struct ModelWork {
  WeightWork layers;             // per pass, without routed experts
  WeightWork head;               // per token that is chosen
  WeightWork expert;             // per expert
  WeightWork module;             // per pass of the MTP module; zeros: nothing is drafted
  uint64_t experts_a_token = 0;  // routed, over all layers of the pass
  uint64_t cache_bytes = 0;      // per position that is attended to, all layers
  uint64_t scores = 0;           // multiplications for a pair of positions, over the cache as stored (absorbed)
  uint64_t expanded_scores = 0;  // the same over expanded keys and values
  uint64_t expansion = 0;        // multiplications that expand a position
  // Sparse attention: the most positions that a token attends to, out of all that are scored; 0: it attends to all.
  uint64_t most_attended = 0;
  uint64_t index_bytes = 0;   // per position that is scored, all layers
  uint64_t index_scores = 0;  // multiplications for a pair of positions
};
[[nodiscard]] ModelWork model_work(LoadedModel& loaded);

/// Counts of one or more repetitions of a case.
struct PassCounts {
  uint64_t passes = 0;         // through the layers
  uint64_t tokens = 0;         // computed in them
  uint64_t chosen = 0;         // tokens for which the head was computed
  uint64_t module_passes = 0;  // passes of the MTP module
  uint64_t experts = 0;        // demands: an expert counts once for each layer of a pass
  uint64_t fetched_bytes = 0;  // experts and streamed layers, from disk or network
  uint64_t first = 0;          // position of the first token
};

/// The least work that they need.
struct Work {
  double bytes = 0;       // memory traffic for weights and cache
  double operations = 0;  // multiplications and additions of products with weights, each counted
  double attention = 0;   // those of scores and weighted sums, which are FP32 in every precision of a CPU
  double fetched = 0;     // bytes from disk or network
  Work& operator+=(const Work& more) {
    bytes += more.bytes;
    operations += more.operations;
    attention += more.attention;
    fetched += more.fetched;
    return *this;
  }
};
/// Each pass reads its weights and the cache once; attention counts in the cheaper form.
[[nodiscard]] Work work_of(const ModelWork& model, const PassCounts& counts);

/// Measured rates of the machine, per second; 0: not measured.
struct MachineLimits {
  double bytes = 0;
  double operations = 0;        // in the run's precision
  double exact_operations = 0;  // FP32
  double fetched = 0;
};

struct Floor {
  double seconds = 0;  // 0: no limit is known
  /// The bottleneck: "memory", "operations" or "fetching".
  std::string_view bound;
};
/// The longest of the three, since a machine may do them at the same time; both kinds of operations add up.
[[nodiscard]] Floor floor_of(const Work& work, const MachineLimits& limits);

}  // namespace dspack::runtime
