// The lightning indexer of sparse attention: it keeps a small key of every position, scores them for each row, and
// chooses those that the row attends to.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V3.2-Exp inference/model.py, class Indexer, and the
// technical report, section 1. That code turns queries and keys by a Hadamard matrix and rounds them to FP8 for its
// kernel; a turn of both changes no product, and here neither is done. It also multiplies the weights of the heads by
// two positive constants, which no choice depends on.
#pragma once

#include "runtime/model/attention_block.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

class Indexer {
 public:
  /// A position's key, normalised and rotated. In FP8 each has one scale, in a plane of its own.
  static constexpr std::string_view kKeys = "index keys";
  static constexpr std::string_view kScales = "index scales";

  /// Whether rows of this part, which is cut to those of `input`, attend to a choice. Precondition: attention is
  /// sparse.
  [[nodiscard]] static bool needs_choice(const ModelConfig& config, const AttentionBlock::Input& input,
                                         const PassPart& part);

  /// Reserves its places in the scratch memory of the block. Precondition: the model has indexers.
  Indexer(const ModelConfig& config, const AttentionOptions& options, ScratchPlan& plan);

  [[nodiscard]] std::vector<CachePlane> cache_planes() const;
  /// `prefix`: "model.layers.3.self_attn."
  [[nodiscard]] Result<void> add_weights(WeightGroup& group, const std::string& prefix);

  /// The product that makes the rows' keys, of input.x.
  [[nodiscard]] kernels::Product key_product(const AttentionBlock::Input& input) const;
  /// Stores the keys of the rows in their sequences' caches; computes them first if somebody listens, else key_product
  /// has run.
  void store_keys(kernels::Queue& queue, const AttentionBlock::Input& input, const TraceScope& trace) const;
  /// Fills `choice`, of the rows of `input`, for all parts that need one. `q_latent`: [rows, q_rank], normalised. The
  /// keys of the rows have been stored.
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
