// `reshard unpack DIR --out OUT`: ordinary shards from a packed repository. With `exact` the shards that it was made
// from, byte for byte, each with its recorded SHA-256 before it gets its final name; otherwise new ones of a given
// size. After a kill at any instant the same call resumes: finished shards stay, others start again.
// Threads: one call per output folder at a time; a second one is refused (conflict). Memory: jobs x about 1 MiB.
// Errors: as reading and writing; corrupt (a tensor or shard that differs from its digest, named), conflict (something
// else is in the output folder), budget (too little disk).
#pragma once

#include "format/progress.h"
#include "reshard/run/companions.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

inline constexpr uint64_t kDefaultShardBytes = 5'000'000'000;  // what transformers' save_pretrained takes for "5GB"

struct UnpackOptions {
  format::Path out;
  bool exact = false;
  uint64_t shard_bytes = kDefaultShardBytes;  // without `exact`
  unsigned jobs = 4;
};

/// Everything that will be in the output folder.
struct UnpackPlan {
  std::vector<ShardImage> shards;
  std::vector<Companion> companions;  // the index, which tells readers that the shards are there, is last
  std::optional<std::string> index;   // text of a new one, likewise written last
};

[[nodiscard]] Result<UnpackPlan> prepare_unpack(format::Repository& packed, const format::Checkpoint& catalogue,
                                                const UnpackOptions& options, const std::stop_token& stop);

enum class UnpackOutcome {
  made,
  already_there,  // all files are, by name and size; nothing was done
};

[[nodiscard]] Result<UnpackOutcome> unpack(const UnpackPlan& plan, format::Repository& packed,
                                           const format::Checkpoint& catalogue, const UnpackOptions& options,
                                           format::FileSystem& files, format::Progress& progress,
                                           const std::stop_token& stop);

}  // namespace dspack::reshard
