// The residual stream between layers, and how a block's output joins it. Plain: one vector per token, to which outputs
// are added. Mixed: several vectors per token (streams); a block reads a mixture of them, and its output joins them by
// another (manifold-constrained hyper-connections of DeepSeek-V4).
// Threads: thread-safe once made. Lifetime: borrows the configuration. Errors: those of finding weights. Source:
// DeepSeek-V4 inference/model.py, Block.hc_pre, hc_post and Transformer.hc_head; arXiv 2512.24880.
#pragma once

#include <memory>
#include <string>

#include "runtime/config/config.h"
#include "runtime/weights/scratch.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// Weights by which a block reads the streams and joins them; empty for a plain residual.
struct MixWeights {
  Linear fn;             // [2 n + n n, n * hidden], n streams; at the model's end [n, n * hidden]
  kernels::Slice base;   // [rows of fn]
  kernels::Slice scale;  // [3], or [1]
};

/// In a pass: begin(); for each block read(), the block, join() (or the block adds to sum_of()); end().
class Residual {
 public:
  /// Reserves scratch for passes of `max_rows` tokens.
  [[nodiscard]] static std::unique_ptr<Residual> make(const ModelConfig& config, uint32_t max_rows, ScratchPlan& plan);
  virtual ~Residual() = default;

  /// Values per token.
  [[nodiscard]] static uint32_t width(const ModelConfig& config) {
    return config.hidden * (config.streams ? config.streams->count : 1);
  }
  /// Adds the weights of the mixture `name` ("layers.3.hc_attn"), of a block or at the model's end, to the group.
  enum class Mixture { of_block, at_end };
  [[nodiscard]] static Result<void> add_weights(WeightGroup& group, const ModelConfig& config, MixWeights& weights,
                                                const std::string& name, Mixture mixture = Mixture::of_block);

  struct Context {
    kernels::Queue& queue;
    kernels::Slice mix;  // mix_values: written by a block's read for its join
    const MixWeights& weights;
  };
  /// FP32 values of the mixture of `rows` tokens.
  [[nodiscard]] virtual uint64_t mix_values(uint32_t rows) const = 0;
  /// Place of the mixture of a pass's rows from `first` on, between a block's read and its join.
  [[nodiscard]] virtual kernels::Slice mix_in(kernels::Buffer& scratch, uint32_t first) const = 0;

  /// Turns `stream` [rows, width], whose first `hidden` values are a token's embedding, into the first layer's input.
  virtual void begin(kernels::Queue& queue, const kernels::Rows& stream) const = 0;
  /// A block's input, before its norm: [rows, hidden], in `place` or in the stream.
  [[nodiscard]] virtual kernels::Rows read(const Context& context, const kernels::Rows& stream,
                                           const kernels::Rows& place) const = 0;
  /// The rows to which a block adds its output itself, if that is the whole join; otherwise no rows.
  [[nodiscard]] virtual kernels::Rows sum_of(const kernels::Rows& stream) const = 0;
  /// Joins a block's output y [rows, hidden] to the stream. Precondition: the block's read has written the mixture.
  virtual void join(const Context& context, const kernels::Rows& stream, const kernels::Rows& y) const = 0;
  /// The final norm's input, placed as by `read`.
  [[nodiscard]] virtual kernels::Rows end(const Context& context, const kernels::Rows& stream,
                                          const kernels::Rows& place) const = 0;
};

}  // namespace dspack::runtime
