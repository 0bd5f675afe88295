// Multi-head latent attention in its absorbed form: queries are carried into the latent space, so that the cache holds
// one latent and one rotary key per token, shared by all heads, and keys and values are never expanded. A second form
// expands them, as a check on the first.
// Threads: single-thread. Lifetime: borrows the layer's weights and scratch. Source: DeepSeek-V3 inference/model.py,
// MLA.
#pragma once

#include <string>

#include "runtime/model/config.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/recorded_pass.h"
#include "runtime/model/scratch.h"
#include "runtime/model/trace.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

struct AttentionWeights {
  Linear q_a;              // [q_rank, hidden]; empty where there is no q_rank
  kernels::Slice q_norm;   // [q_rank]
  Linear q_b;              // [heads * query_dim, q_rank], or q_proj [.., hidden] where there is no q_rank
  Linear kv_a;             // [kv_rank + rope_dim, hidden]
  kernels::Slice kv_norm;  // [kv_rank]
  Linear kv_b;             // [heads * (nope_dim + value_dim), kv_rank]
  Linear o;                // [hidden, heads * value_dim]
};

/// Adds the attention weights of a layer to its group.
[[nodiscard]] Result<void> add_attention(WeightGroup& group, AttentionWeights& weights, const ModelConfig& config,
                                         const std::string& layer_name);

/// Two ways to the same result; `expanded` is slow and there to check the other (expanded_attention.h).
enum class AttentionForm { absorbed, expanded };

struct AttentionOptions {
  AttentionForm form = AttentionForm::absorbed;
  uint32_t context = 0;            // positions of the cache
  Dtype cache_dtype = Dtype::f32;  // of the cache: f32 (exact), bf16, f16 or f8_e4m3
};

class Attention {
 public:
  /// Reserves scratch for `wave_rows` tokens at a time; where the form is `expanded`, also for the keys and values of
  /// the whole context (V3: 131 kB a position).
  Attention(const ModelConfig& config, const AttentionOptions& options, uint32_t wave_rows, ScratchPlan& plan);

  struct Input {
    kernels::Rows x;  // [rows, hidden], normalised; at most wave_rows
    CacheRows cache;  // of the layer
    PassPosition position;
    kernels::Slice cos_sin;  // see kernels::RopeArgs
  };
  /// Appends the tokens to the cache at the position and attends: y [rows, hidden]. At a live position: at most
  /// kMostRecordedRows rows, and not in the expanded form.
  void run(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights, const Input& input,
           const kernels::Rows& y, const TraceScope& trace = {}) const;

 private:
  void fill_cache(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights, const Input& input,
                  const TraceScope& trace) const;
  void make_queries(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                    const Input& input, const TraceScope& trace) const;
  void attend_absorbed(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                       const Input& input) const;
  void attend_expanded(kernels::Queue& queue, kernels::Buffer& scratch, const AttentionWeights& weights,
                       const Input& input, const TraceScope& trace) const;
  [[nodiscard]] kernels::HeadLinearArgs heads_of_kv_b(const AttentionWeights& weights, uint32_t rows) const;

  const ModelConfig& config_;
  AttentionForm form_;
  Dtype cache_dtype_;
  float scale_;
  // In the scratch buffer.
  uint64_t q_latent_at_, q_at_, absorbed_at_, attended_at_, heads_at_, expanded_at_, new_rows_at_, cache_values_at_;
};

}  // namespace dspack::runtime
