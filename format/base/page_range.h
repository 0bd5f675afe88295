// Whole pages of memory that may be replaced by pages of files (ReadFile::map). Until then they are memory of their
// own. Threads: as a plain array. Errors: budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "format/base/result.h"

namespace dspack {

/// What files are mapped on: pieces of a file of this size and place, which the page cache may hold as one large page,
/// are then one page of the process, too, and walking through rows of a matrix costs as little as in huge pages.
inline constexpr uint64_t kMapGrid = 2ULL << 20;

class PageRange {
 public:
  /// At least so many bytes, from a multiple of kMapGrid on. Nothing is taken of the memory before it is written.
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
  std::span<std::byte> bytes_;  // of these
};

}  // namespace dspack
