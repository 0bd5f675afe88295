// Attention as the published equations write it: a key and a value for every head and position, and ordinary
// multi-head attention over them. A second implementation, to check the product's absorbed form against: plain loops in
// double precision on the host, slow on purpose, sharing with the other only what comes before keys and queries and
// what comes after the heads' outputs. It listens to a pass and puts its own result in the place of what o_proj is
// about to read, so that the rest of the pass computes with it. Threads: single-thread. Lifetime: borrows all that it
// is made with. Errors: fail the test, or status(). Source: DeepSeek-V3 inference/model.py, MLA, attn_impl "naive".
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/model/model.h"

namespace dspack::test {

class ExpandedAttention final : public runtime::Trace {
 public:
  /// For passes of `model` over `sequence` alone, of `tokens` tokens each. `inner` hears of the pass as well, with the
  /// values that it computes with, and of the modules self_attn.kv_b_proj, which the absorbed form does not compute;
  /// nullptr: nobody.
  ExpandedAttention(const runtime::LoadContext& context, const runtime::Model& model, const runtime::Sequence& sequence,
                    uint32_t tokens, runtime::Trace* inner = nullptr);
  ~ExpandedAttention() override;

  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void routing(std::string_view module, const Routing& routing) override;
  [[nodiscard]] Result<void> status() const override;

  /// How often it has put its result in.
  [[nodiscard]] uint64_t replaced() const { return replaced_; }

 private:
  struct Layer;
  void attend(const std::string& layer_name, Layer& layer, const kernels::Rows& heads);
  [[nodiscard]] std::vector<float> values(const kernels::Rows& rows);
  /// The first `positions` of a layer's cache.
  [[nodiscard]] std::vector<float> stored_values(const runtime::CacheRows& rows, uint32_t positions);

  kernels::Device& device_;
  kernels::Queue& queue_;
  const runtime::ModelConfig& config_;
  const runtime::Sequence& sequence_;
  uint32_t tokens_;
  runtime::Trace* inner_;
  uint64_t replaced_ = 0;
  std::map<std::string, std::unique_ptr<Layer>, std::less<>> layers_;  // by "model.layers.3"
};

}  // namespace dspack::test
