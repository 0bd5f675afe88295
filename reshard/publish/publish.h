// `reshard publish`: a sealed folder becomes a repository on the Hub, or the next state of one, in repeatable steps:
// list the repository, add what is missing, list again.
// Threads: one call at a time. Errors: those of the other files in this folder; cancelled. After any error the same
// command resumes.
#pragma once

#include <functional>

#include "reshard/publish/send_files.h"

namespace dspack::reshard {

/// The work that a publication will do.
struct PublishOutlook {
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t files_to_send = 0;  // missing or different, by the server's listing
  uint64_t bytes_to_send = 0;
  uint64_t files_to_delete = 0;
  uint64_t commits = 0;  // estimate: the server decides how small files travel
};
[[nodiscard]] PublishOutlook publish_outlook(const SealedFolder& sealed, const Situation& situation);

struct PublishOutcome {
  Sent sent;
  bool was_complete = false;  // nothing had to be done
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
  /// Transfers the weights to a revision in another way, any part of them; empty: send_files does. Called once, on the
  /// calling thread, while the revision has no manifest. What it leaves out is sent as usual.
  std::function<Result<void>(const std::string& revision)> transfer = {};
};

/// Succeeds when the server's listing equals the folder in every path, size and digest.
[[nodiscard]] Result<PublishOutcome> publish(const PublishJob& job, Situation situation);

}  // namespace dspack::reshard
