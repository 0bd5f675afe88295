#include "kernels/supposed_gpu.h"

#include <string>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/host/queue_memory.h"

namespace dspack::kernels {
namespace {

class SupposedGpu final : public Device {
 public:
  SupposedGpu(uint64_t memory_bytes, const CudaOptions& options, std::unique_ptr<Device> host)
      : memory_bytes_(memory_bytes),
        precision_(options.precision),
        has_cublaslt_(options.cublaslt != kNoCublasLt),
        description_("a GPU of " + size_words(memory_bytes) + ", supposed"),
        host_(std::move(host)) {}

  [[nodiscard]] std::string_view description() const override { return description_; }
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate(uint64_t /*bytes*/) override { return not_there(); }
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate_host(uint64_t /*bytes*/) override { return not_there(); }
  /// Nothing is enqueued on it.
  [[nodiscard]] std::unique_ptr<Queue> make_queue() override { return host_->make_queue(); }
  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] uint32_t max_window_dim() const override { return cuda::device_max_window_dim(); }
  [[nodiscard]] DeviceMemory memory() const override {
    return {.total_bytes = memory_bytes_, .free_bytes = memory_bytes_};
  }
  [[nodiscard]] Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> /*experts*/) override {
    return not_there();
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape) const override {
    return cuda::device_experts_bytes(shape, precision_);
  }
  [[nodiscard]] uint64_t workspace_bytes(const WorkspaceShape& largest) const override {
    return cuda::device_workspace_bytes(largest, precision_, has_cublaslt_);
  }

 private:
  static Error not_there() { return {ErrorKind::unsupported, "this GPU is supposed; it has no memory to be used"}; }

  uint64_t memory_bytes_;
  Precision precision_;
  bool has_cublaslt_;
  std::string description_;
  std::unique_ptr<Device> host_;
};

}  // namespace

Result<std::unique_ptr<Device>> suppose_gpu(uint64_t memory_bytes, const CudaOptions& options) {
  TRY_ASSIGN(auto host, make_cpu_device({.threads = 1, .instruction_set = {}}));
  return std::unique_ptr<Device>(std::make_unique<SupposedGpu>(memory_bytes, options, std::move(host)));
}

}  // namespace dspack::kernels
