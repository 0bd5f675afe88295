// The answers of the large file storage: what is stored, and how the rest is to be sent. Sizes, digests and links come
// from a stranger. No transport in it.
// Threads: plain values and pure functions. Errors: invalid, with the field. Source: the Git LFS batch API, as
// huggingface_hub (lfs.py) uses it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/digest.h"

namespace dspack::format {

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
