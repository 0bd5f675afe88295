// The text of a commit for the Hub: a header and a line for each file that is added or deleted.
// Threads: pure functions but for reading the files. Errors: those of reading; corrupt, where a file's content is no
// longer that of its digest; unsupported, where a file is too large to travel in a commit. Source: huggingface_hub,
// _commit_api.py (_prepare_commit_payload).
#pragma once

#include <string>

#include "reshard/publish/publish_plan.h"

namespace dspack::reshard {

struct CommitHead {
  std::string summary;
  std::string parent;  // the commit that must be the newest; empty: any
};

/// Memory: the text itself, which holds the content of the regular files (CommitLimits).
[[nodiscard]] Result<std::string> commit_body(const CommitHead& head, const PlannedCommit& commit,
                                              const SealedFolder& sealed, format::FileSystem& files);

}  // namespace dspack::reshard
