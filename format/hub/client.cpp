#include "format/hub/client.h"

#include <fmt/format.h>

#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/json.h"

namespace dspack::format {
namespace {

// Every checkpoint has it, and it is a small file, which the Hub itself answers for.
constexpr char kAskedFile[] = "config.json";

// A renamed repository causes one, the Hub's own cache of small files another; more in a row are a loop.
constexpr unsigned kMaxRedirects = 5;

Error not_the_hub(const std::string& url) {
  return {ErrorKind::invalid,
          fmt::format("{}: the answer names no commit (X-Repo-Commit), so this is not the Hub, or a proxy removes that "
                      "header; check HF_ENDPOINT. For a plain folder give its http(s):// address",
                      without_password(url))};
}

/// For a mirror that redirects without the Hub's headers: tokens and requests stay with the endpoint's host.
Error redirects_elsewhere(const std::string& url, const std::string& location) {
  return {
      ErrorKind::invalid,
      fmt::format("{}: redirects to \"{}\" and names no commit (X-Repo-Commit); if that is where the Hub or its mirror "
                  "is, set HF_ENDPOINT to it",
                  without_password(url), refusal_text(location))};
}

Error redirected_for_ever(const std::string& url) {
  return {ErrorKind::network, fmt::format("{}: redirected more than {} times", without_password(url), kMaxRedirects)};
}

/// The digest of an LFS object is its file's SHA-256; other files of the Hub have an ETag of another length.
std::optional<DeclaredFile> declaration(const HttpResponse& head) {
  const std::optional<Digest> sha256 = parse_digest(head.linked_etag.empty() ? head.version : head.linked_etag);
  if (!sha256) return std::nullopt;
  // The length of a redirect's body is not the file's.
  const bool is_file = head.status == 200;
  return DeclaredFile{*sha256, head.linked_bytes || !is_file ? head.linked_bytes : head.file_bytes};
}

}  // namespace

HubClient::HubClient(const RemoteOptions& options, std::string repository)
    : endpoint_(options.hub_endpoint),
      token_(options.hub_token),
      repository_(std::move(repository)),
      http_(std::make_unique<RetryingClient>(options)) {
  while (endpoint_.ends_with('/'))
    endpoint_.pop_back();
}

std::string HubClient::api_url(std::string_view tail) const {
  return fmt::format("{}/api/models/{}{}", endpoint_, repository_, tail);
}

std::string HubClient::file_url(const std::string& revision, std::string_view path) const {
  return hub_file_url(endpoint_, {repository_, revision}, path);
}

std::string HubClient::token_for(const std::string& url) const {
  return same_host_url(endpoint_ + "/", url) ? token_ : std::string();
}

void HubClient::pin(const HubCommit& commit) {
  repository_ = commit.repository;
  commit_ = commit.commit;
}

HubRequest HubClient::asked(const std::string& revision) const {
  return {.endpoint = endpoint_, .repository = repository_, .revision = revision, .has_token = has_token()};
}

ExplainFailure HubClient::explain(const std::string& revision) const {
  return [asked = asked(revision)](const HttpFailure& failure) { return explain_refusal(asked, failure); };
}

HttpRequest HubClient::file_request(const std::string& revision, std::string_view path) const {
  return {.url = file_url(revision, path),
          .bearer_token = token_,
          .expected_commit = revision == commit_ ? commit_ : std::string()};
}

HttpFile HubClient::file(const std::string& revision, std::string_view path) const {
  return {.url = file_url(revision, path), .token = token_, .commit = revision, .explain = explain(revision)};
}

Result<std::string> HubClient::read_text(const std::string& revision, std::string_view path, uint64_t limit_bytes,
                                         const std::stop_token& stop) const {
  HttpRequest request = file_request(revision, path);
  request.answer_limit_bytes = limit_bytes;
  TRY_ASSIGN(HttpResponse answer, http_->send(request, stop, explain(revision)));
  return std::move(answer.body);
}

Result<std::optional<DeclaredFile>> HubClient::declared(const std::string& revision, std::string_view path,
                                                        const std::stop_token& stop) const {
  HttpRequest request = file_request(revision, path);
  request.method = "HEAD";
  for (unsigned redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    TRY_ASSIGN(const HttpResponse head, http_->send(request, stop, explain(revision)));
    if (const auto found = declaration(head)) return std::optional(found);
    const std::optional<std::string> next = same_host_url(request.url, head.location);
    if (!next) return std::optional<DeclaredFile>();
    request.url = *next;
  }
  return redirected_for_ever(file_url(revision, path));
}

Result<HubCommit> HubClient::resolve(const std::string& revision, const std::stop_token& stop) const {
  HubName name{repository_, revision};
  HttpRequest request{.method = "HEAD", .url = file_url(revision, kAskedFile), .bearer_token = token_};
  for (unsigned redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    std::string commit;
    const ExplainFailure explain = [&](const HttpFailure& failure) {
      commit = failure.repo_commit;
      HubRequest asked_now = asked(revision);
      asked_now.repository = name.repository;
      return explain_refusal(asked_now, failure);
    };
    const auto head = http_->send(request, stop, explain);
    if (!head && head.error().kind != ErrorKind::not_found) return head.error();
    std::optional<std::string> next;
    if (head) {
      commit = head->repo_commit;
      next = same_host_url(request.url, head->location);
      const auto renamed = next ? repository_of_url(endpoint_, *next) : std::nullopt;
      if (renamed && *renamed != name.repository) {
        name.repository = *renamed;
        request.url = *next;
        continue;
      }
    }
    if (is_commit_id(commit)) return HubCommit{name.repository, commit};
    if (!head) return ask_api(name, stop);
    if (!next && !head->location.empty()) return redirects_elsewhere(request.url, head->location);
    if (!next || !commit.empty()) return not_the_hub(request.url);
    request.url = *next;
  }
  return redirected_for_ever(request.url);
}

/// Asks the API which commit the revision stands for.
Result<HubCommit> HubClient::ask_api(const HubName& name, const std::stop_token& stop) const {
  const HttpRequest request{.url = hub_api_url(endpoint_, name, "revision"),
                            .bearer_token = token_,
                            .stays_home = true,
                            .answer_limit_bytes = kHubAnswerDocument.bytes};
  const ExplainFailure explain = [&](const HttpFailure& failure) {
    constexpr long kNotFound = 404;
    HttpFailure named = failure;
    if (failure.status == kNotFound && failure.error_code.empty()) named.error_code = "RepoNotFound";
    HubRequest asked_now = asked(name.revision);
    asked_now.repository = name.repository;
    return explain_refusal(asked_now, named);
  };
  TRY_ASSIGN(const HttpResponse info, http_->send(request, stop, explain));
  const auto json = parse_json(info.body, kHubAnswerDocument);
  if (!json || !json->is_object()) return not_the_hub(request.url);
  const auto commit = json_string(*json, "sha");
  if (!commit || !is_commit_id(*commit)) return not_the_hub(request.url);
  const auto id = json_string(*json, "id");
  const bool is_name = id && parse_hub_name(*id) && id->find('@') == std::string::npos;
  return HubCommit{is_name ? *id : name.repository, *commit};
}

}  // namespace dspack::format
