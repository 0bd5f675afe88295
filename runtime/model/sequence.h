// One conversation as the model sees it: its KV cache, the tokens in it, the passes that were recorded over that cache,
// and what the MTP module keeps of it. Models and modules are shared; a sequence belongs to the caller of
// Model::make_sequence, and only passes, and copies of
// positions that passes have left (KvBlock), change it.
// Threads: single-thread. Lifetime: owns its memory; borrows the queue of the model that made it and must go before it.
// Errors: the device's failure.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/model/kv_block.h"
#include "runtime/model/kv_cache.h"
#include "runtime/model/recorded_pass.h"

namespace dspack::runtime {

/// What the MTP module (mtp.h) keeps of a sequence: a KV cache of one layer, and the main model's residuals of the
/// positions that the module has not read yet, so that it can catch up in one batch when drafting starts. The module
/// sees all positions that the main model has passed here. Of a prefix that came as a KvBlock nobody has residuals:
/// there the module's past begins behind it. Its rotary positions are relative, so that drafts can be worse, and an
/// answer cannot.
class MtpState {
 public:
  /// Positions of the sequence before the first that the module has not read.
  [[nodiscard]] uint32_t length() const { return begin_ + cache_.length(); }
  /// Positions that the main model has passed since.
  [[nodiscard]] uint32_t pending() const { return pending_; }

  /// The main model's cache was cut to `length` positions, or drafts are to be forgotten. Where that cuts into
  /// positions that the module has read, the last one left stays as it was read, with the token that then followed: it
  /// can make a draft worse, never an answer.
  void truncate(uint32_t length);
  /// As before the last catching up, for a second look at the same positions: they are pending again.
  void undo_catch_up();

  [[nodiscard]] uint64_t cache_bytes() const { return cache_.size_bytes(); }
  [[nodiscard]] uint64_t residual_bytes() const { return residuals_->size_bytes(); }
  /// Of the residuals of so many positions.
  [[nodiscard]] static uint64_t residual_bytes_for(uint32_t hidden, uint64_t positions) {
    return positions * hidden * sizeof(float);
  }

 private:
  friend class Model;
  friend class MtpModule;
  friend class Sequence;
  MtpState(kernels::Queue& queue, KvCache cache, std::unique_ptr<kernels::Buffer> residuals, uint32_t hidden)
      : queue_(&queue),
        cache_(std::move(cache)),
        residuals_(std::move(residuals)),
        hidden_(hidden),
        recorded_(queue, cache_.capacity()) {}
  void observe(const kernels::Rows& residual);
  /// As if it had seen what `other` has of the first `length` positions.
  void take_over(const MtpState& other, uint32_t length);
  /// The positions before have no residuals.
  void begin_at(uint32_t position);
  [[nodiscard]] kernels::Rows residuals(uint32_t first, uint32_t count) const;

  kernels::Queue* queue_;
  KvCache cache_;
  std::unique_ptr<kernels::Buffer> residuals_;  // FP32 [capacity, hidden]
  uint32_t hidden_;
  RecordedPass recorded_;  // of the module's layer
  uint32_t begin_ = 0;     // position of the sequence at which the module's past begins
  uint32_t pending_ = 0;
  uint32_t caught_up_ = 0;  // positions of the last catch_up
};

class Sequence {
 public:
  [[nodiscard]] uint32_t capacity() const { return cache_.capacity(); }
  /// Positions that hold a token.
  [[nodiscard]] uint32_t length() const { return cache_.length(); }
  [[nodiscard]] std::span<const uint32_t> tokens() const { return tokens_; }
  /// The length up to `length` that it can be cut to (KvCache::cut_point): 0, or `length` itself.
  [[nodiscard]] uint32_t cut_point(uint32_t length) const { return cache_.cut_point(length); }
  /// Forgets all positions from cut_point(length) on.
  void truncate(uint32_t length);
  /// Takes over the first `length` positions of `other`, a sequence of the same model with or without MTP like this
  /// one. What this one holds must be their beginning; `length` is a cut_point of the other.
  void extend_from(const Sequence& other, uint32_t length);
  /// Appends positions as if the tokens from position 0 on came again and again, with copies of their rows: what a
  /// pass costs after so many positions, without the time of computing them. Not with MTP.
  void repeat(uint32_t positions);

  /// A copy of `count` positions from `first` on, which must hold tokens. Errors: the device's failure.
  [[nodiscard]] Result<KvBlock> read_block(uint32_t first, uint32_t count) const;
  /// Appends positions of a block of this shape, from the present length to `end`, both within the block: with the bits
  /// that a pass would leave. Where the cache has rings, whole blocks alone, and after one that does not go on only
  /// blocks are appended. Errors: the device's failure; the sequence is then as before.
  [[nodiscard]] Result<void> append(const KvBlock& block, uint32_t end);

  [[nodiscard]] const KvCache& cache() const { return cache_; }
  /// nullptr: it was made without, and the MTP module cannot draft for it.
  [[nodiscard]] MtpState* mtp() { return mtp_ ? &*mtp_ : nullptr; }
  [[nodiscard]] const MtpState* mtp() const { return mtp_ ? &*mtp_ : nullptr; }

 private:
  friend class Model;
  Sequence(kernels::Queue& queue, KvCache cache)
      : queue_(&queue), cache_(std::move(cache)), recorded_(queue, cache_.capacity()) {}
  /// A pass has gone through all layers and left `residual` [tokens, hidden].
  void append(std::span<const uint32_t> tokens, const kernels::Rows& residual);
  /// A pass over so many tokens has not come to its end.
  void give_up(uint32_t tokens);

  kernels::Queue* queue_;
  KvCache cache_;
  std::vector<uint32_t> tokens_;
  RecordedPass recorded_;  // of all layers
  std::optional<MtpState> mtp_;
};

}  // namespace dspack::runtime
