// DeepSeek-V4's attention: all heads share one key per position, which is also the value. A row attends to the keys of
// the last positions (a window) and, in most layers, to entries that compress older positions: to all of them, or to
// those that an indexer chooses.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V4 inference/model.py, classes Attention and Indexer.
// That code rounds keys and entries to FP8 and the indexer's values to FP4, as training did; here they are only rounded
// to the cache's type.
#pragma once

#include <optional>

#include "runtime/model/attention_block.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

/// Compresses a sequence's positions into entries, one per `every` positions (kernels::CompressArgs), and keeps them in
/// its cache, together with the rows that later entries need. In a pass: add_products(), the products, run(); then
/// entries() has the new ones. Source: DeepSeek-V4 inference/model.py, class Compressor.
class Compressor {
 public:
  struct Shape {
    std::string_view entries;  // names of the two planes
    std::string_view state;
    uint32_t dim = 0;    // values in an entry
    uint32_t every = 0;  // positions per entry
    bool overlaps = false;
    Dtype dtype = Dtype::f32;  // type of stored entries
  };
  /// Reserves its places in the scratch memory of the block.
  Compressor(const ModelConfig& config, const Shape& shape, uint32_t wave_rows, ScratchPlan& plan);

  [[nodiscard]] std::vector<CachePlane> cache_planes() const;
  /// `name`: "layers.3.attn.compressor".
  [[nodiscard]] Result<void> add_weights(WeightGroup& group, const std::string& name);

  /// Appends the products of input.x that entries are computed from.
  void add_products(const AttentionBlock::Input& input, std::vector<kernels::Product>& products) const;
  /// After these products: computes the entries that the input's rows complete.
  void run(kernels::Queue& queue, const AttentionBlock::Input& input) const;
  [[nodiscard]] CacheRows entries(const KvCache& cache, uint32_t layer) const {
    return cache.rows(layer, shape_.entries);
  }

 private:
  [[nodiscard]] uint32_t width() const { return shape_.overlaps ? 2 * shape_.dim : shape_.dim; }

  const ModelConfig& config_;
  Shape shape_;
  uint64_t values_at_, gates_at_;  // in the scratch memory

  Linear values_;        // wkv [width, hidden]
  Linear gates_;         // wgate [width, hidden]
  kernels::Slice ape_;   // [every, width]
  kernels::Slice norm_;  // [dim]
};

class WindowAttention final : public AttentionBlock {
 public:
  WindowAttention(const ModelConfig& config, const AttentionOptions& options, LayerId layer);

  [[nodiscard]] std::vector<CachePlane> cache_planes() const override;
  [[nodiscard]] uint64_t scratch_bytes() const override { return scratch_bytes_; }
  [[nodiscard]] kernels::WorkspaceShape workspace(uint32_t positions) const override;
  [[nodiscard]] Result<void> add_weights(WeightGroup& group, const std::string& block_name) override;
  [[nodiscard]] std::vector<std::string> modules() const override;
  [[nodiscard]] std::vector<kernels::Weight> readers() const override;
  void run(kernels::Queue& queue, const Input& input, const kernels::Rows& y, const kernels::Rows& residual,
           const TraceScope& trace) const override;
  /// Only in a layer without entries.
  void remember(kernels::Queue& queue, const Input& input) const override;

 private:
  /// For layers whose entries are chosen: its keys are smaller entries of the same positions.
  struct Indexer {
    Compressor keys;
    uint64_t queries_at, weights_at, chosen_at, counts_at;  // in the scratch memory
    Linear queries;                                         // wq_b [heads * dim, q_rank]
    Linear weights;                                         // weights_proj [heads, hidden]
  };
  void project(kernels::Queue& queue, const Input& input, const TraceScope& trace) const;
  void rotate(kernels::Queue& queue, const Input& input, const kernels::Rows& rows, uint32_t heads,
              kernels::RopePairs pairs, bool inverse) const;
  [[nodiscard]] bool needs_choice(const PassPart& part) const;
  [[nodiscard]] kernels::Choice choice(const Input& input, uint32_t first) const;
  void choose(kernels::Queue& queue, const Input& input, const PassPart& part, uint32_t at) const;
  /// Attends batch by batch over the rows of one part: a batch has the rows that the ring can hold besides the window.
  /// A part that is a block is one batch, and each of its rows a call.
  void attend(kernels::Queue& queue, const Input& input, const PassPart& part, uint32_t at) const;
  void store(kernels::Queue& queue, const kernels::Rows& keys, const CacheRows& ring,
             const PassPosition& position) const;
  [[nodiscard]] kernels::Rows query_rows(const Input& input) const;
  [[nodiscard]] kernels::Rows key_rows(const Input& input) const;
  [[nodiscard]] uint32_t head_dim() const { return config_.query_dim(); }

  const ModelConfig& config_;
  AttentionOptions options_;
  uint32_t every_;                                                // positions per entry; 0: the layer has no entries
  uint64_t q_latent_at_, q_at_, keys_at_, heads_at_, groups_at_;  // in the scratch memory
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
  uint64_t scratch_bytes_;

  Linear q_a_;              // wq_a [q_rank, hidden]
  kernels::Slice q_norm_;   // [q_rank]
  Linear q_b_;              // wq_b [heads * head_dim, q_rank]
  Linear kv_;               // wkv [head_dim, hidden]
  kernels::Slice kv_norm_;  // [head_dim]
  kernels::Slice sinks_;    // attn_sink [heads]
  Linear o_a_;              // wo_a [groups * rank, heads * head_dim / groups]
  Linear o_b_;              // wo_b [hidden, groups * rank]
};

}  // namespace dspack::runtime
