#include "format/source/hub_repository.h"

#include <fmt/format.h>

#include "format/manifest.h"
#include "format/source/http_source.h"
#include "format/source/http_text.h"
#include "format/source/hub_listing.h"
#include "format/source/hub_refusal.h"
#include "format/source/local_repository.h"
#include "format/source/local_source.h"

namespace dspack::format {
namespace {

/// The digest of an LFS object is its file's SHA-256; other files of the Hub have an ETag of another length.
std::optional<DeclaredFile> declaration(const HttpResponse& head) {
  const std::optional<Digest> sha256 = parse_digest(head.linked_etag.empty() ? head.version : head.linked_etag);
  if (!sha256) return std::nullopt;
  // The length of a redirect's own body is not that of the file.
  const bool is_file = head.status == 200;
  return DeclaredFile{*sha256, head.linked_bytes || !is_file ? head.linked_bytes : head.file_bytes};
}

}  // namespace

std::string HubRepository::description() const {
  constexpr size_t kShortCommit = 12;
  const std::string& asked = parts_.origin.asked;
  if (asked == fmt::format("{}@{}", name_.repository, name_.revision)) return asked;
  return fmt::format("{} (commit {})", asked, name_.revision.substr(0, kShortCommit));
}

ExplainFailure HubRepository::explain() const {
  return [this](const HttpFailure& failure) {
    return explain_refusal({.endpoint = parts_.door.endpoint,
                            .repository = name_.repository,
                            .revision = name_.revision,
                            .has_token = !parts_.door.token.empty()},
                           failure);
  };
}

std::unique_ptr<HttpSource> HubRepository::http_source(std::string_view path) {
  return std::make_unique<HttpSource>(
      *parts_.client,
      HttpFile{.url = url_of(path), .token = parts_.door.token, .commit = name_.revision, .explain = explain()});
}

HttpRequest HubRepository::request_of(std::string_view path) const {
  return {.url = url_of(path),
          .range = {},
          .bearer_token = parts_.door.token,
          .expected_version = {},
          .expected_commit = name_.revision};
}

/// A file that the snapshot lacks does not exist only where the snapshot is known to be whole.
Error HubRepository::not_here(std::string_view path) const {
  const std::string remedy =
      fmt::format("fetch it first: hf download {} --revision {}", name_.repository, name_.revision);
  if (!parts_.snapshot) {
    return {ErrorKind::network, fmt::format("{}: {}, and the local cache has nothing of this commit; {}", locate(path),
                                            *parts_.offline, remedy)};
  }
  const std::string folder = parts_.snapshot->folder().string();
  const HubSnapshot::Weights& weights = parts_.snapshot->weights();
  if (weights.missing.empty()) {
    return {is_local() ? ErrorKind::not_found : ErrorKind::network,
            fmt::format("{}/{}: not in the local snapshot, and {}; {}", folder, path, *parts_.offline, remedy)};
  }
  return {ErrorKind::network,
          fmt::format("{}: this local snapshot lacks {} and, of {} weight files, {} ({} first), and {}; {}", folder,
                      path, weights.files, weights.missing.size(), weights.missing.front(), *parts_.offline, remedy)};
}

/// Where all weights are here, a Hub out of reach need not stop anybody.
Error HubRepository::with_hint(Error error) const {
  if (error.kind == ErrorKind::network && is_local() && !parts_.client->was_answered())
    error.message += "; HF_HUB_OFFLINE=1 does without the Hub, on the local cache's word";
  return error;
}

Result<std::unique_ptr<ByteSource>> HubRepository::open(std::string_view path, std::stop_token stop) {
  if (const auto local = local_file(path))
    return open_local_source(files_, local->path, local->etag.empty() ? std::nullopt : std::optional(local->etag));
  if (parts_.offline) return not_here(path);
  auto source = http_source(path);
  if (const auto probed = source->probe(stop); !probed) return with_hint(probed.error());
  return std::unique_ptr<ByteSource>(std::move(source));
}

Result<std::unique_ptr<ByteSource>> HubRepository::open_known(std::string_view path, const KnownFile& known,
                                                              std::stop_token stop) {
  if (local_file(path) || parts_.offline) {
    // A local file tells its digest only where the cache calls it so.
    return Repository::open_known(path, {.size_bytes = known.size_bytes, .version = {}}, std::move(stop));
  }
  auto source = http_source(path);
  source->know(known);
  return std::unique_ptr<ByteSource>(std::move(source));
}

Result<std::unique_ptr<ReadFile>> HubRepository::open_file(std::string_view path, ReadMode mode) {
  const auto local = local_file(path);
  if (!local) return Repository::open_file(path, mode);
  return files_.open_read_as(local->path, mode);
}

Result<std::string> HubRepository::read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) {
  if (const auto local = local_file(path)) return format::read_text(files_, local->path, limit_bytes);
  if (parts_.offline) return not_here(path);
  auto text = get_text(*parts_.client, request_of(path), limit_bytes, stop, explain());
  if (!text) return with_hint(text.error());
  return std::move(text->text);
}

