#include "format/hub/listing.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/http/headers.h"
#include "format/json.h"

namespace dspack::format {
namespace {

// The Hub sends 1,000 entries a page, of some 300 bytes each, and advises against more than 100,000 files.
constexpr uint64_t kMaxListingBytes = 256ULL << 20;
constexpr size_t kMaxPages = 2000;

bool is_hidden(std::string_view path) {
  return path.starts_with('.') || path.find("/.") != std::string_view::npos;
}

Error not_a_listing(std::string_view reason) {
  return {ErrorKind::invalid, fmt::format("not a listing of files: {}", reason)};
}

/// The prefix "sha256:", as in pointer files, is not part of the digest.
std::optional<Digest> parse_oid(std::string_view text) {
  constexpr std::string_view kAlgorithm = "sha256:";
  if (text.starts_with(kAlgorithm)) text.remove_prefix(kAlgorithm.size());
  return parse_digest(text);
}

Result<HubFile> parse_file(const Json& entry) {
  HubFile file;
  TRY_ASSIGN(file.path, json_string(entry, "path"));
  TRY_ASSIGN(file.size_bytes, json_uint(entry, "size"));
  if (!entry.contains("lfs") || entry["lfs"].is_null()) {
    if (!entry.contains("oid")) return file;
    TRY_ASSIGN(file.blob, json_string(entry, "oid"));
    if (!is_commit_id(file.blob)) return not_a_listing(fmt::format("the id of {} is none of git's", file.path));
    return file;
  }
  TRY_ASSIGN(const Json* lfs, json_object(entry, "lfs"));
  TRY_ASSIGN(const std::string oid, json_string(*lfs, "oid"));
  TRY_ASSIGN(const uint64_t size_bytes, json_uint(*lfs, "size"));
  file.sha256 = parse_oid(oid);
  if (!file.sha256) return not_a_listing(fmt::format("the digest of {} is none", file.path));
  if (size_bytes != file.size_bytes) return not_a_listing(fmt::format("{} has two sizes", file.path));
  return file;
}

/// Makes sure that a listing ends, whatever a server sends.
class Pages {
 public:
  Result<void> take(const std::string& url) {
    if (!seen_.insert(url).second) return not_a_listing("its pages go in a circle");
    if (seen_.size() <= kMaxPages) return {};
    return Error{ErrorKind::budget, fmt::format("the listing has more than {} pages", kMaxPages)};
  }
  Result<void> count(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= kMaxListingBytes) return {};
    return Error{ErrorKind::budget, fmt::format("the listing has more than {}", size_words(kMaxListingBytes))};
  }

 private:
  std::set<std::string> seen_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<void> parse_tree_page(std::string_view text, std::vector<HubFile>& files) {
  TRY_ASSIGN(const Json page, parse_json(text, kHubListingDocument));
  if (!page.is_array()) return not_a_listing("it is no array");
  for (const Json& entry : page) {
    if (!entry.is_object()) return not_a_listing("an entry is no object");
    TRY_ASSIGN(const std::string type, json_string(entry, "type"));
    if (type != "file") continue;
    auto file = parse_file(entry);
    if (!file) return file.error();
    if (const auto reason = unsafe_path_reason(file->path, HiddenNames::accepted))
      return not_a_listing(fmt::format("{}: {}", file->path, *reason));
    files.push_back(*std::move(file));
  }
  return {};
}

Result<void> sort_listing(std::vector<HubFile>& files) {
  std::ranges::sort(files, {}, &ListedFile::path);
  const auto twice = std::ranges::adjacent_find(files, {}, &ListedFile::path);
  if (twice == files.end()) return {};
  return not_a_listing(fmt::format("{} is in it twice", twice->path));
}

std::vector<ListedFile> visible_files(const std::vector<HubFile>& files) {
  std::vector<ListedFile> visible;
  std::ranges::copy_if(files, std::back_inserter(visible), [](const HubFile& file) { return !is_hidden(file.path); });
  return visible;
}

const ListedFile* find_listed(const std::vector<ListedFile>& files, std::string_view path) {
  const auto found =
      std::ranges::lower_bound(files, path, {}, [](const ListedFile& f) -> std::string_view { return f.path; });
  return found != files.end() && found->path == path ? &*found : nullptr;
}

Result<std::optional<std::vector<HubFile>>> list_tree(const HubClient& hub, const std::string& revision,
                                                      const std::stop_token& stop) {
  const ExplainFailure explain = hub.explain(revision);
  const std::string address = hub_api_url(hub.endpoint(), {hub.repository(), revision}, "tree");
  const std::string first = address + "?recursive=true&expand=false";
  const std::string shown = without_password(address);
  const auto wrong = [&shown](const Error& error) { return error.in(shown); };
  std::vector<HubFile> files;
  Pages pages;
  for (std::string url = first; !url.empty();) {
    if (const auto taken = pages.take(url); !taken) return wrong(taken.error());
    const HttpRequest request{.url = url,
                              .name = shown,
                              .bearer_token = hub.token(),
                              .stays_home = true,
                              .answer_limit_bytes = kHubListingDocument.bytes};
    const auto page = hub.http().send(request, stop, explain);
    if (!page && page.error().kind == ErrorKind::not_found && url == first)
      return std::optional<std::vector<HubFile>>();
    if (!page) return page.error();
    if (const auto counted = pages.count(page->body.size()); !counted) return wrong(counted.error());
    if (const auto parsed = parse_tree_page(page->body, files); !parsed) return wrong(parsed.error());
    const std::string next = at_endpoint(page->next_page, hub.endpoint());
    const auto same_host = same_host_url(url, next);
    if (!next.empty() && !same_host) return wrong(not_a_listing("its next page is at another host"));
    url = same_host.value_or("");
  }
  if (const auto sorted = sort_listing(files); !sorted) return wrong(sorted.error());
  return std::optional(std::move(files));
}

}  // namespace dspack::format
