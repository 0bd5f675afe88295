// `reshard publish`: a sealed folder becomes a repository on the Hub, or the next state of one, in repeatable steps:
// list what is there, add what is missing, list again.
// Threads: one call at a time. Errors: those of the files of this folder; cancelled. After any error the same command
// resumes.
#pragma once

#include "reshard/publish/send_files.h"

namespace dspack::reshard {

/// What will be done, before it is.
struct PublishOutlook {
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t files_to_send = 0;  // what the server lacks, by its listing
  uint64_t bytes_to_send = 0;
  uint64_t files_to_delete = 0;
  uint64_t commits = 0;  // about: how small files travel is the server's choice
};
[[nodiscard]] PublishOutlook publish_outlook(const SealedFolder& sealed, const Situation& situation);

struct PublishOutcome {
  Sent sent;
  bool was_complete = false;  // nothing was to be done
  std::optional<uint64_t> pull_request;
  bool merged = false;
};

struct PublishJob {
  const format::HubWriter& hub;
  const PublishTarget& target;
  SealedFolder& sealed;
  format::FileSystem& files;
  format::Progress& progress;
  unsigned jobs;
  const std::stop_token& stop;
};

/// Succeeds when the server's listing is that of the folder, by every path, size and digest.
[[nodiscard]] Result<PublishOutcome> publish(const PublishJob& job, Situation situation);

}  // namespace dspack::reshard
