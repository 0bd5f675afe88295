#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <string>

#include "format/base/page_range.h"
#include "format/base/size.h"

namespace dspack {

Result<PageRange> PageRange::make(uint64_t bytes) {
  const Error refusal{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of memory"};
  if (bytes > static_cast<uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()) - 2 * kMapGrid) return refusal;
  const uint64_t whole = round_up(std::max<uint64_t>(bytes, 1), kMapGrid);
  void* const memory =
      ::mmap(nullptr, whole + kMapGrid, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return refusal;
  const std::span<std::byte> all(static_cast<std::byte*>(memory), whole + kMapGrid);
  const auto address = reinterpret_cast<uint64_t>(memory);
  return PageRange(all, all.subspan(round_up(address, kMapGrid) - address, whole));
}

PageRange::~PageRange() {
  if (!all_.empty()) ::munmap(all_.data(), all_.size());
}

}  // namespace dspack
