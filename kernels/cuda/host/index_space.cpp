#include "kernels/cuda/host/index_space.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda {

IndexSpace::~IndexSpace() {
  if (pinned_ != nullptr) gpu::release_pinned(pinned_);
}

void IndexSpace::clear(uint64_t bytes) {
  used_bytes_ = 0;
  if (bytes <= on_device_.size_bytes()) return;
  bytes = std::max(bytes, kIndexSpaceBytes);
  auto memory = gpu::allocate_pinned(bytes);
  if (!memory) return gpu::fail(memory.error());
  if (pinned_ != nullptr) gpu::release_pinned(pinned_);
  pinned_ = static_cast<std::byte*>(*memory);
  (void)on_device_.at_least(bytes);
}

const uint32_t* IndexSpace::keep(std::span<const uint32_t> numbers) {
  if (gpu::has_failed()) return nullptr;
  DSPACK_CHECK(has_room(numbers.size_bytes()), "more numbers than there is room for");
  constexpr uint64_t kAlignment = 16;  // bytes that a thread copies at once
  std::byte* const place = pinned_ + used_bytes_;
  std::memcpy(place, numbers.data(), numbers.size_bytes());
  used_bytes_ = round_up(used_bytes_ + numbers.size_bytes(), kAlignment);
  return reinterpret_cast<const uint32_t*>(place);
}

const uint32_t* IndexSpace::put(gpu::Stream& stream, std::span<const uint32_t> numbers) {
  std::byte* const to = on_device_.at_least(0) + used_bytes_;
  const uint32_t* const kept = keep(numbers);
  if (kept == nullptr) return nullptr;
  run_copy(stream, {.to = to, .from = kept, .bytes = numbers.size_bytes()});
  return reinterpret_cast<const uint32_t*>(to);
}

}  // namespace dspack::kernels::cuda
