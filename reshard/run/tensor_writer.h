// One tensor's bytes on their way into a file: digested in the pieces in which they come, written in large page-aligned
// ones while the next is digested. Threads: one. Lifetime: borrows target and writer. Errors: io, budget.
#pragma once

#include "reshard/run/background_writer.h"
#include "reshard/run/packed_writer.h"

namespace dspack::reshard {

class TensorWriter {
 public:
  /// `row_block_bytes`: 0, or the size of the blocks that get digests of their own. `shard_hash` takes every byte too,
  /// if it is given: the digests of tensor, file and shard are cheapest together. A target without a file: the bytes
  /// are digested and written nowhere.
  TensorWriter(TensorTarget& target, uint64_t offset, uint64_t row_block_bytes, BackgroundWriter& writer,
               format::Sha256* shard_hash);
  ~TensorWriter() { writer_.abandon(); }  // the target's file goes next
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// Goes on after the first `done` bytes, which an earlier run has written. Before the first write.
  void resume(const TensorBegun& begun, uint64_t done);
  [[nodiscard]] Result<void> write(std::span<const std::byte> bytes);
  /// Writes what is collected: the file then has all bytes up to here. Where the tensor is.
  [[nodiscard]] Result<TensorBegun> pause();
  /// After the last byte.
  [[nodiscard]] Result<TensorDigests> finish();

 private:
  Result<void> flush(bool more);

  TensorTarget& target_;
  BackgroundWriter& writer_;
  uint64_t begin_;   // of the filled part of the writer's buffer; congruent to the file's offset modulo a page
  uint64_t end_;     // of the filled part
  uint64_t offset_;  // in the file, of the filled part's first byte
  format::TensorHash hash_;
  std::vector<format::Sha256*> others_;  // of shard and file, where they take the same bytes
};

}  // namespace dspack::reshard
