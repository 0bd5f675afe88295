#include "runtime/storage/remote_place.h"

#include <fmt/format.h>

#include <cctype>

#include "format/compressed/expanding_repository.h"

namespace dspack::runtime {

std::string origin_of(const format::Repository& repository) {
  // The commit, not the name: what is kept of one is of no use for another.
  if (const auto hub = repository.hub_origin()) return fmt::format("hf://{}@{}", hub->repository, hub->commit);
  return repository.locate("");
}

format::Path cache_folder_of(const format::Path& root, const std::string& origin) {
  constexpr size_t kMostCharacters = 80;
  constexpr size_t kDigits = 8;
  std::string name;
  const size_t scheme = origin.find("://");
  for (const char c : std::string_view(origin).substr(scheme == std::string::npos ? 0 : scheme + 3)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
    name += plain ? c : '_';
  }
  while (name.ends_with('_'))
    name.pop_back();
  name = name.substr(0, kMostCharacters);
  return root / fmt::format("{}-{}", name, to_hex(format::sha256(origin)).substr(0, kDigits));
}

Result<std::unique_ptr<RemotePlace>> RemotePlace::open(Parts parts, format::FileSystem& files,
                                                       const std::stop_token& stop) {
  std::unique_ptr<RemotePlace> place(new RemotePlace(std::move(parts)));
  const std::string origin = origin_of(*place->parts_.origin);
  TRY_ASSIGN(place->folder_,
             format::CacheFolder::open(files, cache_folder_of(place->parts_.cache_root, origin), origin));
  TRY_ASSIGN(auto cached, format::CachedRepository::open(std::move(place->parts_.origin), *place->folder_, stop));
  place->files_ = format::make_expanding_repository(std::move(cached));
  return place;
}

Result<std::unique_ptr<RemoteStorage>> RemotePlace::open_storage(format::Checkpoint& catalogue,
                                                                 std::optional<std::span<const uint32_t>> wanted) {
  return RemoteStorage::open(*files_, catalogue, *folder_, parts_.storage, *parts_.progress, wanted);
}

}  // namespace dspack::runtime
