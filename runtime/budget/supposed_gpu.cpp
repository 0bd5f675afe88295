#include "runtime/budget/supposed_gpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {
namespace {

class SupposedGpu final : public kernels::Device {
 public:
  SupposedGpu(uint64_t memory_bytes, std::unique_ptr<kernels::Device> host)
      : memory_bytes_(memory_bytes),
        description_(fmt::format("a GPU of {}, supposed", size_words(memory_bytes))),
        host_(std::move(host)) {}

  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate(uint64_t /*bytes*/) override { return not_there(); }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate_host(uint64_t /*bytes*/) override {
    return not_there();
  }
  /// Nothing is enqueued on it.
  [[nodiscard]] std::unique_ptr<kernels::Queue> make_queue() override { return host_->make_queue(); }
  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] kernels::DeviceMemory memory() const override {
    return {.total_bytes = memory_bytes_, .free_bytes = memory_bytes_};
  }
  [[nodiscard]] Result<std::unique_ptr<kernels::ExpertTable>> make_expert_table(
      std::span<const kernels::ExpertMatrices> /*experts*/) override {
    return not_there();
  }
  /// Inner values and parts of every token's experts, in FP32, and the place of each; run_expert_parts alone needs only
  /// the inner values.
  [[nodiscard]] uint64_t experts_scratch_bytes(const kernels::ExpertsShape& shape) const override {
    constexpr uint64_t kPlaceBytes = 16;
    const uint64_t assignments = uint64_t{shape.rows} * shape.top_k;
    if (shape.parts_only) return assignments * shape.inner * sizeof(float);
    return assignments * ((uint64_t{shape.inner} + shape.hidden) * sizeof(float) + kPlaceBytes);
  }
  /// Partial results of attention over parts of the cache, in FP32: of the rows that fit at once, at least one.
  [[nodiscard]] uint64_t workspace_bytes(const kernels::WorkspaceShape& largest) const override {
    constexpr uint64_t kPartPositions = 32;
    constexpr uint64_t kMaxParts = 32;
    constexpr uint64_t kRoomForParts = 128ULL << 20;
    constexpr uint64_t kOthers = 1ULL << 20;
    const uint64_t parts = std::clamp<uint64_t>(ceil_div(largest.positions, kPartPositions), 1, kMaxParts);
    const uint64_t row = uint64_t{largest.heads} * parts * (uint64_t{largest.latent_dim} + 2) * sizeof(float);
    return std::max(row, std::min(row * largest.rows, kRoomForParts)) + kOthers;
  }

 private:
  static Error not_there() { return {ErrorKind::unsupported, "this GPU is supposed; it has no memory to be used"}; }

  uint64_t memory_bytes_;
  std::string description_;
  std::unique_ptr<kernels::Device> host_;
};

}  // namespace

Result<std::unique_ptr<kernels::Device>> suppose_gpu(uint64_t memory_bytes) {
  TRY_ASSIGN(auto host, kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  return std::unique_ptr<kernels::Device>(std::make_unique<SupposedGpu>(memory_bytes, std::move(host)));
}

}  // namespace dspack::runtime
