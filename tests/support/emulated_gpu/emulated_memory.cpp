#include "tests/support/emulated_gpu/emulated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::gpu {
namespace {

constexpr uint8_t kPoison = 0xff;  // NaN in every type that kernels read
constexpr uint64_t kAlignment = 256;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kRangeBytes = 16ULL << 30;  // of addresses; memory is taken where it is touched

// What a handler of signals may look at.
constexpr size_t kMaxRanges = 16;
std::array<std::byte*, kMaxRanges> range_begins{};

void end_with_line(int signal, siginfo_t* info, void* /*context*/) {
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  const bool is_in_range = std::ranges::any_of(range_begins, [&](const std::byte* begin) {
    return begin != nullptr && at >= begin && at < begin + kRangeBytes;
  });
  constexpr char kLine[] = "emulated GPU: work of one device, or the host, touches memory of another device\n";
  if (is_in_range) {
    (void)!write(STDERR_FILENO, kLine, sizeof kLine - 1);
    std::abort();
  }
  std::signal(signal, SIG_DFL);  // it happens again
}

void handle_faults() {
  struct sigaction action = {};
  action.sa_sigaction = end_with_line;
  action.sa_flags = SA_SIGINFO;
  DSPACK_CHECK(sigaction(SIGSEGV, &action, nullptr) == 0, "no handler of faults");
}

}  // namespace

EmulatedMemory::Range* EmulatedMemory::range_of(unsigned device) {
  Range& range = ranges_[device];
  if (range.begin != nullptr) return &range;
  void* const begin = mmap(nullptr, kRangeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED || device >= kMaxRanges) return nullptr;
  range.begin = range_begins[device] = static_cast<std::byte*>(begin);
  handle_faults();
  return &range;
}

// The first gap that is large enough.
std::byte* EmulatedMemory::place_in(const Range& range, uint64_t bytes) const {
  std::byte* place = range.begin;
  for (auto it = allocations_.lower_bound(range.begin);
       it != allocations_.end() && it->first < range.begin + kRangeBytes && it->first < place + bytes; ++it)
    place = range.begin + round_up(static_cast<uint64_t>(it->first - range.begin) + it->second.bytes, kPage);
  return place + bytes <= range.begin + kRangeBytes ? place : nullptr;
}

void* EmulatedMemory::allocate(unsigned device, uint64_t bytes) {
  const uint64_t taken = std::max<uint64_t>(bytes, 1);
  void* memory = nullptr;
  if (are_apart_) {
    const Range* const range = range_of(device);
    if (range == nullptr) return nullptr;
    memory = place_in(*range, taken);
    if (memory == nullptr) return nullptr;
    show(device);
  } else if (posix_memalign(&memory, kAlignment, taken) != 0) {  // to the byte, where aligned_alloc rounds up
    return nullptr;
  }
  std::memset(memory, kPoison, taken);
  allocations_.emplace(static_cast<std::byte*>(memory),
                       Allocation{.device = device, .bytes = are_apart_ ? taken : bytes, .is_in_range = are_apart_});
  return memory;
}

void EmulatedMemory::release(void* memory) {
  const auto found = allocations_.find(static_cast<std::byte*>(memory));
  DSPACK_CHECK(found != allocations_.end(), "memory that was not allocated");
  if (found->second.is_in_range) {
    madvise(memory, round_up(found->second.bytes, kPage), MADV_DONTNEED);
  } else {
    std::free(memory);  // NOLINT: counterpart of posix_memalign
  }
  allocations_.erase(found);
}

void EmulatedMemory::show(unsigned device) {
  for (auto& [number, range] : ranges_) {
    const bool shall_show = number == device;
    if (range.begin == nullptr || range.is_shown == shall_show) continue;
    range.is_shown = shall_show;
    const int access = shall_show ? PROT_READ | PROT_WRITE : PROT_NONE;
    DSPACK_CHECK(mprotect(range.begin, kRangeBytes, access) == 0, "memory of a device cannot be shown or hidden");
  }
}

uint64_t EmulatedMemory::allocated_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [memory, allocation] : allocations_)
    bytes += allocation.bytes;
  return bytes;
}

uint64_t EmulatedMemory::allocated_bytes(unsigned device) const {
  uint64_t bytes = 0;
  for (const auto& [memory, allocation] : allocations_)
    bytes += allocation.device == device ? allocation.bytes : 0;
  return bytes;
}

EmulatedMemory::Allocations::const_iterator EmulatedMemory::find(const void* place) const {
  auto found = allocations_.upper_bound(static_cast<const std::byte*>(place));
  if (found == allocations_.begin()) return allocations_.end();
  --found;
  return static_cast<const std::byte*>(place) < found->first + found->second.bytes ? found : allocations_.end();
}

std::optional<unsigned> EmulatedMemory::owner(const void* place) const {
  const auto found = find(place);
  return found == allocations_.end() ? std::nullopt : std::optional(found->second.device);
}

bool EmulatedMemory::holds(const void* place, uint64_t bytes) const {
  const auto found = find(place);
  return found != allocations_.end() &&
         static_cast<const std::byte*>(place) + bytes <= found->first + found->second.bytes;
}

}  // namespace dspack::gpu
