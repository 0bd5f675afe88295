#include "kernels/cpu/cpu_device.h"

#include <sys/mman.h>
#include <cstdlib>
#include <limits>
#include <string>

#include "format/base/check.h"
#include "format/base/page_range.h"
#include "kernels/cpu/cpu_queue.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/workers.h"

namespace dspack::kernels {
namespace {

constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kPage = 4096;         // direct I/O into a buffer needs page alignment
constexpr uint64_t kLarge = 16 * kPage;  // from this size on a page is less than a tenth of the buffer

// Weights are streamed: with 4 KiB pages, page-table walks cost a fifth of the speed (measured 2026-11).
constexpr uint64_t kHugePage = 2ULL << 20;
constexpr uint64_t kWorthHugePages = 4 * kHugePage;

uint64_t alignment_for(uint64_t bytes) {
  if (bytes >= kWorthHugePages) return kHugePage;
  return bytes >= kLarge ? kPage : kCacheLine;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }  // NOLINT: counterpart of posix_memalign
};

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(std::byte* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
  [[nodiscard]] uint64_t size_bytes() const override { return bytes_; }
  [[nodiscard]] std::span<std::byte> host() override { return {memory_.get(), bytes_}; }

 private:
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t bytes_;
};

class MappedMemory final : public Buffer {
 public:
  explicit MappedMemory(PageRange pages) : pages_(std::move(pages)) {}
  [[nodiscard]] uint64_t size_bytes() const override { return pages_.bytes().size(); }
  [[nodiscard]] std::span<std::byte> host() override { return pages_.bytes(); }

 private:
  PageRange pages_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(const CpuOps& ops, unsigned threads, Precision precision)
      : ops_(ops), precision_(precision), workers_(threads) {
    const unsigned count = workers_.threads();
    description_ =
        "cpu " + std::string(ops.name) + ", " + std::to_string(count) + (count == 1 ? " thread" : " threads");
  }

  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) override;
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate_host(uint64_t bytes) override { return allocate(bytes); }
  [[nodiscard]] std::unique_ptr<Queue> make_queue() override { return make_cpu_queue(ops_, workers_, precision_); }
  [[nodiscard]] bool is_host() const override { return true; }
  [[nodiscard]] uint32_t max_window_dim() const override { return std::numeric_limits<uint32_t>::max(); }
  [[nodiscard]] DeviceMemory memory() const override { return {}; }
  [[nodiscard]] Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> experts) override {
    return std::unique_ptr<ExpertTable>(std::make_unique<CpuExpertTable>(experts));
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape) const override {
    return grouped_experts_scratch_bytes(shape);
  }

 private:
  const CpuOps& ops_;
  Precision precision_;
  Workers workers_;
  std::string description_;
};

Result<std::unique_ptr<Buffer>> CpuDevice::allocate(uint64_t bytes) {
  const Error refusal{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) + " bytes of memory"};
  if (bytes > static_cast<uint64_t>(std::numeric_limits<std::ptrdiff_t>::max())) return refusal;
  void* memory = nullptr;
  const uint64_t wanted = bytes == 0 ? 1 : bytes;  // posix_memalign may return null for 0 bytes
  if (posix_memalign(&memory, alignment_for(bytes), wanted) != 0) return refusal;
  // Only a hint: without it everything works, but slower. Whole huge pages only, so that none is partly unused.
  if (bytes >= kWorthHugePages) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(static_cast<std::byte*>(memory), bytes));
}

std::string known_names() {
  std::string names;
  for (const InstructionSet& set : instruction_sets()) {
    names += (names.empty() ? "" : ", ") + std::string(set.ops->name);
  }
  return names;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(const CpuOptions& options) {
  TRY_ASSIGN(const CpuOps* ops, select_cpu_ops(detect_cpu_features(), options.instruction_set));
  if (options.precision == Precision::fp8 || options.precision == Precision::split) {
    return Error{ErrorKind::unsupported, "precision " + std::string(to_string(options.precision)) +
                                             " is for GPUs; a CPU computes exact, bf16, int8 or amx"};
  }
  if (options.precision == Precision::amx && ops->tiles == nullptr) {
    return Error{
        ErrorKind::unsupported,
        "precision amx needs AMX tiles, which " +
            std::string(options.instruction_set.empty() ? "this processor lacks" : "the instruction set lacks") +
            "; bf16 is nearest to it"};
  }
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(*ops, options.threads, options.precision));
}

Result<std::unique_ptr<Buffer>> make_mapped_memory(uint64_t bytes) {
  TRY_ASSIGN(PageRange pages, PageRange::make(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<MappedMemory>(std::move(pages)));
}

std::span<std::byte> host_bytes(Buffer& buffer) {
  DSPACK_CHECK(!buffer.host().empty() || buffer.size_bytes() == 0, "a buffer that the host cannot address");
  return buffer.host();
}

const CpuOps& widest_ops() {
  static const CpuOps& widest = *select_cpu_ops(detect_cpu_features(), "").value();
  return widest;
}

Result<const CpuOps*> select_cpu_ops(CpuFeatures have, std::string_view forced) {
  for (const InstructionSet& set : instruction_sets()) {
    if (!forced.empty() && set.ops->name != forced) continue;
    if (set.runs_on(have)) return set.ops;
    if (forced.empty()) continue;
    return Error{ErrorKind::unsupported, "this processor lacks the instruction set " + std::string(forced)};
  }
  return Error{ErrorKind::unsupported,
               "no instruction set is called '" + std::string(forced) + "'; this program has " + known_names()};
}

}  // namespace dspack::kernels
