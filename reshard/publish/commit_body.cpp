#include "reshard/publish/commit_body.h"

#include <fmt/format.h>

#include "format/http/content_digest.h"
#include "format/json.h"

namespace dspack::reshard {
namespace {

using format::Json;

// What huggingface_hub allows itself in a commit. Files that the Hub does not want in its large file storage are of a
// few megabytes at most.
constexpr uint64_t kMaxRegularBytes = 100ULL << 20;

std::string line(const char* key, Json value) {
  return format::canonical_json(Json{{"key", key}, {"value", std::move(value)}}) + "\n";
}

}  // namespace

Result<std::string> commit_body(const CommitHead& head, const PlannedCommit& commit, const SealedFolder& sealed,
                                format::FileSystem& files) {
  Json header = {{"summary", head.summary}, {"description", ""}};
  if (!head.parent.empty()) header["parentCommit"] = head.parent;
  std::string body = line("header", std::move(header));
  uint64_t regular_bytes = 0;
  for (const PendingFile& pending : commit.files) {
    const LocalFile& file = sealed.files[pending.file];
    if (pending.large) {
      body += line("lfsFile",
                   {{"path", file.path}, {"algo", "sha256"}, {"oid", to_hex(file.sha256)}, {"size", file.size_bytes}});
      continue;
    }
    regular_bytes += file.size_bytes;
    if (regular_bytes > kMaxRegularBytes) {
      return Error{
          ErrorKind::unsupported,
          fmt::format("{}: the Hub wants {} bytes and more as regular files in one commit, {} is the limit; add "
                      "a line for them to the repository's .gitattributes (\"PATH filter=lfs diff=lfs merge=lfs "
                      "-text\")",
                      file.path, regular_bytes, kMaxRegularBytes)};
    }
    TRY_ASSIGN(const std::string content, format::read_text(files, sealed.folder / file.path, file.size_bytes));
    if (content.size() != file.size_bytes || format::sha256(content) != file.sha256)
      return Error{ErrorKind::corrupt, fmt::format("{}: changed while it was published", file.path)};
    // Put together by hand: the content is most of the text, and is not to be copied through a JSON value.
    body += R"({"key":"file","value":{"content":")";
    body += format::base64(format::as_bytes(content));
    body += fmt::format(R"(","encoding":"base64","path":{}}}}}{})", format::canonical_json(file.path), "\n");
  }
  for (const std::string& path : commit.deleted)
    body += line("deletedFile", {{"path", path}});
  return body;
}

}  // namespace dspack::reshard
