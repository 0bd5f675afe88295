// The lightning indexer of sparse attention: stores a small key for every position, scores all keys for each row, and
// chooses the positions that the row attends to.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V3.2-Exp inference/model.py, class Indexer, and the
// technical report, section 1. That code multiplies queries and keys by a Hadamard matrix and rounds them to FP8 for
// its kernel. Neither is done here: rotating both leaves their products unchanged. It also multiplies the heads'
// weights by two positive constants, which do not affect the choice.
#pragma once

#include "runtime/model/attention_block.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

class Indexer {
 public:
  /// A position's key, normalised and rotated. In FP8 each key has one scale, in a separate plane.
  static constexpr std::string_view kKeys = "index keys";
  static constexpr std::string_view kScales = "index scales";

  /// Whether the rows of `part`, which is cut to those of `input`, attend to a choice of positions. Precondition:
  /// attention is sparse.
  [[nodiscard]] static bool needs_choice(const ModelConfig& config, const AttentionBlock::Input& input,
                                         const PassPart& part);

  /// Reserves its places in the scratch memory of the block. Precondition: the model has indexers.
  Indexer(const ModelConfig& config, const AttentionOptions& options, ScratchPlan& plan);

  [[nodiscard]] std::vector<CachePlane> cache_planes() const;
  /// `prefix`: "model.layers.3.self_attn."
  [[nodiscard]] Result<void> add_weights(WeightGroup& group, const std::string& prefix);

  /// The product of input.x that computes the rows' keys.
  [[nodiscard]] kernels::Product key_product(const AttentionBlock::Input& input) const;
  /// Stores the rows' keys in their sequences' caches. With a trace it computes them first; otherwise key_product must
  /// have run.
  void store_keys(kernels::Queue& queue, const AttentionBlock::Input& input, const TraceScope& trace) const;
  /// Fills `choice` for the rows of `input`, in all parts that need one. `q_latent`: [rows, q_rank], normalised.
  /// Precondition: the rows' keys are stored.
  void choose(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& q_latent,
              const kernels::Choice& choice, const TraceScope& trace) const;

 private:
  [[nodiscard]] kernels::Weight stored_keys(const KvCache& cache, uint32_t layer) const;
  void rotate(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& rows,
              uint32_t heads) const;

  const ModelConfig& config_;
  Dtype dtype_;
  uint64_t queries_at_, weights_at_, new_keys_at_;  // in the scratch memory

  Linear q_;             // wq_b [heads * dim, q_rank]
  Linear k_;             // wk [dim, hidden]
  kernels::Slice gain_;  // k_norm [dim]
  kernels::Slice bias_;  // k_norm [dim]
  Linear weights_;       // weights_proj [heads, hidden]
};

}  // namespace dspack::runtime
