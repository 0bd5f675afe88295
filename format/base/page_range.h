// Whole pages of anonymous memory that may be replaced by pages of files (ReadFile::map).
// Threads: as a plain array. Errors: budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "format/base/result.h"

namespace dspack {

/// Alignment of file mappings. The page cache may hold an aligned piece of a file as one large page; the process then
/// maps it as one page, too, and walking the rows of a matrix costs as little as with huge pages.
inline constexpr uint64_t kMapGrid = 2ULL << 20;

class PageRange {
 public:
  /// At least `bytes` bytes, aligned to kMapGrid. Memory is committed when it is written, not before.
  [[nodiscard]] static Result<PageRange> make(uint64_t bytes);
  PageRange(PageRange&& other) noexcept : all_(std::exchange(other.all_, {})), bytes_(other.bytes_) {}
  PageRange& operator=(PageRange&&) = delete;
  PageRange(const PageRange&) = delete;
  PageRange& operator=(const PageRange&) = delete;
  ~PageRange();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  PageRange(std::span<std::byte> all, std::span<std::byte> bytes) : all_(all), bytes_(bytes) {}
  std::span<std::byte> all_;
  std::span<std::byte> bytes_;  // the aligned part of all_
};

}  // namespace dspack
