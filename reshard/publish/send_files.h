// Brings a revision of a repository to what the folder holds: uploads and commits, as planned.
// Threads: one call at a time; sends `jobs` files at a time while the commit before is made. Errors: those of HubWriter
// and LfsUpload; corrupt, where a file's content is no longer that of its digest; unsupported, where a file is too
// large to travel in a commit. A failure of a commit that may pass, or a branch that has moved: look again, then go on.
// Source of a commit's text: huggingface_hub, _commit_api.py (_prepare_commit_payload).
#pragma once

#include <string>

#include "reshard/publish/lfs_upload.h"
#include "reshard/publish/publish_plan.h"
#include "reshard/publish/situation.h"

namespace dspack::reshard {

struct CommitHead {
  std::string summary;
  std::string parent;  // the commit that must be the newest; empty: any
};

/// Memory: the text itself, which holds the content of the regular files (CommitLimits).
[[nodiscard]] Result<std::string> commit_body(const CommitHead& head, const PlannedCommit& commit,
                                              const SealedFolder& sealed, format::FileSystem& files);

/// What was done, over all attempts.
struct Sent {
  uint64_t files = 0;  // into the large file storage
  uint64_t bytes = 0;
  uint64_t commits = 0;
};

struct SendJob {
  const format::HubWriter& hub;
  const SealedFolder& sealed;
  format::FileSystem& files;
  format::Progress& progress;
  unsigned jobs;
  const std::stop_token& stop;
};

/// Precondition: situation.revision exists, and something differs.
[[nodiscard]] format::Attempted<std::monostate> send_files(const SendJob& job, const Situation& situation, Sent& sent);

}  // namespace dspack::reshard
