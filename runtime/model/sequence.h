// A conversation's state in the model: its KV cache, the tokens in it, the passes recorded over that cache, and the MTP
// module's state. Models and modules are shared; a sequence belongs to the caller of Model::make_sequence. Only passes,
// and copies of positions that passes have computed (KvBlock), extend it.
// Threads: single-thread. Lifetime: owns its memory; borrows the queue of the model that made it, and must be destroyed
// before it. Errors: the device's failure.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/model/kv_block.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/recorded_pass.h"
#include "runtime/model/residual.h"

namespace dspack::runtime {

/// The state of a module for drafts (draft_module.h) in a sequence: a KV cache of its layers, and what it reads of the
/// main model at pending positions, which it has not read yet, so that it can catch up in one batch when drafting
/// starts: the residuals, or for DSpark the means of streams.
///   0          begin_               length()    length() + pending()
///   |  no past |  read by the module  |  residuals  |
/// The module's past may begin late: after a prefix that came as a KvBlock, which has no residuals, and where only the
/// last residuals are kept, since its layer attends to a window. Since its rotary positions are relative, a late begin
/// can make drafts worse, but not an answer.
class MtpState {
 public:
  /// Position of the sequence at which the module reads next.
  [[nodiscard]] uint32_t length() const { return begin_ + cache_.length(); }
  /// Positions from length() on that the main model has computed.
  [[nodiscard]] uint32_t pending() const { return pending_; }

  /// Cuts to `length` positions, after the main model's cache was cut or to drop drafts. The last remaining position
  /// that the module has read keeps the next token with which it was read: that can make a draft worse, never an
  /// answer.
  void truncate(uint32_t length);

  [[nodiscard]] uint64_t cache_bytes() const { return cache_.size_bytes(); }
  [[nodiscard]] uint64_t residual_bytes() const { return residuals_->size_bytes(); }
  /// How many residuals are kept at most: all of `context`, or, if the module's layer attends to a window, those that
  /// its last row reads after any cut (CachePlane::kRewind).
  [[nodiscard]] static uint32_t residuals_for(const ModelConfig& config, uint32_t context) {
    return config.window ? std::min(context, config.window->positions + CachePlane::kRewind) : context;
  }
  /// Values of a residual.
  [[nodiscard]] static uint32_t width(const ModelConfig& config) {
    return config.dspark ? static_cast<uint32_t>(config.dspark->layers.size()) * config.hidden
                         : Residual::width(config);
  }
  [[nodiscard]] static uint64_t residual_bytes_for(const ModelConfig& config, uint32_t context) {
    return uint64_t{residuals_for(config, context)} * width(config) * sizeof(float);
  }

 private:
  friend class Model;
  friend class DsparkModule;
  friend class MtpModule;
  friend class Sequence;
  /// `residuals`: FP32 [room, width].
  MtpState(kernels::Queue& queue, KvCache cache, std::unique_ptr<kernels::Buffer> residuals, uint32_t room,
           uint32_t width)
      : queue_(&queue),
        cache_(std::move(cache)),
        residuals_(std::move(residuals)),
        room_(room),
        width_(width),
        recorded_(queue, cache_.capacity()) {}
  void observe(const kernels::Rows& residual);
  /// A pass of the module over `rows` rows was not completed. Without what it has overwritten, its past begins anew.
  void give_up(uint32_t rows);
  /// Copies the state that `other` has of the first `length` positions.
  void take_over(const MtpState& other, uint32_t length);
  /// Restarts at `position`: positions before it have no residuals.
  void begin_at(uint32_t position);
  /// The rows of positions from `position` on that are adjacent in the ring, `count` at most.
  [[nodiscard]] kernels::Rows residuals(uint32_t position, uint32_t count) const;

  kernels::Queue* queue_;
  KvCache cache_;
  std::unique_ptr<kernels::Buffer> residuals_;  // a ring: a position's row is at its remainder by room_
  uint32_t room_;
  uint32_t width_;
  RecordedPass recorded_;  // the module's layers
  uint32_t begin_ = 0;     // position of the sequence at which the module's past begins
  uint32_t pending_ = 0;
};

class Sequence {
 public:
  [[nodiscard]] uint32_t capacity() const { return cache_.capacity(); }
  /// Positions that hold a token.
  [[nodiscard]] uint32_t length() const { return cache_.length(); }
  [[nodiscard]] std::span<const uint32_t> tokens() const { return tokens_; }
  /// The length to which a cut at `length` is possible (KvCache::cut_point): `length` or 0.
  [[nodiscard]] uint32_t cut_point(uint32_t length) const { return cache_.cut_point(length); }
  /// Drops all positions from cut_point(length) on.
  void truncate(uint32_t length);
  /// Extends this sequence to the first `length` positions of `other`, a sequence of the same model, with MTP if this
  /// one has it. Precondition: this sequence is a prefix of them, and `length` is a cut_point of `other`.
  void extend_from(const Sequence& other, uint32_t length);
  /// Appends `positions` positions that repeat the present tokens and copies of their rows: for measuring a pass at
  /// this length without computing the positions before it. Not with MTP.
  void repeat(uint32_t positions);

  /// A copy of `count` positions from `first` on. Precondition: they hold tokens. Errors: the device's failure.
  [[nodiscard]] Result<KvBlock> read_block(uint32_t first, uint32_t count) const;
  /// Appends a block's positions from the present length to `end`, with the bits that a pass would leave. Precondition:
  /// the block has this cache's shape and includes both. If the cache has rings: the whole block; and after one that
  /// does not go on, only further blocks. Errors: the device's failure; the sequence is then as before.
  [[nodiscard]] Result<void> append(const KvBlock& block, uint32_t end);

  [[nodiscard]] const KvCache& cache() const { return cache_; }
  /// nullptr: made without MTP, so the module cannot draft for it.
  [[nodiscard]] MtpState* mtp() { return mtp_ ? &*mtp_ : nullptr; }
  [[nodiscard]] const MtpState* mtp() const { return mtp_ ? &*mtp_ : nullptr; }

 private:
  friend class Model;
  Sequence(kernels::Queue& queue, KvCache cache)
      : queue_(&queue), cache_(std::move(cache)), recorded_(queue, cache_.capacity()) {}
  /// After a complete pass, which left `residual` [tokens, MtpState::width].
  void append(std::span<const uint32_t> tokens, const kernels::Rows& residual);
  /// After an incomplete pass over `tokens` tokens.
  void give_up(uint32_t tokens);

  kernels::Queue* queue_;
  KvCache cache_;
  std::vector<uint32_t> tokens_;
  RecordedPass recorded_;  // all layers
  std::optional<MtpState> mtp_;
};

}  // namespace dspack::runtime
