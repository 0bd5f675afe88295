#include "reshard/publish/hub_api.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "format/json.h"
#include "format/source/http_headers.h"
#include "format/source/http_repository.h"
#include "format/source/hub_listing.h"
#include "reshard/publish/encoding.h"

namespace dspack::reshard {
namespace {

using format::HttpCall;
using format::HttpFailure;
using format::HttpReply;
using format::Json;

// Of pull requests; the Hub has 50 on a page. A list without end would otherwise be read for hours.
constexpr unsigned kMaxPages = 400;

// The Hub gives a commit a minute; its answer may take longer than any other.
constexpr long kCommitSilenceSeconds = 120;

constexpr char kJson[] = "Content-Type: application/json";
constexpr char kLfsJson[] = "Content-Type: application/vnd.git-lfs+json";
constexpr char kAcceptLfsJson[] = "Accept: application/vnd.git-lfs+json";
constexpr char kLines[] = "Content-Type: application/x-ndjson";

/// The Hub makes one repository of a user at a time.
bool is_busy(const HttpReply& reply) {
  return reply.status == 409 && reply.body.find("conflicting operation is in progress") != std::string::npos;
}

/// "Private repository storage limit reached", "Your storage patterns tripped our internal systems", ...: the token has
/// nothing to do with it.
bool is_about_room(long status, std::string words) {
  constexpr std::array kStatuses{402L, 403L, 413L, 507L};
  std::ranges::transform(words, words.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool names_it = words.find("storage") != std::string::npos || words.find("quota") != std::string::npos;
  return names_it && std::ranges::find(kStatuses, status) != kStatuses.end();
}

template <class T>
Attempted<T> attempted(Result<T> value) {
  if (value) return std::move(*value);
  return HttpFailure{value.error()};
}

}  // namespace

HttpCall HubApi::get(const std::string& url) const {
  return {.method = "GET", .url = url, .name = public_url(url), .bearer_token = address_.token};
}

HttpCall HubApi::post(const std::string& url, std::string body) const {
  return {.method = "POST",
          .url = url,
          .name = public_url(url),
          .bearer_token = address_.token,
          .headers = {kJson},
          .body = std::move(body)};
}

Error HubApi::cleaned(Error error) const {
  error.message = redacted(error.message, address_.token);
  return error;
}

std::string HubApi::words_of(const HttpReply& reply) const {
  const std::string words = public_words(refusal_words(reply.header("x-error-message"), reply.body), address_.token);
  return words.empty() ? fmt::format("HTTP {}", reply.status) : fmt::format("HTTP {}: {}", reply.status, words);
}

Error HubApi::refused(const HttpReply& reply, const std::string& name) const {
  const std::string words = words_of(reply);
  const auto error = [&](ErrorKind kind, std::string_view what) {
    return Error{kind, fmt::format("{}: {} ({})", name, what, words)};
  };
  if (reply.status >= 300 && reply.status < 400) {
    return error(ErrorKind::network, fmt::format("it answers with a redirect to \"{}\"; if the repository was renamed, "
                                                 "give its new name",
                                                 public_words(reply.header("location"), address_.token)));
  }
  if (is_about_room(reply.status, words)) {
    return error(
        ErrorKind::network,
        fmt::format("{} has no room left on the Hub, or no more is granted; free some, or ask the Hub for more, "
                    "and run the command again: what has been sent is kept",
                    address_.organization()));
  }
  switch (reply.status) {
    case 401:
      return error(ErrorKind::network,
                   address_.token.empty()
                       ? "it wants a token; set HF_TOKEN to one with write access"
                       : "it does not accept the token; set HF_TOKEN to a valid one with write access");
    case 403:
      return error(ErrorKind::network, fmt::format("the token has no right to do this; set HF_TOKEN to one with write "
                                                   "access to {}",
                                                   address_.repository));
    case 404: return error(ErrorKind::not_found, "not found");
    case 409:
    case 412: return error(ErrorKind::conflict, "conflicts with what is there");
    default: return error(ErrorKind::network, "refused");
  }
}

std::variant<HttpReply, HttpFailure> HubApi::attempt(HttpCall call, const std::stop_token& stop) const {
  call.only_once = true;
  auto outcome = client_.attempt(call, stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) {
    failure->error = cleaned(failure->error);
    return outcome;
  }
  const auto& reply = std::get<HttpReply>(outcome);
  if (!reply.good()) return HttpFailure{refused(reply, call.name)};
  return outcome;
}

Result<std::string> HubApi::text_of(const HttpCall& call, const std::stop_token& stop) const {
  TRY_ASSIGN(HttpReply reply, client_.exchange(call, stop));
  if (!reply.good()) return refused(reply, call.name);
  return std::move(reply.body);
}

Result<Presence> HubApi::look(const std::string& revision, const std::stop_token& stop) const {
  const auto ask = [&](const std::string& url, Presence& presence) -> Result<bool> {
    const HttpCall call = get(url);
    TRY_ASSIGN(const HttpReply reply, client_.exchange(call, stop));
    const std::string_view code = reply.header("x-error-code");
    presence.repository = reply.good() || code == "RevisionNotFound";
    // To somebody without a token, what is missing and what is private are one.
    if (reply.status == 404 || (reply.status == 401 && code == "RepoNotFound")) return false;
    if (!reply.good()) return refused(reply, call.name);
    auto info = read_repository_info(reply.body);
    if (!info) return cleaned(info.error().in(call.name));
    presence.info = std::move(*info);
    return true;
  };
  const std::string wanted = "?expand=sha&expand=private";  // and not the list of all files
  Presence presence;
  TRY_ASSIGN(presence.revision, ask(address_.api("/revision/" + encoded_revision(revision)) + wanted, presence));
  if (presence.revision) return presence;
  TRY(ask(address_.api("") + wanted, presence));
  presence.info.head.clear();
  return presence;
}

Result<RemoteTree> HubApi::tree(const std::string& revision, const std::stop_token& stop) const {
  const format::HubName name{address_.repository, revision};
  auto listed = format::list_tree(client_, {.endpoint = address_.endpoint, .token = address_.token}, name, stop);
  if (!listed) return cleaned(listed.error());
  const std::string url = public_url(format::hub_api_url(address_.endpoint, name, "tree"));
  if (!*listed) return Error{ErrorKind::not_found, url + ": not found"};
  RemoteTree tree;
  for (format::HubFile& file : **listed) {
    if (!file.sha256 && file.blob.empty())
      return Error{ErrorKind::invalid, fmt::format("{}: tells no id of {}", url, file.path)};
    tree.emplace(std::move(file.path), RemoteFile{file.size_bytes, std::move(file.blob), file.sha256});
  }
  return tree;
}

Result<std::string> HubApi::read_text(const std::string& revision, const std::string& path, uint64_t limit_bytes,
                                      const std::stop_token& stop) const {
  constexpr uint64_t kNoProgress = 0;  // a repeated attempt begins anew
  const std::string url =
      fmt::format("{}/resolve/{}/{}", address_.page(), encoded_revision(revision), format::url_path(path));
  std::string text;
  const format::ByteSink keep = [&](std::span<const std::byte> bytes) -> Result<void> {
    if (text.size() + bytes.size() > limit_bytes)
      return Error{ErrorKind::budget, fmt::format("{}: is longer than {} bytes", url, limit_bytes)};
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  const auto request = [&] {
    text.clear();
    return format::HttpRequest{.url = url, .range = {}, .bearer_token = address_.token, .expected_version = {}};
  };
  if (const auto got = client_.get({.next = request, .sink = keep, .received = kNoProgress}, stop); !got)
    return cleaned(got.error());
  return text;
}

Result<void> HubApi::create_repository(Visibility visibility, const std::stop_token& stop) const {
  Json wanted = {{"organization", address_.organization()}, {"name", address_.name()}, {"type", "model"}};
  if (visibility == Visibility::only_private) wanted["visibility"] = "private";
  const HttpCall call = post(address_.endpoint + "/api/repos/create", wanted.dump());
  for (unsigned failures = 1;; ++failures) {
    TRY_ASSIGN(const HttpReply reply, client_.exchange(call, stop));
    if (reply.good() || (reply.status == 409 && !is_busy(reply))) return {};
    if (!is_busy(reply)) return refused(reply, call.name);
    HttpFailure busy{refused(reply, call.name), true};
    TRY(client_.pause(busy, failures, stop));
  }
}

Result<void> HubApi::create_branch(const std::string& branch, const std::stop_token& stop) const {
  const HttpCall call = post(address_.api("/branch/" + encoded_revision(branch)), "{}");
  TRY_ASSIGN(const HttpReply reply, client_.exchange(call, stop));
  if (reply.good() || reply.status == 409) return {};
  return refused(reply, call.name);
}

Result<void> HubApi::check_card(const std::string& text, const std::stop_token& stop) const {
  const Json body = {{"content", text}, {"repoType", "model"}};
  const HttpCall call = post(address_.endpoint + "/api/validate-yaml", format::canonical_json(body));
  TRY_ASSIGN(const HttpReply reply, client_.exchange(call, stop));
  if (reply.status != 400) return {};
  return Error{ErrorKind::invalid,
               fmt::format("README.md: the Hub does not take the fields at its top ({}); correct those "
                           "of the source's own card, from which they are, and pack it again",
                           words_of(reply))};
}

Result<std::vector<UploadMode>> HubApi::preupload(const std::string& revision, const std::vector<Sample>& samples,
                                                  const std::stop_token& stop) const {
  Json files = Json::array();
  std::vector<std::string> paths;
  for (const Sample& sample : samples) {
    files.push_back(
        {{"path", sample.path}, {"size", sample.size_bytes}, {"sample", base64(format::as_bytes(sample.first_bytes))}});
    paths.push_back(sample.path);
  }
  const Json body = {{"files", std::move(files)}};
  const HttpCall call = post(address_.api("/preupload/" + encoded_revision(revision)), format::canonical_json(body));
  TRY_ASSIGN(const std::string text, text_of(call, stop));
  auto modes = read_preupload(text, paths);
  if (!modes) return cleaned(modes.error().in(call.name));
  return modes;
}

Result<std::vector<LfsObject>> HubApi::batch(const std::string& revision, const std::vector<LfsRequest>& objects,
                                             const std::stop_token& stop) const {
  Json list = Json::array();
  std::vector<format::Digest> oids;
  for (const LfsRequest& object : objects) {
    list.push_back({{"oid", to_hex(object.oid)}, {"size", object.size_bytes}});
    oids.push_back(object.oid);
  }
  Json body = {{"operation", "upload"},
               {"transfers", {"basic", "multipart"}},
               {"objects", std::move(list)},
               {"hash_algo", "sha256"}};
  if (!revision.starts_with("refs/")) body["ref"] = {{"name", revision}};
  HttpCall call = post(address_.page() + ".git/info/lfs/objects/batch", body.dump());
  call.headers = {kAcceptLfsJson, kLfsJson};
  TRY_ASSIGN(const std::string text, text_of(call, stop));
  auto answers = read_batch(text, oids);
  if (!answers) return cleaned(answers.error().in(call.name));
  for (const LfsObject& answer : *answers) {
    if (const auto safe = check_places(answer, address_.endpoint); !safe) return cleaned(safe.error().in(call.name));
  }
  return answers;
}

Attempted<std::string> HubApi::commit(const std::string& revision, std::string body,
                                      const std::stop_token& stop) const {
  HttpCall call = post(address_.api("/commit/" + encoded_revision(revision)), std::move(body));
  call.headers = {kLines};
  call.silence_seconds = kCommitSilenceSeconds;
  const std::string name = call.name;
  auto outcome = attempt(std::move(call), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  auto id = read_commit(std::get<HttpReply>(outcome).body);
  if (!id) return HttpFailure{cleaned(id.error().in(name))};
  return std::move(*id);
}

Result<std::optional<PullRequest>> HubApi::find_pull_request(const std::string& title,
                                                             const std::stop_token& stop) const {
  for (unsigned page = 0; page < kMaxPages; ++page) {
    const HttpCall call = get(address_.api(fmt::format("/discussions?type=pull_request&p={}", page)));
    TRY_ASSIGN(const std::string text, text_of(call, stop));
    const auto read = read_pull_requests(text);
    if (!read) return cleaned(read.error().in(call.name));
    const auto found = std::ranges::find_if(
        read->pull_requests, [&](const PullRequest& pull) { return pull.title == title && pull.unfinished(); });
    if (found != read->pull_requests.end()) return std::optional(*found);
    if (read->is_last) break;
  }
  return std::optional<PullRequest>();
}

Attempted<uint64_t> HubApi::open_pull_request(const std::string& title, const std::string& description,
                                              const std::stop_token& stop) const {
  const Json body = {{"title", title}, {"description", description}, {"pullRequest", true}};
  const HttpCall call = post(address_.api("/discussions"), body.dump());
  auto outcome = attempt(call, stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  auto number = read_opened(std::get<HttpReply>(outcome).body);
  if (!number) return HttpFailure{cleaned(number.error().in(call.name))};
  return attempted(std::move(number));
}

Attempted<std::monostate> HubApi::mark_ready(uint64_t number, const std::stop_token& stop) const {
  auto outcome =
      attempt(post(address_.api(fmt::format("/discussions/{}/status", number)), R"({"status":"open"})"), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  return std::monostate();
}

Attempted<std::monostate> HubApi::merge(uint64_t number, const std::stop_token& stop) const {
  HttpCall call = post(address_.api(fmt::format("/discussions/{}/merge", number)), "{}");
  call.silence_seconds = kCommitSilenceSeconds;
  auto outcome = attempt(std::move(call), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  return std::monostate();
}

}  // namespace dspack::reshard
