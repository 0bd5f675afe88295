// `reshard unpack DIR --out OUT`: makes ordinary shards from a packed repository. With `exact`, the shards that it was
// made from, byte for byte, each checked against its recorded SHA-256 before it gets its final name; otherwise new ones
// of a given size. After a kill at any instant the same call resumes: finished shards are kept, others start again.
// Threads: one call per output folder at a time; a second one is refused (conflict). Memory: jobs x about 1 MiB.
// Errors: as reading and writing; corrupt (a tensor or shard that differs from its digest, named), conflict (the output
// folder holds something else), budget (too little disk space).
#pragma once

#include "format/progress.h"
#include "reshard/run/companions.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

inline constexpr uint64_t kDefaultShardBytes = 5'000'000'000;  // transformers' save_pretrained means this by "5GB"

struct UnpackOptions {
  format::Path out;
  bool exact = false;
  uint64_t shard_bytes = kDefaultShardBytes;  // ignored with `exact`
  unsigned jobs = 4;
};

/// The contents of the output folder.
struct UnpackPlan {
  std::vector<ShardImage> shards;
  std::vector<Companion> companions;  // the index, which tells readers that the shards exist, is last
  std::optional<std::string> index;   // text of a new index, also written last
};

[[nodiscard]] Result<UnpackPlan> prepare_unpack(format::Repository& packed, const format::Checkpoint& catalogue,
                                                const UnpackOptions& options, const std::stop_token& stop);

enum class UnpackOutcome {
  made,
  already_there,  // all files exist, by name and size; nothing was done
};

[[nodiscard]] Result<UnpackOutcome> unpack(const UnpackPlan& plan, format::Repository& packed,
                                           const format::Checkpoint& catalogue, const UnpackOptions& options,
                                           format::FileSystem& files, format::Progress& progress,
                                           const std::stop_token& stop);

}  // namespace dspack::reshard
