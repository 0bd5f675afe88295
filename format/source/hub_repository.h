// A repository on the Hugging Face Hub, at one commit. Files of that commit that the Hub's local cache has are read
// from there, the others across the network. Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: as
// Repository; network also for whatever stands between the user and the repository (gated, private, offline), each with
// what to do.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "format/source/http_source.h"
#include "format/source/hub_revision.h"
#include "format/source/hub_snapshot.h"
#include "format/source/repository.h"

namespace dspack::format {

class HubRepository final : public Repository {
 public:
  using Listing = std::optional<std::vector<ListedFile>>;
  struct Parts {
    HubDoor door;
    HubOrigin origin;
    std::optional<std::string> offline;   // why no request is made to the Hub; nullopt: they are
    std::optional<HubSnapshot> snapshot;  // of the commit, in the local cache
    std::unique_ptr<PatientClient> client;
  };
  HubRepository(Parts parts, FileSystem& files)
      : parts_(std::move(parts)), name_{parts_.origin.repository, parts_.origin.commit}, files_(files) {}

  [[nodiscard]] RepositoryKind kind() const override { return RepositoryKind::hub; }
  [[nodiscard]] bool is_local() const override { return parts_.snapshot && parts_.snapshot->weights().are_whole(); }
  [[nodiscard]] std::optional<HubOrigin> hub_origin() const override { return parts_.origin; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string locate(std::string_view path) const override {
    const auto local = local_file(path);
    return local ? local->path.string() : without_password(url_of(path));
  }

  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override;
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                               std::stop_token stop) override;
  [[nodiscard]] Result<std::unique_ptr<ReadFile>> open_file(std::string_view path, ReadMode mode) override;
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override;
  [[nodiscard]] Result<Listing> list(std::stop_token stop) override;
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override;

 private:
  [[nodiscard]] std::optional<HubSnapshot::File> local_file(std::string_view path) const {
    return parts_.snapshot ? parts_.snapshot->file(path) : std::nullopt;
  }
  [[nodiscard]] std::string url_of(std::string_view path) const {
    return hub_file_url(parts_.door.endpoint, name_, path);
  }
  [[nodiscard]] ExplainFailure explain() const;
  [[nodiscard]] std::unique_ptr<HttpSource> http_source(std::string_view path);
  /// For the whole of a file.
  [[nodiscard]] HttpRequest request_of(std::string_view path) const;
  [[nodiscard]] Error not_here(std::string_view path) const;
  [[nodiscard]] Error with_hint(Error error) const;
  Result<Listing> list_snapshot(const std::stop_token& stop);
  Result<const Listing*> listing(const std::stop_token& stop);
  Result<std::optional<DeclaredFile>> ask_declared(std::string_view path, const std::stop_token& stop);

  Parts parts_;
  HubName name_;  // with the commit as its revision
  FileSystem& files_;
  std::mutex mutex_;
  std::optional<Listing> listing_;  // guarded by mutex_; what the Hub said, once it was asked
};

}  // namespace dspack::format
