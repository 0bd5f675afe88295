// A file system of so many bytes: what is written and not yet removed counts, holes do not. It wraps another one, whose
// files it takes to be empty at the beginning.
// Threads: thread-safe. Lifetime: borrows what it wraps. Errors: budget when it is full; those of what it wraps.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "format/file_system.h"

namespace dspack::test {

class SmallDisk final : public format::FileSystem {
 public:
  SmallDisk(format::FileSystem& real, uint64_t bytes) : real_(real), capacity_(bytes) {}

  /// Most that was occupied at once.
  [[nodiscard]] uint64_t most_bytes() const { return most_; }

  Result<std::unique_ptr<format::ReadFile>> open_read(const format::Path& path) override {
    return real_.open_read(path);
  }
  Result<std::unique_ptr<format::WriteFile>> open_write(const format::Path& path, format::OpenMode mode) override {
    TRY_ASSIGN(auto file, real_.open_write(path, mode));
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Written>& written = files_[path];
    if (!written) written = std::make_shared<Written>();
    if (mode == format::OpenMode::truncate) cut(*written, 0);
    return std::unique_ptr<format::WriteFile>(std::make_unique<File>(*this, std::move(file), written));
  }
  Result<std::optional<format::FileInfo>> stat(const format::Path& path) override {
    TRY_ASSIGN(auto info, real_.stat(path));
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(path);
    if (info && found != files_.end()) info->allocated_bytes = count(*found->second);
    return info;
  }
  Result<std::vector<std::string>> list(const format::Path& folder) override { return real_.list(folder); }
  Result<void> make_folders(const format::Path& folder) override { return real_.make_folders(folder); }
  Result<void> rename(const format::Path& from, const format::Path& to) override {
    TRY(real_.rename(from, to));
    const std::lock_guard lock(mutex_);
    forget(to);
    auto moved = files_.extract(from);
    if (moved.empty()) return {};
    moved.key() = to;
    files_.insert(std::move(moved));
    return {};
  }
  Result<void> remove_file(const format::Path& path) override {
    TRY(real_.remove_file(path));
    const std::lock_guard lock(mutex_);
    forget(path);
    return {};
  }
  Result<void> remove_empty_folder(const format::Path& path) override { return real_.remove_empty_folder(path); }
  Result<void> remove_tree(const format::Path& path) override {
    TRY(real_.remove_tree(path));
    const std::lock_guard lock(mutex_);
    forget(path);
    return {};
  }
  Result<void> sync_folder(const format::Path& folder) override { return real_.sync_folder(folder); }
  Result<uint64_t> free_bytes(const format::Path& /*path*/) override {
    const std::lock_guard lock(mutex_);
    return capacity_ - used_;
  }
  Result<std::unique_ptr<format::FileLock>> lock(const format::Path& path, format::LockKind kind) override {
    return real_.lock(path, kind);
  }

 private:
  using Written = std::vector<bool>;  // by byte

  class File final : public format::WriteFile {
   public:
    File(SmallDisk& disk, std::unique_ptr<format::WriteFile> real, std::shared_ptr<Written> written)
        : disk_(disk), real_(std::move(real)), written_(std::move(written)) {}
    Result<void> write(uint64_t offset, std::span<const std::byte> from) override {
      TRY(disk_.take(*written_, offset, from.size()));
      return real_->write(offset, from);
    }
    Result<void> resize(uint64_t bytes) override {
      TRY(real_->resize(bytes));
      const std::lock_guard lock(disk_.mutex_);
      disk_.cut(*written_, bytes);
      return {};
    }
    Result<void> sync() override { return real_->sync(); }

   private:
    SmallDisk& disk_;
    std::unique_ptr<format::WriteFile> real_;
    std::shared_ptr<Written> written_;
  };

  static uint64_t count(const Written& written) {
    return static_cast<uint64_t>(std::count(written.begin(), written.end(), true));
  }

  Result<void> take(Written& written, uint64_t offset, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (written.size() < offset + bytes) written.resize(offset + bytes);
    for (uint64_t at = offset; at < offset + bytes; ++at) {
      if (written[at]) continue;
      if (used_ == capacity_) return Error{ErrorKind::budget, "the test's disk is full"};
      written[at] = true;
      most_ = std::max(most_, ++used_);
    }
    return {};
  }
  void cut(Written& written, uint64_t bytes) {  // with the lock held
    const uint64_t before = count(written);
    if (written.size() > bytes) written.resize(bytes);
    used_ -= before - count(written);
  }
  void forget(const format::Path& path) {  // with the lock held
    std::erase_if(files_, [&](const auto& entry) {
      const auto [at, end] = std::mismatch(path.begin(), path.end(), entry.first.begin(), entry.first.end());
      if (at != path.end()) return false;
      cut(*entry.second, 0);
      return true;
    });
  }

  format::FileSystem& real_;
  const uint64_t capacity_;
  std::mutex mutex_;
  std::map<format::Path, std::shared_ptr<Written>> files_;  // guarded by mutex_
  uint64_t used_ = 0;                                       // guarded by mutex_
  uint64_t most_ = 0;
};

}  // namespace dspack::test