/// Asked for once.
Result<const HubRepository::Listing*> HubRepository::listing(const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  if (!listing_) {
    auto listed = list_tree(*parts_.client, parts_.door, name_, stop);
    if (!listed) return with_hint(listed.error());
    listing_ = *listed ? Listing(visible_files(**listed)) : std::nullopt;
  }
  return &*listing_;
}

Result<HubRepository::Listing> HubRepository::list_snapshot(const std::stop_token& stop) {
  if (!is_local()) return not_here(kManifestPath);
  const auto all = make_local_repository(parts_.snapshot->folder(), files_)->list(stop);
  if (!all) return all.error();
  std::vector<ListedFile> found;
  for (const ListedFile& file : **all) {
    if (const auto local = local_file(file.path))
      found.push_back({file.path, file.size_bytes, parse_digest(local->etag)});
  }
  return Listing(std::move(found));
}

Result<HubRepository::Listing> HubRepository::list(std::stop_token stop) {
  if (parts_.offline) return list_snapshot(stop);
  TRY_ASSIGN(const Listing* found, listing(stop));
  return *found;
}

Result<std::optional<DeclaredFile>> HubRepository::declared(std::string_view path, std::stop_token stop) {
  if (parts_.offline) {
    const auto local = local_file(path);
    if (!local) return not_here(path);
    const auto sha256 = parse_digest(local->etag);
    return sha256 ? std::optional(DeclaredFile{*sha256, std::nullopt}) : std::nullopt;
  }
  TRY_ASSIGN(const Listing* all, listing(stop));
  if (!*all) return ask_declared(path, stop);
  const ListedFile* listed = find_listed(**all, path);
  if (listed == nullptr)
    return Error{ErrorKind::not_found, fmt::format("{}: the repository has no such file", locate(path))};
  return listed->sha256 ? std::optional(DeclaredFile{*listed->sha256, listed->size_bytes}) : std::nullopt;
}

/// One HEAD request: for a server that cannot list.
Result<std::optional<DeclaredFile>> HubRepository::ask_declared(std::string_view path, const std::stop_token& stop) {
  // A renamed repository answers with one redirect within the Hub; more in a row are a loop.
  constexpr unsigned kMaxRenames = 5;
  constexpr uint64_t kNoProgress = 0;
  HttpRequest request = request_of(path);
  request.head_only = true;
  const ByteSink nothing = [](std::span<const std::byte>) { return Result<void>(); };
  for (unsigned renames = 0; renames <= kMaxRenames; ++renames) {
    TRY_ASSIGN(
        const HttpResponse head,
        parts_.client->get(
            {.next = [&request] { return request; }, .sink = nothing, .received = kNoProgress, .explain = explain()},
            stop));
    if (const auto found = declaration(head)) return std::optional(found);
    const std::optional<std::string> next = same_host_url(request.url, head.location);
    if (!next) return std::optional<DeclaredFile>();
    request.url = *next;
  }
  return Error{ErrorKind::network, fmt::format("{}: redirected more than {} times", locate(path), kMaxRenames)};
}

}  // namespace dspack::format
