#include "format/source/hub_revision.h"

#include <fmt/format.h>

#include "format/json.h"
#include "format/source/http_text.h"
#include "format/source/hub_refusal.h"

namespace dspack::format {
namespace {

// Every checkpoint has it, and those of its kind are small files that the Hub itself answers for.
constexpr char kAskedFile[] = "config.json";

// A renamed repository is one, the Hub's own cache of small files another; more in a row are a loop.
constexpr unsigned kMaxRedirects = 5;

// Names every file of the repository: some 100 bytes each, for the 100,000 that a repository may have.
constexpr uint64_t kMaxInfoBytes = 64ULL << 20;

HubRequest asked_for(const HubDoor& door, const HubName& name) {
  return {.endpoint = door.endpoint,
          .repository = name.repository,
          .revision = name.revision,
          .has_token = !door.token.empty()};
}

Error not_the_hub(const std::string& url) {
  return {ErrorKind::invalid,
          fmt::format("{}: the answer names no commit (X-Repo-Commit), so this is not the Hub, or a proxy in between "
                      "drops what it says; check HF_ENDPOINT. A plain folder is named by its http(s):// address",
                      without_password(url))};
}

/// What the API says of the revision.
Result<HubCommit> ask_api(PatientClient& client, const HubDoor& door, const HubName& name,
                          const std::stop_token& stop) {
  const std::string url = hub_api_url(door.endpoint, name, "revision");
  const HttpRequest request{
      .url = url, .range = {}, .bearer_token = door.token, .expected_version = {}, .stays_home = true};
  const ExplainFailure explain = [&](const HttpFailure& failure) {
    constexpr long kNotFound = 404;
    HttpFailure named = failure;
    if (failure.status == kNotFound && failure.error_code.empty()) named.error_code = "RepoNotFound";
    return explain_refusal(asked_for(door, name), named);
  };
  TRY_ASSIGN(const HttpText info, get_text(client, request, kMaxInfoBytes, stop, explain));
  const auto json = parse_json(info.text);
  if (!json || !json->is_object()) return not_the_hub(url);
  const auto commit = json_string(*json, "sha");
  if (!commit || !is_commit_id(*commit)) return not_the_hub(url);
  const auto id = json_string(*json, "id");
  const bool is_name = id && parse_hub_name(*id) && id->find('@') == std::string::npos;
  return HubCommit{is_name ? *id : name.repository, *commit};
}

}  // namespace

Result<HubCommit> resolve_revision(PatientClient& client, const HubDoor& door, const HubName& asked,
                                   const std::stop_token& stop) {
  HubName name = asked;
  std::string url = hub_file_url(door.endpoint, name, kAskedFile);
  const ByteSink nothing = [](std::span<const std::byte>) { return Result<void>(); };
  constexpr uint64_t kNoProgress = 0;
  for (unsigned redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    std::string commit;
    const auto request = [&] {
      return HttpRequest{
          .url = url, .range = {}, .bearer_token = door.token, .expected_version = {}, .head_only = true};
    };
    const ExplainFailure explain = [&](const HttpFailure& failure) {
      commit = failure.repo_commit;
      return explain_refusal(asked_for(door, name), failure);
    };
    const auto head = client.get({.next = request, .sink = nothing, .received = kNoProgress, .explain = explain}, stop);
    if (!head && head.error().kind != ErrorKind::not_found) return head.error();
    std::optional<std::string> next;
    if (head) {
      commit = head->repo_commit;
      next = same_host_url(url, head->location);
      const auto renamed = next ? repository_of_url(door.endpoint, *next) : std::nullopt;
      if (renamed && *renamed != name.repository) {
        name.repository = *renamed;
        url = *next;
        continue;
      }
    }
    if (is_commit_id(commit)) return HubCommit{name.repository, commit};
    if (!head) return ask_api(client, door, name, stop);
    if (!next || !commit.empty()) return not_the_hub(url);
    url = *next;
  }
  return Error{ErrorKind::network,
               fmt::format("{}: redirected more than {} times", without_password(url), kMaxRedirects)};
}

}  // namespace dspack::format
