// How far a publication has come, determined from the server alone: no state is kept locally, so a run can be killed at
// any moment and resumed from any machine. Threads: one call at a time. Errors: those of HubWriter; conflict, if the
// repository holds something that must not be replaced.
#pragma once

#include <optional>
#include <string>

#include "format/hub/writer.h"
#include "reshard/publish/publish_plan.h"

namespace dspack::reshard {

struct PublishTarget {
  std::string branch = format::kDefaultRevision;
  bool create_pull_request = false;  // open a pull request, and do not merge it
  bool only_private = false;
};

/// The title identifies the pull request that publishes this manifest.
[[nodiscard]] std::string pull_request_title(const format::Digest& manifest);

struct Situation {
  bool repository = false;
  bool branch = false;
  bool sealed = false;                              // the branch has a manifest, so readers take it for complete
  bool by_pull_request = false;                     // publish through a pull request
  std::optional<format::PullRequest> pull_request;  // the one under way
  std::string revision;          // receives the commits; empty: a pull request that is still to be opened
  std::string head;              // newest commit of `revision`, or of the branch without one; empty: none
  format::HubTree tree;          // listing at `head`
  ListingDifference difference;  // between the folder and `tree`
  bool on_branch = false;        // the branch itself equals the folder: nothing is left to do

  /// Whether everything that was asked for is done.
  [[nodiscard]] bool complete(const PublishTarget& target) const {
    const bool for_review = target.create_pull_request && pull_request && pull_request->status == "open";
    return on_branch || (for_review && difference.none());
  }
};

/// Also computes the blob hashes of `sealed`'s small files if they are needed (name_blobs).
[[nodiscard]] Result<Situation> find_situation(const format::HubWriter& hub, const PublishTarget& target,
                                               SealedFolder& sealed, format::FileSystem& files, unsigned jobs,
                                               const std::stop_token& stop);

}  // namespace dspack::reshard
