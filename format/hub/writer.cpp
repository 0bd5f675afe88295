#include "format/hub/writer.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/http/answer.h"
#include "format/http/content_digest.h"
#include "format/http/headers.h"
#include "format/json.h"

namespace dspack::format {
namespace {

// Pages of pull requests, 50 each. An endless list would otherwise be read for hours.
constexpr unsigned kMaxPullPages = 400;

constexpr unsigned kAnswerSilenceSeconds = 60;
// The Hub allows a minute for a commit; its answer may take longer than others.
constexpr unsigned kCommitSilenceSeconds = 120;

constexpr char kJson[] = "Content-Type: application/json";
constexpr char kLfsJson[] = "Content-Type: application/vnd.git-lfs+json";
constexpr char kAcceptLfsJson[] = "Accept: application/vnd.git-lfs+json";
constexpr char kLines[] = "Content-Type: application/x-ndjson";

/// The Hub creates only one repository per user at a time.
bool is_busy(const HttpResponse& answer) {
  return answer.status == 409 && answer.body.find("conflicting operation is in progress") != std::string::npos;
}

template <class T>
Attempted<T> attempted(Result<T> value) {
  if (value) return std::move(*value);
  return HttpFailure{value.error()};
}

}  // namespace

HttpRequest HubWriter::get(const std::string& url) const {
  return {.url = url,
          .name = public_url(url),
          .bearer_token = hub_.token(),
          .any_status = true,
          .silence_seconds = kAnswerSilenceSeconds};
}

HttpRequest HubWriter::post(const std::string& url, std::string body) const {
  HttpRequest request = get(url);
  request.method = "POST";
  request.headers = {kJson};
  request.body = std::move(body);
  return request;
}

Error HubWriter::cleaned(Error error) const {
  error.message = without_secret(without_queries(error.message), hub_.token());
  return error;
}

Error HubWriter::refused(const HttpResponse& answer, const std::string& name) const {
  const HubRequest asked{
      .endpoint = hub_.endpoint(), .repository = hub_.repository(), .revision = {}, .has_token = hub_.has_token()};
  return cleaned(explain_write_refusal(asked, answer, name));
}

HttpOutcome HubWriter::attempt(HttpRequest request, const std::stop_token& stop) const {
  request.only_once = true;
  HttpOutcome outcome = hub_.http().attempt(request, stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) {
    failure->error = cleaned(failure->error);
    return outcome;
  }
  const auto& answer = std::get<HttpResponse>(outcome);
  if (!answer.good()) return HttpFailure{refused(answer, request.name)};
  return outcome;
}

Result<std::string> HubWriter::text_of(const HttpRequest& request, const std::stop_token& stop) const {
  TRY_ASSIGN(HttpResponse answer, hub_.http().send(request, stop));
  if (!answer.good()) return refused(answer, request.name);
  return std::move(answer.body);
}

Result<Presence> HubWriter::look(const std::string& revision, const std::stop_token& stop) const {
  const auto ask = [&](const std::string& url, Presence& presence) -> Result<bool> {
    const HttpRequest request = get(url);
    TRY_ASSIGN(const HttpResponse answer, hub_.http().send(request, stop));
    const std::string& code = answer.error_code;
    presence.repository = answer.good() || code == "RevisionNotFound";
    // Without a token, a missing repository and a private one look alike.
    if (answer.status == 404 || (answer.status == 401 && code == "RepoNotFound")) return false;
    if (!answer.good()) return refused(answer, request.name);
    auto info = read_repository_info(answer.body);
    if (!info) return cleaned(info.error().in(request.name));
    presence.info = std::move(*info);
    return true;
  };
  const std::string wanted = "?expand=sha&expand=private";  // without the list of all files
  Presence presence;
  TRY_ASSIGN(presence.revision, ask(hub_.api_url("/revision/" + url_component(revision)) + wanted, presence));
  if (presence.revision) return presence;
  TRY(ask(hub_.api_url("") + wanted, presence));
  presence.info.head.clear();
  return presence;
}

Result<HubTree> HubWriter::tree(const std::string& revision, const std::stop_token& stop) const {
  auto listed = list_tree(hub_, revision, stop);
  if (!listed) return cleaned(listed.error());
  const std::string url = public_url(hub_api_url(hub_.endpoint(), {hub_.repository(), revision}, "tree"));
  if (!*listed) return Error{ErrorKind::not_found, url + ": not found"};
  HubTree tree;
  for (HubFile& file : **listed) {
    if (!file.sha256 && file.blob.empty())
      return Error{ErrorKind::invalid, fmt::format("{}: has no id of {}", url, file.path)};
    const std::string path = file.path;
    tree.emplace(path, std::move(file));
  }
  return tree;
}

Result<void> HubWriter::create_repository(Visibility visibility, const std::stop_token& stop) const {
  Json wanted = {{"organization", hub_.organization()}, {"name", hub_.name()}, {"type", "model"}};
  if (visibility == Visibility::only_private) wanted["visibility"] = "private";
  const HttpRequest request = post(hub_.endpoint() + "/api/repos/create", wanted.dump());
  for (unsigned failures = 1;; ++failures) {
    TRY_ASSIGN(const HttpResponse answer, hub_.http().send(request, stop));
    if (answer.good() || (answer.status == 409 && !is_busy(answer))) return {};
    if (!is_busy(answer)) return refused(answer, request.name);
    HttpFailure busy{refused(answer, request.name), true};
    TRY(hub_.http().pause(busy, failures, stop));
  }
}

Result<void> HubWriter::create_branch(const std::string& branch, const std::stop_token& stop) const {
  const HttpRequest request = post(hub_.api_url("/branch/" + url_component(branch)), "{}");
  TRY_ASSIGN(const HttpResponse answer, hub_.http().send(request, stop));
  if (answer.good() || answer.status == 409) return {};
  return refused(answer, request.name);
}

Result<void> HubWriter::check_card(const std::string& text, const std::stop_token& stop) const {
  const Json body = {{"content", text}, {"repoType", "model"}};
  const HttpRequest request = post(hub_.endpoint() + "/api/validate-yaml", canonical_json(body));
  TRY_ASSIGN(const HttpResponse answer, hub_.http().send(request, stop));
  if (answer.status != 400) return {};
  return Error{ErrorKind::invalid,
               fmt::format("README.md: the Hub does not take the fields at its top ({}); correct those "
                           "of the source's own card, from which they come, and pack it again",
                           words_of(answer))};
}

Result<std::vector<UploadMode>> HubWriter::preupload(const std::string& revision, const std::vector<Sample>& samples,
                                                     const std::stop_token& stop) const {
  Json files = Json::array();
  std::vector<std::string> paths;
  for (const Sample& sample : samples) {
    files.push_back(
        {{"path", sample.path}, {"size", sample.size_bytes}, {"sample", base64(as_bytes(sample.first_bytes))}});
    paths.push_back(sample.path);
  }
  const Json body = {{"files", std::move(files)}};
  const HttpRequest request = post(hub_.api_url("/preupload/" + url_component(revision)), canonical_json(body));
  TRY_ASSIGN(const std::string text, text_of(request, stop));
  auto modes = read_preupload(text, paths);
  if (!modes) return cleaned(modes.error().in(request.name));
  return modes;
}

Result<std::vector<LfsObject>> HubWriter::batch(const std::string& revision, const std::vector<LfsRequest>& objects,
                                                const std::stop_token& stop) const {
  Json list = Json::array();
  std::vector<Digest> oids;
  for (const LfsRequest& object : objects) {
    list.push_back({{"oid", to_hex(object.oid)}, {"size", object.size_bytes}});
    oids.push_back(object.oid);
  }
  Json body = {{"operation", "upload"},
               {"transfers", {"basic", "multipart"}},
               {"objects", std::move(list)},
               {"hash_algo", "sha256"}};
  if (!revision.starts_with("refs/")) body["ref"] = {{"name", revision}};
  HttpRequest request = post(hub_.page() + ".git/info/lfs/objects/batch", body.dump());
  request.headers = {kAcceptLfsJson, kLfsJson};
  TRY_ASSIGN(const std::string text, text_of(request, stop));
  auto answers = read_batch(text, oids);
  if (!answers) return cleaned(answers.error().in(request.name));
  for (const LfsObject& answer : *answers) {
    if (const auto safe = check_places(answer, hub_.endpoint()); !safe) return cleaned(safe.error().in(request.name));
  }
  return answers;
}

Attempted<std::string> HubWriter::commit(const std::string& revision, std::string body,
                                         const std::stop_token& stop) const {
  HttpRequest request = post(hub_.api_url("/commit/" + url_component(revision)), std::move(body));
  request.headers = {kLines};
  request.silence_seconds = kCommitSilenceSeconds;
  const std::string name = request.name;
  auto outcome = attempt(std::move(request), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  auto id = read_commit(std::get<HttpResponse>(outcome).body);
  if (!id) return HttpFailure{cleaned(id.error().in(name))};
  return std::move(*id);
}

Result<std::optional<PullRequest>> HubWriter::find_pull_request(const std::string& title,
                                                                const std::stop_token& stop) const {
  for (unsigned page = 0; page < kMaxPullPages; ++page) {
    const HttpRequest request = get(hub_.api_url(fmt::format("/discussions?type=pull_request&p={}", page)));
    TRY_ASSIGN(const std::string text, text_of(request, stop));
    const auto read = read_pull_requests(text);
    if (!read) return cleaned(read.error().in(request.name));
    const auto found = std::ranges::find_if(
        read->pull_requests, [&](const PullRequest& pull) { return pull.title == title && pull.unfinished(); });
    if (found != read->pull_requests.end()) return std::optional(*found);
    if (read->is_last) break;
  }
  return std::optional<PullRequest>();
}

Attempted<uint64_t> HubWriter::open_pull_request(const std::string& title, const std::string& description,
                                                 const std::stop_token& stop) const {
  const Json body = {{"title", title}, {"description", description}, {"pullRequest", true}};
  const HttpRequest request = post(hub_.api_url("/discussions"), body.dump());
  auto outcome = attempt(request, stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  auto number = read_opened(std::get<HttpResponse>(outcome).body);
  if (!number) return HttpFailure{cleaned(number.error().in(request.name))};
  return attempted(std::move(number));
}

Attempted<std::monostate> HubWriter::mark_ready(uint64_t number, const std::stop_token& stop) const {
  auto outcome =
      attempt(post(hub_.api_url(fmt::format("/discussions/{}/status", number)), R"({"status":"open"})"), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  return std::monostate();
}

Attempted<std::monostate> HubWriter::merge(uint64_t number, const std::stop_token& stop) const {
  HttpRequest request = post(hub_.api_url(fmt::format("/discussions/{}/merge", number)), "{}");
  request.silence_seconds = kCommitSilenceSeconds;
  auto outcome = attempt(std::move(request), stop);
  if (auto* failure = std::get_if<HttpFailure>(&outcome)) return std::move(*failure);
  return std::monostate();
}

}  // namespace dspack::format
