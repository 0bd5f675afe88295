// The part of a Hub repository that is on this machine. A commit's files are in the Hub's local cache, as
// huggingface_hub and "hf download" keep them; it is read, never written.
//   HF_HUB_CACHE/models--org--name/{refs/REVISION, snapshots/COMMIT/PATH -> ../../blobs/ETAG, blobs/ETAG}
// Files downloaded with Xet are in a store that repositories share: models--org--name/blobs/ETAG is a link to
//   HF_HUB_CACHE/blobs/XX/HASH (XX: the hash's first two digits)
// The commit that a name stood for when the Hub was last asked is kept in a folder of ours, so that a model that was
// used before can be used without a network:
//   FOLDER/org--name/REVISION holds "COMMIT org/name"
// Threads: thread-safe; of two writers one wins. Lifetime: borrows the FileSystem. Errors: io and budget from writing;
// damaged files, or links that lead elsewhere, count as missing. Source: hub-docs, docs/hub/local-cache.md;
// huggingface_hub 2.4.0, utils/_shared_blobs.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"
#include "format/hub/name.h"

namespace dspack::format {

struct HubCommit {
  std::string repository;  // the present name, if it was renamed
  std::string commit;
};

[[nodiscard]] std::optional<HubCommit> remembered_commit(const Path& folder, const HubName& name, FileSystem& files);
/// Does nothing if `folder` is empty.
[[nodiscard]] Result<void> remember_commit(const Path& folder, const HubName& name, const HubCommit& commit,
                                           FileSystem& files);

/// ".../models--org--name"
[[nodiscard]] Path cached_repository_folder(const Path& cache, std::string_view repository);

/// The commit that a branch or tag stood for when it was last downloaded.
[[nodiscard]] std::optional<std::string> cached_commit(const Path& cache, const HubName& name, FileSystem& files);

class HubSnapshot {
 public:
  /// nullopt: the cache has nothing of this commit. `name.revision` is the commit.
  [[nodiscard]] static std::optional<HubSnapshot> find(const Path& cache, const HubName& name, FileSystem& files);

  [[nodiscard]] const Path& folder() const { return folder_; }

  struct File {
    Path path;         // path of the content, with all links resolved
    std::string etag;  // the Hub's id of the content: for an LFS file its SHA-256. Empty: unknown
  };
  /// nullopt: the snapshot lacks it, or it is no regular file within the repository's folder or the cache's shared
  /// store.
  [[nodiscard]] std::optional<File> file(std::string_view path) const;

  /// The weight files that the manifest or index names.
  struct Weights {
    size_t files = 0;
    std::vector<std::string> missing;  // those not in this snapshot
    [[nodiscard]] bool are_whole() const { return files != 0 && missing.empty(); }
  };
  [[nodiscard]] const Weights& weights() const { return weights_; }

 private:
  HubSnapshot(Path root, Path store, Path folder, FileSystem& files)
      : root_(std::move(root)), store_(std::move(store)), folder_(std::move(folder)), files_(&files) {}
  [[nodiscard]] std::optional<Path> shared_blob_link(std::string_view path, const Path& target) const;
  [[nodiscard]] Weights count_weights() const;
  [[nodiscard]] std::optional<std::string> text(std::string_view path) const;

  Path root_;    // the repository's folder, links resolved
  Path store_;   // shared by all repositories, links resolved
  Path folder_;  // the snapshot
  FileSystem* files_;
  Weights weights_;
};

}  // namespace dspack::format
