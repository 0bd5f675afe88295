// A repository whose files are texts in memory, with a size of their own: what lies behind the text is never read.
// Threads: immutable, thread-safe.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "format/foreign_file.h"
#include "format/source/repository.h"

namespace dspack::fuzz {

struct MemoryFile {
  std::string text;         // the file's first bytes
  uint64_t size_bytes = 0;  // at least those of the text
};

class MemoryRepository final : public format::Repository {
 public:
  explicit MemoryRepository(std::map<std::string, MemoryFile> files) : files_(std::move(files)) {}

  format::RepositoryKind kind() const override { return format::RepositoryKind::local; }
  std::string description() const override { return "memory"; }
  std::string locate(std::string_view path) const override { return std::string(path); }
  Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<format::ListedFile>>();
  }
  Result<std::optional<format::DeclaredFile>> declared(std::string_view /*path*/, std::stop_token /*stop*/) override {
    return std::optional<format::DeclaredFile>();
  }

  Result<std::unique_ptr<format::ByteSource>> open(std::string_view path, std::stop_token /*stop*/) override {
    const auto found = files_.find(std::string(path));
    if (found == files_.end()) return Error{ErrorKind::not_found, std::string(path) + ": not there"};
    return std::unique_ptr<format::ByteSource>(std::make_unique<Source>(found->second));
  }
  Result<std::string> read_text(std::string_view path, uint64_t /*limit_bytes*/, std::stop_token /*stop*/) override {
    const auto found = files_.find(std::string(path));
    if (found == files_.end()) return Error{ErrorKind::not_found, std::string(path) + ": not there"};
    return found->second.text;
  }

 private:
  class Source final : public format::ByteSource {
   public:
    explicit Source(const MemoryFile& file) : file_(file) {}
    uint64_t size_bytes() const override { return file_.size_bytes; }
    const std::string& version() const override { return version_; }
    Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token /*stop*/) override {
      const std::span<const std::byte> bytes = format::as_bytes(file_.text);
      DSPACK_CHECK(offset + into.size() <= std::max(bytes.size(), format::kTellingBytes),
                   "more than the header, and what tells another format, is read");
      std::ranges::fill(into, std::byte{});
      const auto there = bytes.subspan(std::min<uint64_t>(offset, bytes.size()));
      std::copy_n(there.begin(), std::min(there.size(), into.size()), into.begin());
      return {};
    }
    Result<void> stream(ByteRange range, const format::ByteSink& sink, std::stop_token stop) override {
      std::vector<std::byte> bytes(range.size());
      TRY(read(range.begin, bytes, stop));
      return sink(bytes);
    }

   private:
    const MemoryFile& file_;
    std::string version_;
  };

  std::map<std::string, MemoryFile> files_;
};

}  // namespace dspack::fuzz
