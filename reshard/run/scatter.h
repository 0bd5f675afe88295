// Distributes the wanted bytes of one source shard, in order and piece by piece, to the files that its tensors belong
// to, through conversions if the plan has any.
// Threads: one caller. Lifetime: borrows plan, catalogue and targets. Memory: staging buffers for each tensor made from
// the same bytes, and what a conversion holds. Errors: io, budget; corrupt if the bytes do not end with the last
// tensor; those of conversions, with the tensor's name.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "format/progress.h"
#include "reshard/run/converter.h"
#include "reshard/run/tensor_writer.h"

namespace dspack::reshard {

/// Reads a whole source tensor, such as scales, for a conversion.
using ReadTensor = std::function<Result<std::vector<std::byte>>(uint32_t tensor)>;
/// The same from a repository, for one thread. Borrows its arguments. A file stays open until another one is needed: on
/// the Hub each opening is a rate-limited request.
[[nodiscard]] ReadTensor tensor_reading(format::Repository& repository, const format::Checkpoint& source,
                                        const std::stop_token& stop);

class Scatter {
 public:
  Scatter(const Plan& plan, const format::Checkpoint& source, uint64_t shard, TensorTargets& targets, ReadTensor read);
  ~Scatter();
  Scatter(const Scatter&) = delete;
  Scatter& operator=(const Scatter&) = delete;

  /// Resumes after the bytes that an earlier run has read. Call first.
  [[nodiscard]] Result<void> resume(const ShardBegun& begun);
  /// Offset in the shard of the next byte.
  [[nodiscard]] uint64_t at() const { return at_; }
  /// Progress for the journal, and the file digests that tensors under way are being added to. All bytes up to there
  /// are written. A tensor under conversion is left out: it has to start over.
  struct Pause {
    ShardBegun begun;
    std::vector<const format::Sha256*> file_hashes;
  };
  [[nodiscard]] Result<Pause> pause();
  /// Call when a pause is in the journal: the next one leaves out its tensors.
  void recorded(const ShardBegun& begun) { recorded_ = begun.first + begun.tensors.size(); }
  [[nodiscard]] size_t recorded() const { return recorded_; }

  /// Starts the next range of the shard; ranges ascend.
  [[nodiscard]] Result<void> begin_range(uint64_t offset);
  /// Takes the range's next bytes.
  [[nodiscard]] Result<void> take(std::span<const std::byte> bytes);
  /// Call after the last byte of the last range. Returns the shard's results.
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
  std::vector<std::unique_ptr<BackgroundWriter>> writers_;  // one per element of outlets_
  uint64_t at_ = 0;                                         // offset in the shard of the next byte
  size_t next_ = 0;                                         // first copy of the tensor that comes next or is under way
  std::vector<std::unique_ptr<Outlet>> outlets_;            // one per copy of the tensor under way
  format::Sha256 shard_hash_;
  format::Sha256State hash_before_;  // shard_hash_ before the tensor under way, if it is converted
  ShardDone done_;
  size_t recorded_ = 0;  // copies in the journal
};

/// Streams the wanted bytes of one shard through a Scatter, front to back over one connection. Errors: also corrupt if
/// the file is not the one that was catalogued. They name the shard.
[[nodiscard]] Result<ShardDone> scatter_shard(const Plan& plan, const format::Checkpoint& source, uint64_t shard,
                                              format::Repository& repository, TensorTargets& targets,
                                              format::Progress& progress, const std::stop_token& stop);

}  // namespace dspack::reshard
