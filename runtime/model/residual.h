// What layers hand on, the residual stream, and how a block's output joins it. Plain: one vector a token, to which
// outputs are added. Mixed: several vectors a token (streams), of which a block reads one mixture, and which its output
// joins by another (manifold-constrained hyper-connections of DeepSeek-V4).
// Threads: thread-safe once made. Lifetime: borrows the configuration. Errors: those of finding weights.
// Source: DeepSeek-V4 inference/model.py, Block.hc_pre, hc_post and Transformer.hc_head; arXiv 2512.24880.
#pragma once

#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/weights/scratch.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// How a block reads the streams and joins them; empty where the residual is plain.
struct MixWeights {
  Linear fn;             // [2 n + n n, n * hidden], n streams; at the model's end [n, n * hidden]
  kernels::Slice base;   // [as many as fn has rows]
  kernels::Slice scale;  // [3], or [1]
};

class Residual {
 public:
  /// Reserves scratch for passes of `max_rows` tokens.
  [[nodiscard]] static std::unique_ptr<Residual> make(const ModelConfig& config, uint32_t max_rows, ScratchPlan& plan);
  virtual ~Residual() = default;

  /// Values of a token.
  [[nodiscard]] static uint32_t width(const ModelConfig& config) {
    return config.hidden * (config.streams ? config.streams->count : 1);
  }
  /// Adds the weights of the mixture `name` ("layers.3.hc_attn") to the group, or those at the model's end.
  enum class Mixture { of_block, at_end };
  [[nodiscard]] static Result<void> add_weights(WeightGroup& group, const ModelConfig& config, MixWeights& weights,
                                                const std::string& name, Mixture mixture = Mixture::of_block);

  struct Context {
    kernels::Queue& queue;
    kernels::Slice mix;  // mix_bytes: what a block's read leaves for its join
    const MixWeights& weights;
  };
  /// For `rows` tokens.
  [[nodiscard]] virtual uint64_t mix_values(uint32_t rows) const = 0;
  /// Where the mixture of a pass's rows from `first` on lies between a block's read and its join.
  [[nodiscard]] virtual kernels::Slice mix_in(kernels::Buffer& scratch, uint32_t first) const = 0;

  /// `stream` [rows, width], whose first `hidden` values are a token's embedding, becomes what the first layer reads.
  virtual void begin(kernels::Queue& queue, const kernels::Rows& stream) const = 0;
  /// What a block reads, before its norm: [rows, hidden]; it may be in `place`, or part of the stream.
  [[nodiscard]] virtual kernels::Rows read(const Context& context, const kernels::Rows& stream,
                                           const kernels::Rows& place) const = 0;
  /// Rows to which a block adds its output itself, where that is all that it takes to join; else none.
  [[nodiscard]] virtual kernels::Rows sum_of(const kernels::Rows& stream) const = 0;
  /// A block's output y [rows, hidden] joins the stream. Precondition: its read has left the mixture.
  virtual void join(const Context& context, const kernels::Rows& stream, const kernels::Rows& y) const = 0;
  /// What the final norm reads: as `read`.
  [[nodiscard]] virtual kernels::Rows end(const Context& context, const kernels::Rows& stream,
                                          const kernels::Rows& place) const = 0;
};

}  // namespace dspack::runtime
