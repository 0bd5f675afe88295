// The interface of a layer's attention: weights, named planes of the KV cache, scratch memory, and a run. A pass may
// hold rows of several sequences: projections process all of its rows at once, while each row attends only to its own
// sequence's cache.
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
  PassPosition position;  // position of the first row; live only if the pass has a single part
  /// Each row attends to all rows of the part, not only to those before it, and to the same positions before the part
  /// (a block of drafts: dspark.h).
  bool is_block = false;
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
  Dtype index_dtype = Dtype::f32;  // keys of sparse attention's indexer: same types
  uint32_t wave_rows = 1;          // most rows of one run
  uint32_t max_rows = 1;           // most rows of one pass
};

/// Where a run of sparse attention gets its choice of positions.
enum class ChoiceUse {
  as_needed,  // choose if a row has more positions than it may attend to; otherwise attend to all
  kept,       // choose for all rows, so that a later run can take the choice
  taken,      // use the choice that an earlier run left
};

/// Call order: cache_planes(), scratch_bytes() and workspace() size the memory; add_weights(), then the group is
/// loaded; run() for each wave of rows.
class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;

  /// Planes of the KV cache in which the layer keeps its rows.
  [[nodiscard]] virtual std::vector<CachePlane> cache_planes() const = 0;
  /// Size of a run's scratch memory. All layers share it, and later layers of a pass find in it the choice of earlier
  /// ones (sparse attention).
  [[nodiscard]] virtual uint64_t scratch_bytes() const = 0;
  /// The largest calls of a run over caches of `positions` positions.
  [[nodiscard]] virtual kernels::WorkspaceShape workspace(uint32_t positions) const = 0;
  /// Adds the weights of the block "model.layers.3.self_attn" to its layer's group. The block must not move until the
  /// group is loaded or bound.
  [[nodiscard]] virtual Result<void> add_weights(WeightGroup& group, const std::string& block_name) = 0;

  /// Modules that a trace reports, in order, by their names within the block: "q_a_proj".
  [[nodiscard]] virtual std::vector<std::string> modules() const = 0;

  /// Weights that multiply the block's normalised input.
  [[nodiscard]] virtual std::vector<kernels::Weight> readers() const = 0;

  struct Input {
    kernels::Rows x;                  // [rows, hidden], normalised; at most wave_rows
    std::span<const PassPart> parts;  // the whole pass
    uint32_t first_row = 0;           // row of the pass at which x begins
    uint32_t layer = 0;               // index in the pass, as in the caches
    PositionTables tables;
    kernels::Slice scratch;  // scratch_bytes()
    ChoiceUse use = ChoiceUse::as_needed;
  };
  /// Stores the rows in their sequences' caches, and attends: residual += output, which a trace first finds in y. If
  /// residual has no rows: y = output. Both [rows, hidden]. At a live position: at most kMaxRecordedRows rows.
  virtual void run(kernels::Queue& queue, const Input& input, const kernels::Rows& y, const kernels::Rows& residual,
                   const TraceScope& trace = {}) const = 0;

  /// Stores the keys of rows x that are of one sequence, which has room for them, without attending. Only for blocks
  /// that say so (WindowAttention).
  virtual void remember(kernels::Queue& /*queue*/, const Input& /*input*/) const {
    DSPACK_CHECK(false, "this attention does not store keys alone");
  }

  /// Copies the choice that row `row` of a pass left (ChoiceUse::kept) to the first row, for the next pass.
  virtual void pass_on(kernels::Queue& /*queue*/, kernels::Slice /*scratch*/, uint32_t /*row*/) const {}
  /// Sets the choice of the first `rows` rows to the first `positions` positions, as an earlier layer would: for
  /// running a single layer.
  virtual void choose_first(kernels::Queue& /*queue*/, kernels::Slice /*scratch*/, uint32_t /*rows*/,
                            uint32_t /*positions*/) const {}
};

/// The attention of a layer, without weights yet. Borrows `config`.
[[nodiscard]] std::unique_ptr<AttentionBlock> make_attention(const ModelConfig& config, const AttentionOptions& options,
                                                             LayerId layer);

/// Memory for runs of any layer's attention (AttentionBlock::scratch_bytes).
[[nodiscard]] uint64_t attention_scratch_bytes(const ModelConfig& config, const AttentionOptions& options);

/// Shape of the KV cache for a pass through these layers.
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
  uint32_t heads = 0;  // heads in a row
  uint32_t first = 0;  // first rotated value of a head
  uint32_t dim = 0;
  kernels::RopePairs pairs = kernels::RopePairs::neighbours;
};
/// Arguments that rotate `rows`, the rows of one part.
[[nodiscard]] kernels::RopeArgs rope_args(const AttentionBlock::Input& input, const PassPart& part,
                                          const kernels::Rows& rows, const RotatedValues& values);
/// Rotates rows in place, each by its position.
void rotate_rows(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& rows,
                 const RotatedValues& values);

[[nodiscard]] inline kernels::Rows dense_rows(kernels::Slice data, uint32_t rows, uint32_t cols) {
  return {.data = data, .rows = rows, .cols = cols, .stride = cols};
}

}  // namespace dspack::runtime
