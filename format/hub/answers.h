// What the Hub's API answers to calls that write, read strictly: ids and names come from a stranger. No transport in
// it. Threads: plain values and pure functions. Errors: invalid, with the field. Source: the Hub's HTTP API as
// huggingface_hub (hf_api.py, _commit_api.py) uses it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::format {

struct RepositoryInfo {
  bool is_private = false;
  std::string head;  // id of the newest commit; empty: none yet
};
[[nodiscard]] Result<RepositoryInfo> read_repository_info(std::string_view text);

/// How a file is to be sent.
struct UploadMode {
  bool large = false;    // to the large file storage; else in the commit itself
  bool ignored = false;  // the repository's .gitignore names it
};
/// One mode for each path, in their order. A path without an answer: invalid.
[[nodiscard]] Result<std::vector<UploadMode>> read_preupload(std::string_view text,
                                                             const std::vector<std::string>& paths);

/// The id of the commit that was made.
[[nodiscard]] Result<std::string> read_commit(std::string_view text);

struct PullRequest {
  uint64_t number = 0;
  std::string title;
  std::string status;  // draft, open, closed, merged
  [[nodiscard]] std::string revision() const { return "refs/pr/" + std::to_string(number); }
  [[nodiscard]] bool unfinished() const { return status == "draft" || status == "open"; }
};
struct PullRequestPage {
  std::vector<PullRequest> pull_requests;
  bool is_last = true;
};
[[nodiscard]] Result<PullRequestPage> read_pull_requests(std::string_view text);
/// The number of the pull request that was opened.
[[nodiscard]] Result<uint64_t> read_opened(std::string_view text);

}  // namespace dspack::format
