// Damaged files while they are mended: the ways of missing tensors from a source into them, and what writes them there.
// What is sound of each file is kept, what is fetched is written beside it, and a file gets its name back when its
// digest is the wanted one and its bytes are on the disk. What a kill leaves is found again by find_damage, with all
// that was written.
// Threads: thread-safe. Lifetime: borrows everything it is given. Memory: about 2 MiB for each thread. Errors: io,
// budget; not_found, invalid (the source does not hold what is missing), corrupt (fetched bytes that are not the wanted
// ones), unsupported (equal tensors that no longer make an equal file: of another version's header or compression).
#pragma once

#include <memory>
#include <mutex>

#include "reshard/run/output_folder.h"
#include "reshard/run/packed_writer.h"
#include "reshard/verbs/repair/damage.h"

namespace dspack::reshard {

/// Copies of what is missing alone; `file` and `slot` of each are those of `wanted`. `full`: the ways of all that the
/// repository holds, wherever that plan puts it. `place`: the source, for errors.
[[nodiscard]] Result<Plan> ways_from_source(const Plan& full, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

/// From another packed repository, grouped in whatever way, whose digests say that it has the same bytes.
[[nodiscard]] Result<Plan> ways_from_packed(const format::Checkpoint& source, const WantedFiles& wanted,
                                            const std::vector<FileDamage>& damage, const std::string& place);

/// Writes what is fetched.
class Mender final : public TensorTargets {
 public:
  Mender(const WantedFiles& wanted, const std::vector<FileDamage>& damage, format::FileSystem& files,
         DurableFolders& folders);

  [[nodiscard]] Result<TensorTarget> open(const Copy& copy, uint64_t done) override;
  void close(const Copy& /*copy*/, TensorTarget& /*target*/, const TensorDigests& /*digests*/) override {}

  /// A shard's copies were written: compares them with what they must be, and finishes the files that lack nothing
  /// now. `place`: the shard, for errors.
  [[nodiscard]] Result<void> shard_done(const std::vector<Copy>& copies, const ShardDone& record,
                                        const std::string& place);
  /// The same of a damaged file of which no tensor is missing.
  [[nodiscard]] Result<void> finish_unread(uint32_t file);

 private:
  struct State {
    FileDamage damage;
    std::mutex mutex;    // guards what follows
    size_t missing = 0;  // tensors
    bool prepared = false;
  };

  Result<void> prepare(State& state);
  Result<void> expand_sound(const State& state, format::WriteFile& part) const;
  Result<void> finish(State& state);
  Result<void> seal(uint32_t file);

  const WantedFiles& wanted_;
  format::FileSystem& files_;
  DurableFolders& folders_;
  std::vector<std::unique_ptr<State>> states_;  // by file; null: not damaged
};

}  // namespace dspack::reshard
