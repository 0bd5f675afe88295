// Multi-head latent attention in its absorbed form: queries are carried into the latent space, so that the cache holds
// one latent and one rotary key per token, shared by all heads, and keys and values are never expanded.
// Where the model's attention is sparse, a row attends to what its layer's indexer has chosen, or that of a layer
// before.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V3 inference/model.py, MLA.
#pragma once

#include <optional>

#include "runtime/model/attention_block.h"
#include "runtime/model/indexer.h"

namespace dspack::runtime {

class MlaAttention final : public AttentionBlock {
 public:
  /// The normalised latent and the rotated key of a position, in FP32 (exact) or rounded to BF16, F16
  /// or FP8 (kernels/latent_rows.h).
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
  /// Of sparse attention, for rows from `first` of the pass on. A layer with an indexer fills it, and others attend to
  /// what the last one of those has chosen.
  [[nodiscard]] kernels::Choice choice_in(kernels::Slice scratch, uint32_t first) const;
  /// Where kv_a's output goes: kv_a's output is the cache's row as it is, latent, then rotary key, and it is finished
  /// in the cache itself where that is FP32 and all rows have one known place there; else before it is stored in it.
  struct NewRows {
    kernels::Rows rows;
    bool is_in_cache = false;
  };
  [[nodiscard]] NewRows new_rows(const Input& input) const;
  /// Stores the rows in the cache and leaves queries, and their latents if there are any, in the scratch memory; where
  /// somebody listens, module by module.
  void project(kernels::Queue& queue, const Input& input) const;
  void project_traced(kernels::Queue& queue, const Input& input, const TraceScope& trace) const;
  void store(kernels::Queue& queue, const Input& input, const NewRows& made) const;
  [[nodiscard]] kernels::Rows query_rows(const Input& input) const;
  [[nodiscard]] kernels::Rows query_latents(const Input& input) const;
  void index(kernels::Queue& queue, const Input& input, const TraceScope& trace) const;
  /// With a key and a value of each head, where the queue takes less time for it; false: nothing was done.
  [[nodiscard]] bool attend_expanded(kernels::Queue& queue, const Input& input) const;
  /// Rotates the queries and carries them into the latent space.
  void scale_queries(kernels::Queue& queue, const Input& input) const;
  void absorb(kernels::Queue& queue, const Input& input) const;
  void attend(kernels::Queue& queue, const Input& input) const;
  [[nodiscard]] kernels::HeadLinearArgs heads_of_kv_b(uint32_t rows) const;

  const ModelConfig& config_;
  AttentionOptions options_;
  float scale_;
  // In the scratch memory. Choices are of all rows of a pass where layers or passes share them, else of one wave;
  // layers without an indexer have them in the same place.
  uint64_t chosen_at_, chosen_counts_at_;
  uint64_t q_latent_at_, q_at_, absorbed_at_, attended_at_, heads_at_, new_rows_at_;
  uint64_t scratch_bytes_;

  Linear q_a_;              // [q_rank, hidden]; empty where there is no q_rank
  kernels::Slice q_norm_;   // [q_rank]
  Linear q_b_;              // [heads * query_dim, q_rank], or q_proj [.., hidden] where there is no q_rank
  Linear kv_a_;             // [kv_rank + rope_dim, hidden]
  kernels::Slice kv_norm_;  // [kv_rank]
  Linear kv_b_;             // [heads * (nope_dim + value_dim), kv_rank]
  Linear o_;                // [hidden, heads * value_dim]
  std::optional<Indexer> indexer_;
};

}  // namespace dspack::runtime
