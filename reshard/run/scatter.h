// The wanted data of one source shard in order, sent piece by piece to the files that its tensors belong to, through
// conversions where the plan has them.
// Threads: one caller. Lifetime: borrows plan, catalogue and targets. Memory: staging buffers for each tensor that is
// made of the same bytes at once, and what a conversion holds. Errors: io, budget; corrupt if the bytes do not end with
// the last tensor; those of conversions, with the tensor's name.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "format/progress.h"
#include "reshard/run/matrix_decoder.h"
#include "reshard/run/tensor_writer.h"

namespace dspack::reshard {

/// Reads a tensor of the source whole, for conversions: its scales.
using ReadTensor = std::function<Result<std::vector<std::byte>>(uint32_t tensor)>;
/// As that, for one thread. A file stays open until the next one is asked for: off the Hub each opening is a request of
/// which there may be few. Borrows what it is given.
[[nodiscard]] ReadTensor tensor_reading(format::Repository& repository, const format::Checkpoint& source,
                                        const std::stop_token& stop);

class Scatter {
 public:
  Scatter(const Plan& plan, const format::Checkpoint& source, uint64_t shard, TensorTargets& targets, ReadTensor read);
  ~Scatter();
  Scatter(const Scatter&) = delete;
  Scatter& operator=(const Scatter&) = delete;

  /// Goes on behind what an earlier run has read. First of all.
  [[nodiscard]] Result<void> resume(const ShardBegun& begun);
  /// Offset in the shard of the next byte.
  [[nodiscard]] uint64_t at() const { return at_; }
  /// How far it has come, and the digests of files that tensors under way are being added to: for the journal. All
  /// bytes up to there are written. A tensor that is being converted is left out: it would begin anew.
  struct Pause {
    ShardBegun begun;
    std::vector<const format::Sha256*> file_hashes;
  };
  [[nodiscard]] Result<Pause> pause();
  /// A pause is in the journal: the next one leaves out what it has.
  void recorded(const ShardBegun& begun) { recorded_ = begun.first + begun.tensors.size(); }
  [[nodiscard]] size_t recorded() const { return recorded_; }

  /// A range of the shard is to come, behind those before.
  [[nodiscard]] Result<void> begin_range(uint64_t offset);
  /// Its next bytes.
  [[nodiscard]] Result<void> take(std::span<const std::byte> bytes);
  /// After the last byte of the last range: what the shard yielded.
  [[nodiscard]] Result<ShardDone> finish();

 private:
  class Outlet;
  Result<void> begin_tensors(uint64_t done);
  Result<void> begin_conversions();
  Result<MatrixSource> matrix_source(const Copy& copy, std::vector<std::vector<std::byte>> needed) const;
  Result<void> end_tensors();
  [[nodiscard]] size_t group_end() const;

  const Plan& plan_;
  const format::Checkpoint& source_;
  const std::vector<Copy>& copies_;
  TensorTargets& targets_;
  ReadTensor read_;
  bool whole_;
  std::vector<std::unique_ptr<BackgroundWriter>> writers_;  // one for each of outlets_
  uint64_t at_ = 0;                                         // offset in the shard of the next byte
  size_t next_ = 0;                               // the first copy of the tensor that comes next, or is under way
  std::vector<std::unique_ptr<Outlet>> outlets_;  // of the tensor under way, one for each of its copies
  format::Sha256 shard_hash_;
  format::Sha256State hash_before_;  // shard_hash_ where the tensor under way begins, if it is converted
  ShardDone done_;
  size_t recorded_ = 0;  // copies that the journal has
};

/// Passes what the plan wants of one shard through a Scatter, front to back over one connection. Errors: also corrupt
/// if the file is not the one that was catalogued. They name the shard.
[[nodiscard]] Result<ShardDone> scatter_shard(const Plan& plan, const format::Checkpoint& source, uint64_t shard,
                                              format::Repository& repository, TensorTargets& targets,
                                              format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
