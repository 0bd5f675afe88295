#include "format/hub/answers.h"

#include <map>

#include <fmt/format.h>

#include "format/document_bounds.h"
#include "format/hub/name.h"
#include "format/json.h"

namespace dspack::format {
namespace {

Error malformed(std::string_view what) {
  return {ErrorKind::invalid, fmt::format("the Hub's answer breaks its protocol: {}", what)};
}

/// An object, or an error.
Result<Json> parse_object(std::string_view text) {
  auto parsed = parse_json(text, kHubAnswerDocument);
  if (!parsed) return malformed(parsed.error().message);
  if (!parsed->is_object()) return malformed("not a JSON object");
  return parsed;
}

/// The error of a field, in words that say whose it is.
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

}  // namespace dspack::format
