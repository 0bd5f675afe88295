// The interface of a layer's attention: weights, named planes of the KV cache, scratch memory, and a run. A pass may
// hold rows of several sequences: projections take all of its rows at once, while each row attends to the cache of its
// own sequence alone.
// Threads: single-thread. Lifetime: a block borrows the configuration and, once they are loaded, its layer's weights.
// Errors: those of finding weights.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/recorded_pass.h"
#include "runtime/model/rope.h"
#include "runtime/weights/trace.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// Consecutive rows of a pass that are one sequence's next positions.
struct PassPart {
  const KvCache* cache = nullptr;
  uint32_t rows = 0;
  PassPosition position;  // of the first row; live only where the pass has a single part
};

/// Calls visit(part, at) for each part of rows [first, first + count) of a pass, in order; `part` is cut to these rows,
/// and its rows begin at row `at`, counted from `first`.
template <class Visit>
void for_each_part(std::span<const PassPart> parts, uint32_t first, uint32_t count, const Visit& visit) {
  uint32_t begin = 0;
  for (const PassPart& part : parts) {
    const uint32_t from = std::max(begin, first);
    const uint32_t to = std::min(begin + part.rows, first + count);
    if (from < to) {
      PassPart cut = part;
      cut.rows = to - from;
      cut.position.first += from - begin;
      visit(cut, from - first);
    }
    begin += part.rows;
  }
}

struct AttentionOptions {
  Dtype cache_dtype = Dtype::f32;  // f32 (exact), bf16, f16 or f8_e4m3
  Dtype index_dtype = Dtype::f32;  // of the keys of sparse attention's indexer, likewise
  uint32_t wave_rows = 1;          // rows of one run at most
  uint32_t max_rows = 1;           // rows of one pass at most
};

/// How a run of sparse attention comes to its choice of positions.
enum class ChoiceUse {
  as_needed,  // chosen where a row has more positions than it may attend to; other rows attend to all of theirs
  kept,       // chosen for all rows, so that it can be taken over
  taken,      // as it is: a run before has left it
};

class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;

  /// What the layer keeps of each position.
  [[nodiscard]] virtual std::vector<CachePlane> cache_planes() const = 0;
  /// Memory for a run. Runs of all layers share it, and find there what layers of one pass share: what a layer before
  /// has chosen (sparse attention).
  [[nodiscard]] virtual uint64_t scratch_bytes() const = 0;
  /// The largest calls of a run over caches of so many positions.
  [[nodiscard]] virtual kernels::WorkspaceShape workspace(uint32_t positions) const = 0;
  /// Adds the weights of the block "model.layers.3.self_attn" to its layer's group. The block stays where it is until
  /// the group is loaded or bound.
  [[nodiscard]] virtual Result<void> add_weights(WeightGroup& group, const std::string& block_name) = 0;

  /// Modules that a trace hears of, in order, by their names within the block: "q_a_proj".
  [[nodiscard]] virtual std::vector<std::string> modules() const = 0;

  /// Weights that take the block's normalised input.
  [[nodiscard]] virtual std::vector<kernels::Weight> readers() const = 0;

  struct Input {
    kernels::Rows x;                  // [rows, hidden], normalised; at most wave_rows
    std::span<const PassPart> parts;  // of the whole pass
    uint32_t first_row = 0;           // of x in the pass
    uint32_t layer = 0;               // in the pass, as the caches count
    PositionTables tables;
    kernels::Slice scratch;  // scratch_bytes()
    ChoiceUse use = ChoiceUse::as_needed;
  };
  /// Stores the rows in their sequences' caches and attends: residual += what comes of it, by way of y where somebody
  /// listens; no rows of residual: y is what comes of it. Both [rows, hidden]. At a live position: at most
  /// kMostRecordedRows rows.
  virtual void run(kernels::Queue& queue, const Input& input, const kernels::Rows& y, const kernels::Rows& residual,
                   const TraceScope& trace = {}) const = 0;

  /// Makes what row `row` of a pass has left for other passes (ChoiceUse::kept) that of the first row of the next.
  virtual void pass_on(kernels::Queue& /*queue*/, kernels::Slice /*scratch*/, uint32_t /*row*/) const {}
  /// As if a layer before had chosen the first of so many positions for the first rows: for who runs a layer by itself.
  virtual void choose_first(kernels::Queue& /*queue*/, kernels::Slice /*scratch*/, uint32_t /*rows*/,
                            uint32_t /*positions*/) const {}
};

/// The attention of a layer, without weights yet. Borrows `config`.
[[nodiscard]] std::unique_ptr<AttentionBlock> make_attention(const ModelConfig& config, const AttentionOptions& options,
                                                             LayerId layer);

/// Memory for runs of any layer's attention (AttentionBlock::scratch_bytes).
[[nodiscard]] uint64_t attention_scratch_bytes(const ModelConfig& config, const AttentionOptions& options);

/// What a pass through these layers keeps of a position.
[[nodiscard]] KvShape kv_shape(const ModelConfig& config, const AttentionOptions& options,
                               std::span<const LayerId> pass);

/// The choice of the rows from `first` on.
[[nodiscard]] inline kernels::Choice choice_of_rows(const kernels::Choice& choice, uint32_t first) {
  return {.ids = choice.ids.at(uint64_t{first} * choice.most * sizeof(uint32_t)),
          .counts = choice.counts.at(uint64_t{first} * sizeof(uint32_t)),
          .most = choice.most};
}

/// Which values of each head are rotated.
struct RotatedValues {
  uint32_t heads = 0;  // that a row is divided into
  uint32_t first = 0;  // of a head
  uint32_t dim = 0;
  kernels::RopePairs pairs = kernels::RopePairs::neighbours;
};
/// Of the rows of one part.
[[nodiscard]] kernels::RopeArgs rope_args(const AttentionBlock::Input& input, const PassPart& part,
                                          const kernels::Rows& rows, const RotatedValues& values);
/// Rotates rows in place, each as its position says.
void rotate_rows(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& rows,
                 const RotatedValues& values);

[[nodiscard]] inline kernels::Rows dense_rows(kernels::Slice data, uint32_t rows, uint32_t cols) {
  return {.data = data, .rows = rows, .cols = cols, .stride = cols};
}

}  // namespace dspack::runtime
