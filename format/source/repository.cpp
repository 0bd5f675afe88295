#include "format/source/repository.h"

#include <fmt/format.h>

#include "format/http/http_source.h"
#include "format/hub/repository.h"
#include "format/source/local_repository.h"

namespace dspack::format {

Result<void> check_known(const KnownFile& known, uint64_t size_bytes, std::string_view version,
                         std::string_view place) {
  if (size_bytes != known.size_bytes) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: has {} bytes instead of {}; it is truncated or was replaced, fetch it again", place,
                             size_bytes, known.size_bytes)};
  }
  if (!known.version.empty() && version != known.version) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: changed after its header was read (its version {} became {}); run "
                             "the command again",
                             place, known.version, version)};
  }
  return {};
}

Result<std::unique_ptr<ByteSource>> Repository::open_known(std::string_view path, const KnownFile& known,
                                                           std::stop_token stop) {
  TRY_ASSIGN(auto source, open(path, std::move(stop)));
  TRY(check_known(known, source->size_bytes(), source->version(), locate(path)));
  return source;
}

Result<std::unique_ptr<ReadFile>> Repository::open_file(std::string_view path, ReadMode /*mode*/) {
  return Error{ErrorKind::unsupported, fmt::format("{}: not a file of a local folder", locate(path))};
}

Result<std::unique_ptr<Repository>> open_repository(std::string_view place, const RemoteOptions& options,
                                                    FileSystem& files, const std::stop_token& stop) {
  const std::optional<HubName> pasted = pasted_hub_name(place, options.hub_endpoint);
  const bool has_scheme = place.find("://") != std::string_view::npos;
  if (pasted && has_scheme) return open_hub_repository(*pasted, options, files, stop);
  if (place.starts_with("hf://"))
    return Error{ErrorKind::invalid, fmt::format("{}: not of the form hf://org/name[@revision]", place)};
  if (has_scheme && is_hub_address(place)) {
    return Error{ErrorKind::invalid, fmt::format("{}: names no whole repository of a model; give its name, org/name or "
                                                 "org/name@revision",
                                                 place)};
  }
  if (place.starts_with("http://") || place.starts_with("https://")) return make_http_repository(place, options);
  TRY_ASSIGN(const std::optional<FileInfo> info, files.stat(Path(place)));
  if (info && info->is_directory) return make_local_repository(Path(place), files, options.local_links);
  if (info) return Error{ErrorKind::invalid, fmt::format("{}: is a file; a checkpoint is a folder", place)};
  if (pasted) return open_hub_repository(*pasted, options, files, stop);
  if (const std::optional<HubName> name = parse_hub_name(place); name && place.front() != '.') {
    return open_hub_repository(*name, options, files, stop);
  }
  return Error{ErrorKind::not_found,
               fmt::format("{}: no such folder (and not of the form org/name, hf://org/name or http(s)://...)", place)};
}

}  // namespace dspack::format
