// What the Hub's API and its large file storage answer to calls that write, read strictly: ids, names, sizes, digests
// and links come from a stranger. No transport in it.
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

/// What to do about an object of the large file storage.
struct LfsAction {
  std::string href;
  std::vector<std::pair<std::string, std::string>> header;  // names and values as sent
};
struct LfsObject {
  Digest oid;
  std::optional<LfsAction> upload;  // nullopt: it is stored already
  std::optional<LfsAction> verify;
  std::string refusal;  // the server's words; empty: none
};
/// One answer for each object, in their order. An object without an answer: invalid.
[[nodiscard]] Result<std::vector<LfsObject>> read_batch(std::string_view text, const std::vector<Digest>& oids);

/// Whether an object's bytes may go where the answer says: over https where the Hub is asked over https, and the
/// question whether they have come to the Hub itself, which alone knows. Errors: invalid.
[[nodiscard]] Result<void> check_places(const LfsObject& object, const std::string& endpoint);

/// A part of an object and where it goes.
struct UploadPart {
  std::string url;
  ByteRange range;
};
struct UploadWay {
  std::vector<UploadPart> parts;     // one, or those of a multipart upload in their order
  bool multipart = false;            // then `href` of the action completes it
  std::vector<std::string> headers;  // "Name: value", of an upload in one piece
};
/// Cuts an object of `size_bytes` as an upload action asks for it.
[[nodiscard]] Result<UploadWay> upload_way(const LfsAction& action, uint64_t size_bytes);

}  // namespace dspack::format
