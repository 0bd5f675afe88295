// A page-aligned buffer, as direct I/O requires.
// Threads: as a plain array. Errors: none; running out of memory ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

namespace dspack {

/// Alignment of memory, offsets and sizes that direct I/O needs on every disk in use; packed files are laid out on it.
inline constexpr uint64_t kPageBytes = 4096;

class PageBuffer {
 public:
  explicit PageBuffer(uint64_t bytes)
      : data_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kPageBytes}))), bytes_(bytes) {}

  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{kPageBytes}); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  uint64_t bytes_;
};

}  // namespace dspack
