#include "runtime/access/place.h"

#include <fmt/format.h>

#include <cctype>

#include "format/compressed/expanding_repository.h"

namespace dspack::runtime {

std::string origin_of(const format::Repository& repository) {
  // The commit, not the name: files of one commit must not be used for another.
  if (const auto hub = repository.hub_origin()) return fmt::format("hf://{}@{}", hub->repository, hub->commit);
  return repository.locate("");
}

format::Path cache_folder_of(const format::Path& root, const std::string& origin) {
  constexpr size_t kMaxCharacters = 80;
  constexpr size_t kDigits = 8;
  std::string name;
  const size_t scheme = origin.find("://");
  for (const char c : std::string_view(origin).substr(scheme == std::string::npos ? 0 : scheme + 3)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
    name += plain ? c : '_';
  }
  while (name.ends_with('_'))
    name.pop_back();
  name = name.substr(0, kMaxCharacters);
  return root / fmt::format("{}-{}", name, to_hex(format::sha256(origin)).substr(0, kDigits));
}

CheckpointPlace make_folder_place(std::unique_ptr<format::Repository> repository) {
  CheckpointPlace place{.files = std::move(repository), .open_tier = {}};
  place.open_tier = [files = place.files.get()](format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>>,
                                                const LocalAccess& local,
                                                const std::stop_token& stop) -> Result<OpenedTier> {
    OpenedTier opened;
    TRY_ASSIGN(opened.io, choose_io(*files, catalogue, local.io, {.device = local.device}, stop));
    opened.tier = std::make_unique<FolderTier>(*files, catalogue, folder_options(opened.io, local.verify));
    return opened;
  };
  return place;
}

Result<CheckpointPlace> open_distant_place(DistantPlaceOptions options, format::FileSystem& files,
                                           const std::stop_token& stop) {
  const std::string origin = origin_of(*options.origin);
  CheckpointPlace place;
  TRY_ASSIGN(place.cache, format::CacheFolder::open(files, cache_folder_of(options.cache_root, origin), origin));
  TRY_ASSIGN(auto cached, format::CachedRepository::open(std::move(options.origin), *place.cache, stop));
  place.files = format::make_expanding_repository(std::move(cached));
  place.transfers = options.counters;
  place.progress = options.progress;
  place.open_tier = [weights = place.files.get(), folder = place.cache.get(), counters = std::move(options.counters),
                     progress = std::move(options.progress), tier = options.tier](
                        format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>> wanted,
                        const LocalAccess&, const std::stop_token&) -> Result<OpenedTier> {
    OpenedTier opened;
    TRY_ASSIGN(opened.tier,
               DistantTier::open({.files = *weights, .folder = *folder, .counters = *counters, .progress = *progress},
                                 catalogue, tier, wanted));
    return opened;
  };
  return place;
}

}  // namespace dspack::runtime
