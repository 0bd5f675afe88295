// What publishing has to do, decided from the folder's files and a repository's listing: which files are to be sent,
// which are to go, and in which commits, so that no reader takes an unfinished repository for a whole one.
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "format/hub/listing.h"
#include "reshard/publish/sealed_folder.h"

namespace dspack::reshard {

/// What keeps a listing from being the folder's.
struct ListingDifference {
  std::vector<size_t> to_send;        // files of the folder that are missing there, or other ones
  std::vector<std::string> extra;     // paths there that the folder has not; .gitattributes is the Hub's own
  std::vector<std::string> findings;  // one line each, for people; by path
  [[nodiscard]] bool none() const { return to_send.empty() && extra.empty(); }
};
/// Where a regular file is to be compared, LocalFile::blob must be known (name_blobs); unknown counts as different.
[[nodiscard]] ListingDifference compare(const std::vector<LocalFile>& local, const format::HubTree& remote);

/// Of paths that the folder lacks, those that no packed repository would have put there by itself: not to be deleted
/// unless a manifest says that the repository is a packed one.
[[nodiscard]] std::vector<std::string> foreign(const std::vector<std::string>& extra);

/// Manifest, index and card: by them a repository becomes a whole one, so they come last.
[[nodiscard]] bool is_sealing(std::string_view path);

struct CommitLimits {
  size_t operations = 100;              // the Hub's advice: 50 to 100
  uint64_t regular_bytes = 8ULL << 20;  // of content that travels in the commit, which is built in memory
};

/// A file that is to be committed, and how.
struct PendingFile {
  size_t file = 0;     // index into the folder's files
  bool large = false;  // by its digest, the content being in the large file storage; else with its content
};

struct PlannedCommit {
  std::vector<PendingFile> files;
  std::vector<std::string> deleted;
  bool seals = false;
};

/// The commits, in their order. All at once where `limits` allow: then readers see the old or the new. Otherwise the
/// manifest that is there (`sealed`) goes first, with all foreign extra files, and manifest, index and card come last,
/// in one commit whatever their size. `pending` must hold the manifest, also if it is the one that is there.
[[nodiscard]] std::vector<PlannedCommit> plan_commits(const std::vector<LocalFile>& local,
                                                      const std::vector<PendingFile>& pending,
                                                      const std::vector<std::string>& extra, bool sealed,
                                                      const CommitLimits& limits = {});

}  // namespace dspack::reshard
