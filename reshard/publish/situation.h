// How far a publication has come, determined from the server alone: nothing is kept locally, so that a run can be
// killed at any moment and resumed from any machine. Threads: one call at a time. Errors: those of HubWriter; conflict,
// where the repository holds what must not be replaced.
#pragma once

#include <optional>
#include <string>

#include "format/hub/writer.h"
#include "reshard/publish/publish_plan.h"

namespace dspack::reshard {

struct PublishTarget {
  std::string branch = format::kDefaultRevision;
  bool create_pull_request = false;  // and leave it to be merged
  bool only_private = false;
};

/// By its title a pull request is known again as the one for this manifest.
[[nodiscard]] std::string pull_request_title(const format::Digest& manifest);

struct Situation {
  bool repository = false;
  bool branch = false;
  bool sealed = false;                              // the branch has a manifest: readers take it for whole
  bool by_pull_request = false;                     // what is to be done there
  std::optional<format::PullRequest> pull_request;  // which is under way
  std::string revision;          // where commits go; empty: a pull request that is still to be opened
  std::string head;              // its newest commit; empty: none
  format::HubTree tree;          // what it holds
  ListingDifference difference;  // of that from the folder
  bool on_branch = false;        // the branch itself is as the folder: nothing is left to do

  /// Whether that is all that was asked for.
  [[nodiscard]] bool complete(const PublishTarget& target) const {
    const bool for_review = target.create_pull_request && pull_request && pull_request->status == "open";
    return on_branch || (for_review && difference.none());
  }
};

/// Also computes the names of `sealed`'s small files where they are needed (name_blobs).
[[nodiscard]] Result<Situation> find_situation(const format::HubWriter& hub, const PublishTarget& target,
                                               SealedFolder& sealed, format::FileSystem& files, unsigned jobs,
                                               const std::stop_token& stop);

}  // namespace dspack::reshard
