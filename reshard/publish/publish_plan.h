// Decides what publishing has to do from the folder's files and a repository's listing: which files to send, which to
// delete, and in which commits, so that no reader takes an unfinished repository for a complete one.
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "format/hub/listing.h"
#include "reshard/publish/sealed_folder.h"

namespace dspack::reshard {

/// The difference between a repository's listing and the folder.
struct ListingDifference {
  std::vector<size_t> to_send;        // files of the folder that the repository lacks or has with other content
  std::vector<std::string> extra;     // paths only in the repository; .gitattributes is the Hub's own
  std::vector<std::string> findings;  // one line each, for people; by path
  [[nodiscard]] bool none() const { return to_send.empty() && extra.empty(); }
};
/// LocalFile::blob of regular files of equal size must be known (name_blobs); an unknown one counts as different.
[[nodiscard]] ListingDifference compare(const std::vector<LocalFile>& local, const format::HubTree& remote);

/// The paths in `extra` that are in no directory of a packed repository: they may be deleted only if a manifest shows
/// that the repository is a packed one.
[[nodiscard]] std::vector<std::string> foreign(const std::vector<std::string>& extra);

/// Whether the path is the manifest, index or card: these make a repository complete, so they are committed last.
[[nodiscard]] bool is_sealing(std::string_view path);

struct CommitLimits {
  size_t operations = 100;              // the Hub's advice: 50 to 100
  uint64_t regular_bytes = 8ULL << 20;  // content that travels in the commit, which is built in memory
};

/// A file to commit, and how it travels.
struct PendingFile {
  size_t file = 0;     // index into the folder's files
  bool large = false;  // by digest, its content being in the large file storage; otherwise with its content
};

struct PlannedCommit {
  std::vector<PendingFile> files;
  std::vector<std::string> deleted;
  bool seals = false;
};

/// The commits, in order. A single one if `limits` allow: then readers see either the old or the new state. Otherwise
/// the old manifest (if `sealed`) is deleted first, with all foreign extra files, and manifest, index and card come
/// last, in one commit of any size. `pending` must hold the manifest even if it does not change.
[[nodiscard]] std::vector<PlannedCommit> plan_commits(const std::vector<LocalFile>& local,
                                                      const std::vector<PendingFile>& pending,
                                                      const std::vector<std::string>& extra, bool sealed,
                                                      const CommitLimits& limits = {});

}  // namespace dspack::reshard
