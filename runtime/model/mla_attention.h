// Multi-head latent attention in its absorbed form: queries are mapped into the latent space, so the cache holds one
// latent and one rotary key per token, shared by all heads, and keys and values need not be expanded. A queue may still
// expand them for the rows of a prompt, if that is faster. In a model with sparse attention, a row attends to the
// positions that its layer's indexer has chosen, or the last one before it.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V3 inference/model.py, MLA.
#pragma once

#include <optional>

#include "runtime/model/attention_block.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

/// The lightning indexer of sparse attention: stores a small key for every position, scores all keys for each row, and
/// chooses the positions that the row attends to. Source: DeepSeek-V3.2-Exp inference/model.py, class Indexer, and the
/// technical report, section 1. That code multiplies queries and keys by a Hadamard matrix and rounds them to FP8 for
/// its kernel. Neither is done here: rotating both leaves their products unchanged. It also multiplies the heads'
/// weights by two positive constants, which do not affect the choice.
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

class MlaAttention final : public AttentionBlock {
 public:
  /// The normalised latent and the rotated key of a position, in FP32 (exact) or rounded to BF16, F16 or FP8
  /// (kernels/latent_rows.h).
  static constexpr std::string_view kLatents = "latent";

  MlaAttention(const ModelConfig& config, const AttentionOptions& options, LayerId layer);

  [[nodiscard]] std::vector<CachePlane> cache_planes() const override;
  [[nodiscard]] uint64_t scratch_bytes() const override { return scratch_bytes_; }
  [[nodiscard]] kernels::WorkspaceShape workspace(uint32_t positions) const override;
  [[nodiscard]] Result<void> add_weights(WeightGroup& group, const std::string& block_name) override;
  [[nodiscard]] std::vector<std::string> modules() const override;
  [[nodiscard]] std::vector<kernels::Weight> readers() const override;
  void run(kernels::Queue& queue, const Input& input, const kernels::Rows& y, const kernels::Rows& residual,
           const TraceScope& trace) const override;
  void pass_on(kernels::Queue& queue, kernels::Slice scratch, uint32_t row) const override;
  void choose_first(kernels::Queue& queue, kernels::Slice scratch, uint32_t rows, uint32_t positions) const override;

 private:
  /// Sparse attention's choice for the pass's rows from `first` on. A layer with an indexer fills it; later layers
  /// without one reuse it.
  [[nodiscard]] kernels::Choice choice_in(kernels::Slice scratch, uint32_t first) const;
  /// Destination of kv_a's output, which has a cache row's layout: latent, then rotary key. It is the cache itself if
  /// that is FP32 and all rows have one known place there; otherwise scratch memory, from which rows are stored.
  struct NewRows {
    kernels::Rows rows;
    bool is_in_cache = false;
  };
  [[nodiscard]] NewRows new_rows(const Input& input) const;
  /// Stores the rows in the cache and leaves queries, and their latents if there are any, in the scratch memory;
  /// project_traced does so module by module, for a trace.
  void project(kernels::Queue& queue, const Input& input) const;
  void project_traced(kernels::Queue& queue, const Input& input, const TraceScope& trace) const;
  void store(kernels::Queue& queue, const Input& input, const NewRows& made) const;
  [[nodiscard]] kernels::Rows query_rows(const Input& input) const;
  [[nodiscard]] kernels::Rows query_latents(const Input& input) const;
  void index(kernels::Queue& queue, const Input& input, const TraceScope& trace) const;
  /// Attends with expanded keys and values, if the queue finds that faster; false: nothing was done.
  [[nodiscard]] bool attend_expanded(kernels::Queue& queue, const Input& input) const;
  /// Scales the queries by position (RopeConfig::query_beta).
  void scale_queries(kernels::Queue& queue, const Input& input) const;
  /// Rotates the queries and maps them into the latent space.
  void absorb(kernels::Queue& queue, const Input& input) const;
  void attend(kernels::Queue& queue, const Input& input) const;
  [[nodiscard]] kernels::HeadLinearArgs heads_of_kv_b(uint32_t rows) const;

  const ModelConfig& config_;
  AttentionOptions options_;
  float scale_;
  // Offsets in the scratch memory. Choices cover all rows of a pass if layers or passes share them, else one wave;
  // layers without an indexer find them at the same offset.
  uint64_t chosen_at_, chosen_counts_at_;
  uint64_t q_latent_at_, q_at_, absorbed_at_, attended_at_, heads_at_, new_rows_at_;
  uint64_t scratch_bytes_;

  Linear q_a_;              // [q_rank, hidden]; empty without q_rank
  kernels::Slice q_norm_;   // [q_rank]
  Linear q_b_;              // [heads * query_dim, q_rank], or q_proj [.., hidden] without q_rank
  Linear kv_a_;             // [kv_rank + rope_dim, hidden]
  kernels::Slice kv_norm_;  // [kv_rank]
  Linear kv_b_;             // [heads * (nope_dim + value_dim), kv_rank]
  Linear o_;                // [hidden, heads * value_dim]
  std::optional<Indexer> indexer_;
};

}  // namespace dspack::runtime
