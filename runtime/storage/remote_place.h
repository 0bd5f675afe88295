// A distant repository as a model is loaded from it: its files, through a cache folder of its own, and the storage of
// its weights.
// Threads: as Repository. Lifetime: owns the cache folder, whose lock it holds; storages that it opened must not
// outlive it. Errors: those of cache and origin.
#pragma once

#include <memory>
#include <string>

#include "format/cache/cached_repository.h"
#include "runtime/storage/remote_storage.h"

namespace dspack::runtime {

/// What the user says of distant places.
struct RemoteAccess {
  std::string cache_folder;  // of all caches; empty: the user's own
  std::string absent_from;   // where what a part of a model lacks is read: CompletedPlace::open; empty: nowhere
  RemoteStorageOptions storage;
};

/// The address of a place without secrets; what a cache is known by.
[[nodiscard]] std::string origin_of(const format::Repository& repository);
/// The folder below `root` that is the cache of this origin: readable, and different for different origins.
[[nodiscard]] format::Path cache_folder_of(const format::Path& root, const std::string& origin);

class RemotePlace final : public format::Repository {
 public:
  struct Parts {
    std::unique_ptr<format::Repository> origin;
    std::shared_ptr<format::TransferCounters> counters;  // of the origin
    std::shared_ptr<format::Progress> progress;          // the origin may tell it of pauses
    format::Path cache_root;
    RemoteStorageOptions storage;
  };
  /// Reads the manifest, if there is one; from the cache, if it is there.
  [[nodiscard]] static Result<std::unique_ptr<RemotePlace>> open(Parts parts, format::FileSystem& files,
                                                                 const std::stop_token& stop);

  /// The catalogue must be of this place, and learns digests of earlier runs. `wanted`: as of RemoteStorage::open.
  [[nodiscard]] Result<std::unique_ptr<RemoteStorage>> open_storage(
      format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>> wanted = {});
  [[nodiscard]] const format::TransferCounters& counters() const { return *parts_.counters; }

  [[nodiscard]] format::RepositoryKind kind() const override { return files_->kind(); }
  [[nodiscard]] std::optional<format::HubOrigin> hub_origin() const override { return files_->hub_origin(); }
  [[nodiscard]] std::string description() const override { return files_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override { return files_->locate(path); }
  [[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open(std::string_view path, std::stop_token stop) override {
    return files_->open(path, std::move(stop));
  }
  [[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open_known(std::string_view path,
                                                                       const format::KnownFile& known,
                                                                       std::stop_token stop) override {
    return files_->open_known(path, known, std::move(stop));
  }
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override {
    return files_->read_text(path, limit_bytes, std::move(stop));
  }
  [[nodiscard]] Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token stop) override {
    return files_->list(std::move(stop));
  }
  [[nodiscard]] Result<std::optional<format::DeclaredFile>> declared(std::string_view path,
                                                                     std::stop_token stop) override {
    return files_->declared(path, std::move(stop));
  }

 private:
  explicit RemotePlace(Parts parts) : parts_(std::move(parts)) {}

  Parts parts_;  // its origin has moved into files_
  std::unique_ptr<format::CacheFolder> folder_;
  std::unique_ptr<format::Repository> files_;  // the origin, its small files kept, its weights as they are meant
};

}  // namespace dspack::runtime
