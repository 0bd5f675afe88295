// Makes a revision of a repository equal to the folder by the planned uploads and commits.
// Threads: one call at a time; sends `jobs` files at a time while the previous commit is made. Errors: those of
// HubWriter; network, if the large file storage keeps refusing; corrupt, if a file's size has changed or its content no
// longer matches its digest; unsupported, if a file is too large to travel in a commit. After a transient failure of a
// commit, or if the branch has moved: look again, then resume.
// Source: a commit's text: huggingface_hub, _commit_api.py (_prepare_commit_payload); uploads: the Git LFS batch API,
// and huggingface_hub's lfs.py for its "multipart" transfer.
#pragma once

#include <string>

#include "format/progress.h"
#include "reshard/publish/publish_plan.h"
#include "reshard/publish/situation.h"

namespace dspack::reshard {

struct CommitHead {
  std::string summary;
  std::string parent;  // the branch's newest commit must be this one; empty: any
};

/// Memory: the text itself, including the content of the regular files (CommitLimits).
[[nodiscard]] Result<std::string> commit_body(const CommitHead& head, const PlannedCommit& commit,
                                              const SealedFolder& sealed, format::FileSystem& files);

/// Totals over all attempts.
struct Sent {
  uint64_t files = 0;  // sent to the large file storage
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

/// Precondition: situation.revision exists, and its difference is not empty.
[[nodiscard]] format::Attempted<std::monostate> send_files(const SendJob& job, const Situation& situation, Sent& sent);

/// Deletes the manifest of situation.revision, so that no reader takes what follows for a whole repository.
[[nodiscard]] format::Attempted<std::monostate> retire_manifest(const SendJob& job, const Situation& situation,
                                                                Sent& sent);

}  // namespace dspack::reshard
