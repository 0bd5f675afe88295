// Whole pages of memory that may be replaced by pages of files (ReadFile::map). Until then they are memory of their
// own. Threads: as a plain array. Errors: budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "format/base/result.h"

namespace dspack {

class PageRange {
 public:
  /// At least so many bytes. Nothing is taken of the memory before it is written.
  [[nodiscard]] static Result<PageRange> make(uint64_t bytes);
  PageRange(PageRange&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  PageRange& operator=(PageRange&&) = delete;
  PageRange(const PageRange&) = delete;
  PageRange& operator=(const PageRange&) = delete;
  ~PageRange();

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit PageRange(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace dspack
