// A file system that fails on demand: at the n-th operation and ever after (as if the process had been killed there),
// for a while, or for want of space. It wraps the real one, or CrashFileSystem to lose power as well.
// Threads: thread-safe once it is set up. Lifetime: borrows what it wraps.
#pragma once

#include <atomic>
#include <limits>

#include "format/file_system.h"

namespace dspack::test {

/// Which operations fail, and how. They are numbered from 0; reading counts too.
struct DiskFault {
  uint64_t from = std::numeric_limits<uint64_t>::max();
  uint64_t until = std::numeric_limits<uint64_t>::max();  // the first that succeeds again
  ErrorKind kind = ErrorKind::io;
  bool growing_only = false;  // only those that may need space: creating, writing, setting a size
};

class FaultyFileSystem final : public format::FileSystem {
 public:
  explicit FaultyFileSystem(format::FileSystem& real, const DiskFault& fault = {}) : real_(real), fault_(fault) {}

  /// Operations from this number on fail.
  void fail_from(uint64_t operation) { fail_with({.from = operation}); }
  void fail_with(const DiskFault& fault) { fault_ = fault; }
  /// Every open_read_as with this mode is refused as unsupported.
  void lack(format::ReadMode mode) { lacks_ = mode; }
  /// No symbolic link can be made.
  void lack_links() { lacks_links_ = true; }
  void set_free_bytes(uint64_t bytes) { free_bytes_ = bytes; }
  void set_free_files(uint64_t files) { free_files_ = files; }
  [[nodiscard]] uint64_t operations() const { return operations_; }

  Result<std::unique_ptr<format::ReadFile>> open_read(const format::Path& path) override {
    TRY(step());
    TRY_ASSIGN(auto file, real_.open_read(path));
    return std::unique_ptr<format::ReadFile>(std::make_unique<FaultyReadFile>(*this, std::move(file)));
  }
  Result<std::unique_ptr<format::ReadFile>> open_read_as(const format::Path& path, format::ReadMode mode) override {
    TRY(step());
    if (mode == lacks_) return Error{ErrorKind::unsupported, path.string() + ": the test's disk lacks this"};
    TRY_ASSIGN(auto file, real_.open_read_as(path, mode));
    return std::unique_ptr<format::ReadFile>(std::make_unique<FaultyReadFile>(*this, std::move(file)));
  }
  Result<std::unique_ptr<format::WriteFile>> open_write(const format::Path& path, format::OpenMode mode) override {
    TRY(step(Effect::grows));
    TRY_ASSIGN(auto file, real_.open_write(path, mode));
    return std::unique_ptr<format::WriteFile>(std::make_unique<FaultyWriteFile>(*this, std::move(file)));
  }
  Result<std::optional<format::FileInfo>> stat(const format::Path& path) override {
    TRY(step());
    return real_.stat(path);
  }
  Result<std::vector<std::string>> list(const format::Path& folder) override {
    TRY(step());
    return real_.list(folder);
  }
  Result<void> make_folders(const format::Path& folder) override {
    TRY(step(Effect::grows));
    return real_.make_folders(folder);
  }
  Result<void> rename(const format::Path& from, const format::Path& to) override {
    TRY(step());
    return real_.rename(from, to);
  }
  Result<void> make_link(const format::Path& target, const format::Path& link) override {
    TRY(step(Effect::grows));
    return lacks_links_ ? FileSystem::make_link(target, link) : real_.make_link(target, link);
  }
  Result<std::optional<format::Path>> read_link(const format::Path& path) override {
    TRY(step());
    return real_.read_link(path);
  }
  Result<void> remove_file(const format::Path& path) override {
    TRY(step());
    return real_.remove_file(path);
  }
  Result<void> remove_empty_folder(const format::Path& path) override {
    TRY(step());
    return real_.remove_empty_folder(path);
  }
  Result<void> remove_tree(const format::Path& path) override {
    TRY(step());
    return real_.remove_tree(path);
  }
  Result<void> sync_folder(const format::Path& folder) override {
    TRY(step());
    return real_.sync_folder(folder);
  }
  Result<uint64_t> free_bytes(const format::Path& path) override {
    TRY(step());
    return free_bytes_ ? *free_bytes_ : real_.free_bytes(path);
  }
  Result<std::optional<uint64_t>> free_files(const format::Path& path) override {
    return free_files_ ? Result<std::optional<uint64_t>>(free_files_) : real_.free_files(path);
  }
  Result<std::unique_ptr<format::FileLock>> lock(const format::Path& path, format::LockKind kind) override {
    TRY(step(Effect::grows));
    return real_.lock(path, kind);
  }

 private:
  class FaultyReadFile final : public format::ReadFile {
   public:
    FaultyReadFile(FaultyFileSystem& files, std::unique_ptr<format::ReadFile> real)
        : files_(files), real_(std::move(real)) {}
    uint64_t size_bytes() const override { return real_->size_bytes(); }
    Result<void> read(uint64_t offset, std::span<std::byte> into) const override {
      TRY(files_.step());
      return real_->read(offset, into);
    }
    Result<void> map(uint64_t offset, std::span<std::byte> over) const override {
      TRY(files_.step());
      return real_->map(offset, over);
    }
    std::optional<uint64_t> cached_bytes(ByteRange range) const override { return real_->cached_bytes(range); }

   private:
    FaultyFileSystem& files_;
    std::unique_ptr<format::ReadFile> real_;
  };

  class FaultyWriteFile final : public format::WriteFile {
   public:
    FaultyWriteFile(FaultyFileSystem& files, std::unique_ptr<format::WriteFile> real)
        : files_(files), real_(std::move(real)) {}
    Result<void> write(uint64_t offset, std::span<const std::byte> from) override {
      const auto allowed = files_.step(Effect::grows);
      // The operation that fails has done half of its work, as a real one may.
      if (!allowed) TRY(real_->write(offset, from.first(from.size() / 2)));
      if (!allowed) return allowed;
      return real_->write(offset, from);
    }
    Result<void> resize(uint64_t bytes) override {
      TRY(files_.step(Effect::grows));
      return real_->resize(bytes);
    }
    Result<void> sync() override {
      TRY(files_.step());
      return real_->sync();
    }

   private:
    FaultyFileSystem& files_;
    std::unique_ptr<format::WriteFile> real_;
  };

  enum class Effect { keeps, grows };

  Result<void> step(Effect effect = Effect::keeps) {
    const uint64_t operation = operations_++;
    if (operation < fault_.from || operation >= fault_.until) return {};
    if (fault_.growing_only && effect == Effect::keeps) return {};
    return Error{fault_.kind, "the test's disk has failed"};
  }

  format::FileSystem& real_;
  std::atomic<uint64_t> operations_{0};
  DiskFault fault_;
  std::optional<uint64_t> free_bytes_;
  std::optional<uint64_t> free_files_;
  std::optional<format::ReadMode> lacks_;
  bool lacks_links_ = false;
};

}  // namespace dspack::test
