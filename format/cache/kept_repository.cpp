#include "format/cache/kept_repository.h"

#include <fmt/format.h>

#include <cstring>

#include "format/base/size.h"
#include "format/cache/cache_folder.h"
#include "format/json.h"

namespace dspack::format {
namespace {

/// A shard whose first bytes are known.
class KeptHead final : public ByteSource {
 public:
  KeptHead(uint64_t size_bytes, std::string version, std::string head)
      : size_bytes_(size_bytes), version_(std::move(version)), head_(std::move(head)) {}

  uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& version() const override { return version_; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) override {
    TRY(check({offset, offset + into.size()}));
    if (!into.empty()) std::memcpy(into.data(), head_.data() + offset, into.size());
    return {};
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token /*stop*/) override {
    TRY(check(range));
    return sink(as_bytes(std::string_view(head_).substr(range.begin, range.size())));
  }

 private:
  Result<void> check(ByteRange range) const {
    if (range.begin <= range.end && range.end <= head_.size()) return {};
    return Error{ErrorKind::not_found, "only the header of this file is kept"};
  }

  uint64_t size_bytes_;
  std::string version_;
  std::string head_;
};

Error not_kept(const std::string& place) {
  return {ErrorKind::not_found, place + ": is not kept"};
}

}  // namespace

Result<std::string> read_kept_text(FileSystem& files, const Path& path, const KeptText& kept) {
  TRY_ASSIGN(std::string text, read_text(files, path, kTokenizerDocument.bytes));  // the largest kind that is kept
  if (text.size() != kept.size_bytes || sha256(text) != kept.sha256)
    return Error{ErrorKind::corrupt, path.string() + ": has other bytes than were fetched"};
  return text;
}

Result<std::unique_ptr<ByteSource>> KeptRepository::open(std::string_view path, std::stop_token /*stop*/) {
  if (const auto header = state_.headers.find(path); header != state_.headers.end()) {
    TRY_ASSIGN(std::string head, read_kept_text(files_, cache_header_path(root_, path), header->second.text));
    return std::unique_ptr<ByteSource>(
        std::make_unique<KeptHead>(header->second.file_bytes, header->second.version, std::move(head)));
  }
  const auto kept = state_.texts.find(path);
  if (kept == state_.texts.end()) return not_kept(locate(path));
  TRY_ASSIGN(std::string text, read_kept_text(files_, cache_text_path(root_, path), kept->second));
  const uint64_t bytes = text.size();
  return std::unique_ptr<ByteSource>(std::make_unique<KeptHead>(bytes, "", std::move(text)));
}

Result<std::string> KeptRepository::read_text(std::string_view path, uint64_t limit_bytes, std::stop_token /*stop*/) {
  const auto kept = state_.texts.find(path);
  if (kept == state_.texts.end()) return not_kept(locate(path));
  if (kept->second.size_bytes > limit_bytes)
    return Error{ErrorKind::budget, fmt::format("{}: larger than {}", locate(path), size_words(limit_bytes))};
  return read_kept_text(files_, cache_text_path(root_, path), kept->second);
}

}  // namespace dspack::format
