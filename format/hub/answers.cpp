#include "format/hub/answers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/hub/name.h"
#include "format/json.h"

namespace dspack::format {
namespace {

Error malformed(std::string_view what) {
  return {ErrorKind::invalid, fmt::format("the Hub's answer breaks its protocol: {}", what)};
}

/// A JSON object, or an error.
Result<Json> parse_object(std::string_view text) {
  auto parsed = parse_json(text, kHubAnswerDocument);
  if (!parsed) return malformed(parsed.error().message);
  if (!parsed->is_object()) return malformed("not a JSON object");
  return parsed;
}

/// Adds to a field's error that the Hub's answer is at fault.
template <class T>
Result<T> field(Result<T> value) {
  if (value) return value;
  return malformed(value.error().message);
}

Result<std::string> git_id(const Json& object, std::string_view key) {
  TRY_ASSIGN(std::string id, field(json_string(object, key)));
  if (is_commit_id(id)) return id;
  return malformed(fmt::format("\"{}\" is no id of git", key));
}

}  // namespace

Result<RepositoryInfo> read_repository_info(std::string_view text) {
  TRY_ASSIGN(const Json object, parse_object(text));
  RepositoryInfo info;
  const auto is_private = object.find("private");
  if (is_private == object.end() || !is_private->is_boolean()) return malformed("\"private\" is missing");
  info.is_private = is_private->get<bool>();
  if (const auto sha = object.find("sha"); sha != object.end() && !sha->is_null()) {
    TRY_ASSIGN(info.head, git_id(object, "sha"));
  }
  return info;
}

Result<std::vector<UploadMode>> read_preupload(std::string_view text, const std::vector<std::string>& paths) {
  TRY_ASSIGN(const Json object, parse_object(text));
  TRY_ASSIGN(const Json* files, field(json_array(object, "files")));
  std::map<std::string, UploadMode> modes;
  for (const Json& file : *files) {
    if (!file.is_object()) return malformed("a file that is not an object");
    TRY_ASSIGN(std::string path, field(json_string(file, "path")));
    TRY_ASSIGN(const std::string mode, field(json_string(file, "uploadMode")));
    if (mode != "lfs" && mode != "regular") return malformed(fmt::format("unknown uploadMode \"{}\"", mode));
    const auto ignored = file.find("shouldIgnore");
    modes[std::move(path)] = {mode == "lfs", ignored != file.end() && ignored->is_boolean() && ignored->get<bool>()};
  }
  std::vector<UploadMode> answers;
  answers.reserve(paths.size());
  for (const std::string& path : paths) {
    const auto found = modes.find(path);
    if (found == modes.end()) return malformed(fmt::format("no uploadMode for {}", path));
    answers.push_back(found->second);
  }
  return answers;
}

Result<std::string> read_commit(std::string_view text) {
  TRY_ASSIGN(const Json object, parse_object(text));
  return git_id(object, "commitOid");
}

Result<PullRequestPage> read_pull_requests(std::string_view text) {
  TRY_ASSIGN(const Json object, parse_object(text));
  TRY_ASSIGN(const Json* discussions, field(json_array(object, "discussions")));
  PullRequestPage page;
  for (const Json& discussion : *discussions) {
    if (!discussion.is_object()) return malformed("a discussion that is not an object");
    const auto is_pull_request = discussion.find("isPullRequest");
    if (is_pull_request == discussion.end() || !is_pull_request->is_boolean() || !is_pull_request->get<bool>())
      continue;
    PullRequest found;
    TRY_ASSIGN(found.number, field(json_uint(discussion, "num")));
    TRY_ASSIGN(found.title, field(json_string(discussion, "title")));
    TRY_ASSIGN(found.status, field(json_string(discussion, "status")));
    page.pull_requests.push_back(std::move(found));
  }
  TRY_ASSIGN(const uint64_t start, field(json_uint(object, "start")));
  TRY_ASSIGN(const uint64_t count, field(json_uint(object, "count")));
  page.is_last = discussions->empty() || start >= count || discussions->size() >= count - start;
  return page;
}

Result<uint64_t> read_opened(std::string_view text) {
  TRY_ASSIGN(const Json object, parse_object(text));
  TRY_ASSIGN(const uint64_t number, field(json_uint(object, "num")));
  if (number == 0) return malformed("a pull request without a number");
  return number;
}

namespace {

constexpr uint64_t kMaxParts = 10'000;          // S3's limit
constexpr uint64_t kMaxPartBytes = 5ULL << 30;  // S3's limit
constexpr size_t kMaxHeaderBytes = 16 << 10;    // over all headers of one request
constexpr size_t kMaxHeaders = 100;

Error malformed_lfs(std::string_view what) {
  return {ErrorKind::invalid, fmt::format("the Hub's answer about large files breaks its protocol: {}", what)};
}

bool is_http_url(std::string_view url) {
  const bool plain = std::ranges::all_of(url, [](unsigned char c) { return c > ' ' && c != 0x7f; });
  return plain && (url.starts_with("https://") || url.starts_with("http://"));
}

/// Whether a value cannot end its line and forge another header.
bool is_header_text(std::string_view text) {
  return text.size() <= kMaxHeaderBytes &&
         std::ranges::none_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

bool is_header_name(std::string_view name) {
  return !name.empty() && is_header_text(name) && name.find_first_of(" :") == std::string_view::npos;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Headers that control a request and its connection: a server that set them could make it wait, or address another
/// host.
bool belongs_to_connection(std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames{"connection", "content-length",    "content-range", "expect",
                                                    "host",       "keep-alive",        "range",         "te",
                                                    "trailer",    "transfer-encoding", "upgrade"};
  return std::ranges::any_of(kNames, [&](std::string_view n) { return equal_ignoring_case(n, name); }) ||
         equal_ignoring_case(name.substr(0, 6), "proxy-");
}

Result<LfsAction> read_action(const Json& action) {
  if (!action.is_object()) return malformed_lfs("an action that is not an object");
  const auto href = action.find("href");
  if (href == action.end() || !href->is_string() || !is_http_url(href->get_ref<const std::string&>()))
    return malformed_lfs("an action without an http(s) address");
  LfsAction read{.href = href->get<std::string>(), .header = {}};
  const auto header = action.find("header");
  if (header == action.end() || header->is_null()) return read;
  if (!header->is_object()) return malformed_lfs("\"header\" is not an object");
  size_t bytes = 0;  // only headers that are sent: the addresses of parts are none
  size_t count = 0;
  for (const auto& [name, value] : header->items()) {
    std::string text;
    if (value.is_string()) text = value.get<std::string>();
    if (value.is_number_unsigned()) text = std::to_string(value.get<uint64_t>());
    if (!is_header_name(name) || text.empty() || !is_header_text(text))
      return malformed_lfs("a header that is not text");
    if (belongs_to_connection(name))
      return malformed_lfs(fmt::format("the header \"{}\" is not the server's to set", name));
    if (!is_number(name)) bytes += name.size() + text.size();
    if (!is_number(name) && ++count > kMaxHeaders)
      return malformed_lfs(fmt::format("more than {} headers", kMaxHeaders));
    if (bytes > kMaxHeaderBytes) return malformed_lfs(fmt::format("headers of more than {} bytes", kMaxHeaderBytes));
    read.header.emplace_back(name, std::move(text));
  }
  return read;
}

Result<std::optional<LfsAction>> optional_action(const Json& actions, const char* name) {
  const auto found = actions.find(name);
  if (found == actions.end() || found->is_null()) return std::optional<LfsAction>();
  TRY_ASSIGN(LfsAction action, read_action(*found));
  return std::optional(std::move(action));
}

Result<LfsObject> read_object(const Json& object) {
  if (!object.is_object()) return malformed_lfs("an object that is not a JSON object");
  const auto oid = object.find("oid");
  const auto digest = oid != object.end() && oid->is_string() ? parse_digest(oid->get_ref<const std::string&>())
                                                              : std::optional<Digest>();
  if (!digest) return malformed_lfs("an object without a SHA-256");
  LfsObject read{.oid = *digest, .upload = {}, .verify = {}, .refusal = {}};
  if (const auto error = object.find("error"); error != object.end() && !error->is_null()) {
    const auto message = error->is_object() ? error->find("message") : error->end();
    const bool has_words = error->is_object() && message != error->end() && message->is_string();
    read.refusal = has_words ? message->get<std::string>() : "without a reason";
    return read;
  }
  const auto actions = object.find("actions");
  if (actions == object.end() || actions->is_null()) return read;
  if (!actions->is_object()) return malformed_lfs("\"actions\" is not an object");
  TRY_ASSIGN(read.upload, optional_action(*actions, "upload"));
  TRY_ASSIGN(read.verify, optional_action(*actions, "verify"));
  return read;
}

Result<UploadWay> multipart_way(const LfsAction& action, uint64_t size_bytes, uint64_t chunk_bytes) {
  // Without adding first: a hostile chunk size must not overflow.
  const uint64_t count = size_bytes / chunk_bytes + (size_bytes % chunk_bytes == 0 ? 0 : 1);
  if (count > kMaxParts) return malformed_lfs(fmt::format("{} parts", count));
  std::map<uint64_t, std::string> urls;
  for (const auto& [name, value] : action.header) {
    if (!is_number(name)) continue;
    const auto number = parse_decimal(name);
    if (!number || !is_http_url(value)) return malformed_lfs("a part without a number and an http(s) address");
    if (!urls.emplace(*number, value).second) return malformed_lfs(fmt::format("part {} has two addresses", *number));
  }
  if (urls.size() != count || count == 0 || urls.begin()->first != 1 || urls.rbegin()->first != count) {
    return malformed_lfs(
        fmt::format("{} bytes in parts of {} are {} parts; it names {}", size_bytes, chunk_bytes, count, urls.size()));
  }
  UploadWay way{.parts = {}, .multipart = true, .headers = {}};
  for (auto& [number, url] : urls) {
    const uint64_t begin = (number - 1) * chunk_bytes;
    way.parts.push_back({std::move(url), {begin, begin + std::min(chunk_bytes, size_bytes - begin)}});
  }
  return way;
}

}  // namespace

Result<std::vector<LfsObject>> read_batch(std::string_view text, const std::vector<Digest>& oids) {
  const auto parsed = parse_json(text, kHubAnswerDocument);
  if (!parsed) return malformed_lfs(parsed.error().message);
  const auto objects = parsed->is_object() ? parsed->find("objects") : parsed->end();
  if (!parsed->is_object() || objects == parsed->end() || !objects->is_array()) return malformed_lfs("no \"objects\"");
  if (const auto transfer = parsed->find("transfer"); transfer != parsed->end() && transfer->is_string()) {
    const auto& name = transfer->get_ref<const std::string&>();
    if (name != "basic" && name != "multipart")
      return malformed_lfs(fmt::format("it chose the transfer \"{}\", which was not offered", name));
  }
  std::map<Digest, LfsObject> answers;
  for (const Json& object : *objects) {
    TRY_ASSIGN(LfsObject read, read_object(object));
    answers.insert_or_assign(read.oid, std::move(read));
  }
  std::vector<LfsObject> ordered;
  ordered.reserve(oids.size());
  for (const Digest& oid : oids) {
    const auto found = answers.find(oid);
    if (found == answers.end()) return malformed_lfs(fmt::format("nothing about the object {}", to_hex(oid)));
    ordered.push_back(found->second);
  }
  return ordered;
}

Result<void> check_places(const LfsObject& object, const std::string& endpoint) {
  const auto unsafe = [&](const std::string& url) { return is_https(endpoint) && is_http(at_endpoint(url, endpoint)); };
  const auto shown = [](const std::string& url) { return refusal_text(without_password(url)); };
  for (const auto* action : {&object.upload, &object.verify}) {
    if (!*action) continue;
    std::vector<std::string> urls{(*action)->href};
    for (const auto& [name, value] : (*action)->header) {
      if (is_number(name)) urls.push_back(value);
    }
    const auto found = std::ranges::find_if(urls, unsafe);
    if (found == urls.end()) continue;
    return malformed_lfs(
        fmt::format("it names {}, an address without https, where anybody on the way could read and change "
                    "what is sent",
                    shown(*found)));
  }
  if (!object.verify || same_host_url(endpoint + "/", at_endpoint(object.verify->href, endpoint))) return {};
  return malformed_lfs(fmt::format("the address {} for verification is at another host", shown(object.verify->href)));
}

Result<UploadWay> upload_way(const LfsAction& action, uint64_t size_bytes) {
  const auto chunk = std::ranges::find(action.header, "chunk_size", &std::pair<std::string, std::string>::first);
  if (chunk != action.header.end()) {
    const auto bytes = parse_decimal(chunk->second);
    if (!bytes || *bytes == 0 || *bytes > kMaxPartBytes)
      return malformed_lfs(fmt::format("\"chunk_size\" is no number of bytes up to {}", kMaxPartBytes));
    return multipart_way(action, size_bytes, *bytes);
  }
  UploadWay way{.parts = {{action.href, {0, size_bytes}}}, .multipart = false, .headers = {}};
  for (const auto& [name, value] : action.header)
    way.headers.push_back(fmt::format("{}: {}", name, value));
  return way;
}

}  // namespace dspack::format
