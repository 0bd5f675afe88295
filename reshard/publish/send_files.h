// Brings a revision of a repository to what the folder holds: uploads and commits, as planned.
// Threads: one call at a time; sends `jobs` files at a time while the commit before is made. Errors: those of HubWriter
// and LfsUpload. A failure of a commit that may pass, or a branch that has moved: look again, then go on.
#pragma once

#include "reshard/publish/lfs_upload.h"
#include "reshard/publish/situation.h"

namespace dspack::reshard {

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
