// Parses the answers of the Hub's API and its large file storage to calls that write, strictly: ids, names, sizes,
// digests and links are untrusted. Independent of the transport.
// Threads: plain values and pure functions. Errors: invalid, with the field. Source: the Hub's HTTP API as
// huggingface_hub (hf_api.py, _commit_api.py, lfs.py) uses it, and the Git LFS batch API.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/digest.h"

namespace dspack::format {

struct RepositoryInfo {
  bool is_private = false;
  std::string head;  // id of the newest commit; empty: none yet
};
[[nodiscard]] Result<RepositoryInfo> read_repository_info(std::string_view text);

/// How a file must be sent.
struct UploadMode {
  bool large = false;    // to the large file storage; else within the commit
  bool ignored = false;  // the repository's .gitignore excludes it
};
/// One mode per path, in their order. Errors: also invalid (a path without a mode).
[[nodiscard]] Result<std::vector<UploadMode>> read_preupload(std::string_view text,
                                                             const std::vector<std::string>& paths);

/// The id of the new commit.
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

/// A request to make for an object of the large file storage.
struct LfsAction {
  std::string href;
  std::vector<std::pair<std::string, std::string>> header;  // names and values as sent
};
struct LfsObject {
  Digest oid;
  std::optional<LfsAction> upload;  // nullopt: already stored
  std::optional<LfsAction> verify;
  std::string refusal;  // the server's message; empty: none
};
/// One answer per object, in their order. Errors: also invalid (an object without an answer).
[[nodiscard]] Result<std::vector<LfsObject>> read_batch(std::string_view text, const std::vector<Digest>& oids);

/// Checks the addresses in an answer: the bytes may only go over https if the Hub is asked over https, and the
/// verification only to the Hub itself, which alone knows whether they have arrived. Errors: invalid.
[[nodiscard]] Result<void> check_places(const LfsObject& object, const std::string& endpoint);

/// A part of an object and its address.
struct UploadPart {
  std::string url;
  ByteRange range;
};
struct UploadWay {
  std::vector<UploadPart> parts;     // one, or those of a multipart upload in order
  bool multipart = false;            // the action's `href` then completes it
  std::vector<std::string> headers;  // "Name: value", for an upload in one piece
};
/// Splits an object of `size_bytes` as an upload action requires.
[[nodiscard]] Result<UploadWay> upload_way(const LfsAction& action, uint64_t size_bytes);

}  // namespace dspack::format
