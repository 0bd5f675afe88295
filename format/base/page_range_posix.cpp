#include <sys/mman.h>

#include <limits>
#include <string>

#include "format/base/page_buffer.h"
#include "format/base/page_range.h"
#include "format/base/size.h"

namespace dspack {

Result<PageRange> PageRange::make(uint64_t bytes) {
  const Error refusal{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of memory"};
  if (bytes > static_cast<uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()) - kPageBytes) return refusal;
  const uint64_t whole = round_up(std::max<uint64_t>(bytes, 1), kPageBytes);
  void* const memory =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return refusal;
  return PageRange({static_cast<std::byte*>(memory), whole});
}

PageRange::~PageRange() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace dspack
