// A remote repository read through its cache folder: small files, shard headers, and the fact that a file is absent are
// fetched once. Weights are not cached here (weight_cache.h).
// Threads: thread-safe. Lifetime: borrows the cache folder. Errors: as the origin; corrupt (a companion that differs
// from the manifest). A full disk is not an error: the next run fetches again.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "format/cache/cache_folder.h"
#include "format/manifest.h"
#include "format/source/repository.h"

namespace dspack::format {

class CachedRepository final : public Repository {
 public:
  /// Reads the origin's manifest, if it has one: companions are then checked against it, and no other files are
  /// requested.
  [[nodiscard]] static Result<std::unique_ptr<CachedRepository>> open(std::unique_ptr<Repository> origin,
                                                                      CacheFolder& folder, const std::stop_token& stop);

  [[nodiscard]] RepositoryKind kind() const override { return origin_->kind(); }
  [[nodiscard]] std::optional<HubOrigin> hub_origin() const override { return origin_->hub_origin(); }
  [[nodiscard]] std::string description() const override { return origin_->description(); }
  [[nodiscard]] std::string locate(std::string_view path) const override { return origin_->locate(path); }
  /// A shard's source reads the header from the cache, and the rest from the origin.
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override;
  [[nodiscard]] Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                               std::stop_token stop) override {
    return origin_->open_known(path, known, std::move(stop));
  }
  [[nodiscard]] Result<std::string> read_text(std::string_view path, uint64_t limit_bytes,
                                              std::stop_token stop) override;
  [[nodiscard]] Result<std::optional<std::vector<ListedFile>>> list(std::stop_token stop) override {
    return origin_->list(std::move(stop));
  }
  [[nodiscard]] Result<std::optional<DeclaredFile>> declared(std::string_view path, std::stop_token stop) override {
    return origin_->declared(path, std::move(stop));
  }

 private:
  CachedRepository(std::unique_ptr<Repository> origin, CacheFolder& folder)
      : origin_(std::move(origin)), folder_(folder) {}
  Result<std::unique_ptr<ByteSource>> open_shard(std::string_view path, const std::stop_token& stop);
  Result<std::string> fetch_text(std::string_view path, uint64_t limit_bytes, const std::stop_token& stop);
  [[nodiscard]] bool fits(std::string_view path, std::string_view text) const;
  [[nodiscard]] Error absent(std::string_view path) const;

  std::unique_ptr<Repository> origin_;
  CacheFolder& folder_;
  bool is_packed_ = false;
  std::map<std::string, Digest, std::less<>> companions_;  // digests by the manifest
};

}  // namespace dspack::format
