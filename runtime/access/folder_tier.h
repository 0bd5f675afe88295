// The tier of a local folder.
// Threads: thread-safe. Lifetime: borrows repository and catalogue. Errors: not_found, io, corrupt (a file's length is
// not what the catalogue says), unsupported (a way of reading that the folder's disk lacks); each names the file.
#pragma once

#include <cstdint>

#include "format/open_files.h"
#include "format/source/repository.h"
#include "runtime/access/tier.h"

namespace dspack::runtime {

// Size of reads, and how many run in parallel: published engines keep a disk busy with 4 to 16 reads of a megabyte or
// more. With more, the first expert of a layer only waits for the last.
inline constexpr uint64_t kLocalBlockBytes = 4ULL << 20;
inline constexpr unsigned kLocalDepth = 8;
// Through the page cache an expert is one read: the system reads ahead by itself, and threads that read neighbouring
// pieces of one file block each other (half the speed, twice the processor time; docs/lab/2026-11-experts.md).
inline constexpr uint64_t kBufferedBlockBytes = 1ULL << 40;

/// Limit on open files: 512, or half of the system's limit if that is less than 1,024.
[[nodiscard]] unsigned default_open_files();

struct FolderTierOptions {
  format::ReadMode mode = format::ReadMode::buffered;
  bool is_mode_required = false;  // false: falls back to the page cache for a file that cannot be read in this mode
  bool verify = false;            // check experts' digests whenever they are read
  unsigned max_open = default_open_files();
};

class FolderTier final : public Tier {
 public:
  /// The repository must be a local folder.
  FolderTier(format::Repository& repository, const format::Checkpoint& checkpoint,
             const FolderTierOptions& options = {});

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override;
  [[nodiscard]] bool can_map() const override { return true; }
  [[nodiscard]] Result<void> map(uint32_t file, uint64_t offset, std::span<std::byte> over) override;
  [[nodiscard]] Medium medium_of(ExpertKey /*expert*/) const override { return Medium::disk; }
  [[nodiscard]] bool must_verify(ExpertKey /*expert*/) const override { return options_.verify; }
  [[nodiscard]] Result<void> keep(ExpertKey /*expert*/, std::span<const TensorBytes> /*tensors*/,
                                  const std::stop_token& /*stop*/) override {
    return {};
  }
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override {
    return is_buffered() ? kBufferedBlockBytes : kLocalBlockBytes;
  }
  [[nodiscard]] unsigned depth() const override { return kLocalDepth; }

 private:
  [[nodiscard]] Result<std::unique_ptr<format::ReadFile>> open(uint32_t file);
  [[nodiscard]] bool is_buffered() const {
    return options_.mode == format::ReadMode::buffered || options_.mode == format::ReadMode::once;
  }

  format::Repository& repository_;
  const format::Checkpoint& checkpoint_;
  FolderTierOptions options_;
  format::OpenFiles files_;
};

}  // namespace dspack::runtime
