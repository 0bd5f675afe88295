// Compresses a sequence's positions into entries, one per `every` positions (kernels::CompressArgs), and keeps them in
// its cache, together with the rows that later entries need.
// Threads, lifetime, errors: attention_block.h. Source: DeepSeek-V4 inference/model.py, class Compressor.
#pragma once

#include "runtime/model/attention_block.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

/// In a pass: add_products(), the products, run(); then entries() has the new ones.
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

}  // namespace dspack::runtime
