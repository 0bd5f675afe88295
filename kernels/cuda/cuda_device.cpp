#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/queue_workspace.h"

namespace dspack::kernels {
namespace {

constexpr unsigned kOldestMajor = 8;  // BF16 on the tensor cores, asynchronous copies

class CudaDevice final : public Device {
 public:
  CudaDevice(gpu::Properties properties, const CudaOptions& options)
      : properties_(std::move(properties)), precision_(options.precision), budget_(std::make_shared<cuda::Budget>()) {
    budget_->limit_bytes = options.vram_bytes;
    description_ = "cuda " + properties_.name + ", sm_" + std::to_string(properties_.major) +
                   std::to_string(properties_.minor) + ", " + std::string(to_string(precision_));
  }

  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) override {
    TRY_ASSIGN(auto buffer, cuda::CudaBuffer::make(bytes, budget_));
    return std::unique_ptr<Buffer>(std::move(buffer));
  }
  [[nodiscard]] std::unique_ptr<Queue> make_queue() override { return cuda::make_cuda_queue(properties_, precision_); }
  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] DeviceMemory memory() const override {
    const uint64_t free = gpu::free_bytes();
    if (budget_->limit_bytes == 0) return {.total_bytes = properties_.total_bytes, .free_bytes = free};
    const uint64_t left = budget_->limit_bytes - std::min(budget_->limit_bytes, budget_->used_bytes.load());
    return {.total_bytes = properties_.total_bytes, .free_bytes = std::min(free, left)};
  }
  [[nodiscard]] Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> experts) override {
    return cuda::CudaExpertTable::make(experts, budget_);
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape) const override {
    return cuda::experts_scratch_bytes(shape);
  }
  [[nodiscard]] uint64_t workspace_bytes(const WorkspaceShape& largest) const override {
    return cuda::queue_workspace_bytes(largest);
  }

 private:
  gpu::Properties properties_;
  Precision precision_;
  std::shared_ptr<cuda::Budget> budget_;
  std::string description_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options) {
  TRY_ASSIGN(gpu::Properties properties, gpu::open_device(options.index));
  if (properties.major < kOldestMajor) {
    return Error{ErrorKind::unsupported, properties.name + " has compute capability " +
                                             std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                                             "; the kernels need 8.0 or later"};
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(properties), options));
}

}  // namespace dspack::kernels
