// The data of one source shard in order, sent piece by piece to the files that its tensors belong to.
// Threads: one. Lifetime: borrows plan, catalogue and writer. Memory: one staging buffer. Errors: io, budget; corrupt
// if the bytes do not end with the last tensor.
#pragma once

#include <optional>

#include "reshard/tensor_writer.h"

namespace dspack::reshard {

class Scatter {
 public:
  Scatter(const Plan& plan, const format::Checkpoint& source, uint64_t shard, PackedWriter& writer);

  /// The next bytes of the shard's data, which begins behind its header.
  [[nodiscard]] Result<void> take(std::span<const std::byte> bytes);
  /// After the last byte: what the shard yielded.
  [[nodiscard]] Result<ShardDone> finish();

 private:
  Result<void> begin_tensor();
  Result<void> end_tensors();

  const format::Checkpoint& source_;
  const std::vector<Copy>& copies_;
  PackedWriter& writer_;
  PageBuffer staging_;
  uint64_t at_;      // offset in the shard of the next byte
  size_t next_ = 0;  // the copy that this byte belongs to
  TensorTarget target_;
  std::optional<TensorWriter> tensor_;  // while one is being written
  format::Sha256 shard_hash_;
  ShardDone done_;
};

}  // namespace dspack::reshard
