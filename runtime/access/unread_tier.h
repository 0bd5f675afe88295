// The tier of a catalogue without weights: for plans of models of which only config.json was read.
// Threads: thread-safe. Lifetime: borrows the catalogue. Errors: not_found for every read.
#pragma once

#include "runtime/access/folder_tier.h"

namespace dspack::runtime {

class UnreadTier final : public Tier {
 public:
  /// `medium`: where the weights are assumed to be.
  UnreadTier(const format::Checkpoint& checkpoint, Medium medium) : checkpoint_(checkpoint), medium_(medium) {}

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }
  [[nodiscard]] Result<void> read(uint32_t /*file*/, uint64_t /*offset*/, std::span<std::byte> /*into*/,
                                  const std::stop_token& /*stop*/) override {
    return Error{ErrorKind::not_found, "only config.json was read of this model; its weights are not here"};
  }
  [[nodiscard]] Medium medium_of(ExpertKey /*expert*/) const override { return medium_; }
  [[nodiscard]] bool must_verify(ExpertKey /*expert*/) const override { return false; }
  [[nodiscard]] Result<void> keep(ExpertKey /*expert*/, std::span<const TensorBytes> /*tensors*/,
                                  const std::stop_token& /*stop*/) override {
    return {};
  }
  [[nodiscard]] bool is_distant() const override { return medium_ == Medium::network; }
  // A folder's values, so that a plan has the threads and buffers of a run.
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override { return kLocalBlockBytes; }
  [[nodiscard]] unsigned depth() const override { return kLocalDepth; }

 private:
  const format::Checkpoint& checkpoint_;
  Medium medium_;
};

}  // namespace dspack::runtime
