// Mends damaged files: plans the copies of missing tensors from a source, and writes them. Intact tensors of a file are
// kept, fetched ones are added, and the file gets its final name back once it is durable and has the wanted digest.
// After a kill, find_damage finds it with everything that was written.
// Threads: thread-safe. Lifetime: borrows everything it is given. Memory: about 2 MiB per thread. Errors: io, budget;
// not_found, invalid (the source does not hold what is missing), corrupt (fetched bytes differ from the wanted ones),
// unsupported (equal tensors no longer give an equal file: another version's header or compression).
#pragma once

#include <memory>
#include <mutex>

#include "reshard/run/output_folder.h"
#include "reshard/run/packed_writer.h"
#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

/// The copies of missing tensors; `file` and `slot` are those of `wanted`. `full`: a plan for the whole repository, in
/// any grouping. `place`: the source, for errors.
[[nodiscard]] Result<Plan> ways_from_source(const Plan& full, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

/// The same from another packed repository, in any grouping, whose digests show that it has the same bytes.
[[nodiscard]] Result<Plan> ways_from_packed(const format::Checkpoint& source, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

/// Writes the fetched tensors.
class Mender final : public TensorTargets {
 public:
  Mender(const WantedFiles& wanted, const std::vector<FileDamage>& damage, format::FileSystem& files,
         DurableFolders& folders);

  [[nodiscard]] Result<TensorTarget> open(const Copy& copy, uint64_t done) override;
  void close(const Copy& /*copy*/, TensorTarget& /*target*/, const TensorDigests& /*digests*/) override {}

  /// Call when a shard's copies are written: compares them with the wanted digests, and finishes files that lack
  /// nothing now. `place`: the shard, for errors.
  [[nodiscard]] Result<void> shard_done(const std::vector<Copy>& copies, const ShardDone& record,
                                        const std::string& place);
  /// Finishes a damaged file of which no tensor is missing.
  [[nodiscard]] Result<void> finish_unread(uint32_t file);

 private:
  struct FileRepair {
    FileDamage damage;
    std::mutex mutex;    // guards the fields below
    size_t missing = 0;  // tensors still missing
    bool prepared = false;
  };

  Result<void> prepare(FileRepair& state);
  Result<void> expand_sound(const FileRepair& state, format::WriteFile& part) const;
  Result<void> finish(FileRepair& state);
  Result<void> seal(uint32_t file);

  const WantedFiles& wanted_;
  format::FileSystem& files_;
  DurableFolders& folders_;
  std::vector<std::unique_ptr<FileRepair>> states_;  // per file; null: not damaged
};

}  // namespace dspack::reshard
