// What a user writes as a place, turned into a repository.
#include <algorithm>

#include <fmt/format.h>

#include "format/source/http_repository.h"
#include "format/source/local_repository.h"
#include "format/source/repository.h"

namespace dspack::format {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

struct HubName {
  std::string repository;  // "org/name"
  std::string revision;
};

/// "org/name" or "org/name@revision"
std::optional<HubName> parse_hub_name(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view repository = text.substr(0, at);
  const std::string_view revision = at == std::string_view::npos ? "main" : text.substr(at + 1);
  const size_t slash = repository.find('/');
  if (slash == std::string_view::npos || revision.empty()) return std::nullopt;
  if (!is_name(repository.substr(0, slash)) || !is_name(repository.substr(slash + 1))) return std::nullopt;
  return HubName{std::string(repository), std::string(revision)};
}

std::unique_ptr<Repository> make_hub_repository(const HubName& name, const RemoteOptions& options) {
  std::string endpoint = options.hub_endpoint;
  while (endpoint.ends_with('/'))
    endpoint.pop_back();
  std::string revision = url_path(name.revision);
  for (size_t at = 0; (at = revision.find('/', at)) != std::string::npos;)
    revision.replace(at, 1, "%2F");
  return make_http_repository({.kind = RepositoryKind::hub,
                               .description = fmt::format("{}@{}", name.repository, name.revision),
                               .base_url = fmt::format("{}/{}/resolve/{}", endpoint, name.repository, revision),
                               .token = options.hub_token},
                              options);
}

std::unique_ptr<Repository> make_url_repository(std::string_view place, const RemoteOptions& options) {
  std::string base(place);
  while (base.ends_with('/'))
    base.pop_back();
  return make_http_repository(
      {.kind = RepositoryKind::http, .description = std::string(place), .base_url = base, .token = {}}, options);
}

}  // namespace

Result<std::unique_ptr<Repository>> open_repository(std::string_view place, const RemoteOptions& options,
                                                    FileSystem& files) {
  if (place.starts_with("http://") || place.starts_with("https://")) return make_url_repository(place, options);
  if (place.starts_with("hf://")) {
    const std::optional<HubName> name = parse_hub_name(place.substr(5));
    if (!name) return Error{ErrorKind::invalid, fmt::format("{}: not of the form hf://org/name[@revision]", place)};
    return make_hub_repository(*name, options);
  }
  TRY_ASSIGN(const std::optional<FileInfo> info, files.stat(Path(place)));
  if (info && info->is_directory) return make_local_repository(Path(place), files);
  if (info) return Error{ErrorKind::invalid, fmt::format("{}: is a file; a checkpoint is a folder", place)};
  if (const std::optional<HubName> name = parse_hub_name(place); name && place.front() != '.') {
    return make_hub_repository(*name, options);
  }
  return Error{ErrorKind::not_found,
               fmt::format("{}: no such folder (and not of the form org/name, hf://org/name or http(s)://...)", place)};
}

}  // namespace dspack::format
