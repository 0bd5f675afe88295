#include "kernels/cuda/host/cuda_device.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>

#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/host/cuda_memory.h"
#include "kernels/cuda/host/cuda_queue.h"
#include "kernels/cuda/host/queue_memory.h"
#include "kernels/cuda/linear/linear_blas.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels {
namespace {

constexpr unsigned kOldestMajor = 8;  // BF16 on the tensor cores, asynchronous copies

/// cuBLASLt, or the reason for its absence; neither in precisions exact and split, which do not use it.
struct Blas {
  std::shared_ptr<cuda::BlasUse> use = {};
  std::string absence = {};
  /// For example ", cuBLASLt 13.1.0", with the number of refused shapes.
  [[nodiscard]] std::string words() const;
};

std::string Blas::words() const {
  if (use == nullptr) return absence.empty() ? "" : ", without cuBLASLt (" + absence + ")";
  std::string said = ", cuBLASLt " + use->library->version_words();
  if (use->has_no_memory) return said + " (not used: no GPU memory for its workspace)";
  const uint64_t refused = use->refused_shapes;
  return refused == 0 ? said : said + " (shapes of products that it refused: " + std::to_string(refused) + ")";
}

/// A note if the card's shared memory is too small for precision split; else empty.
std::string attention_words(Precision precision, const gpu::Properties& properties) {
  if (precision != Precision::split || cuda::fits_split(properties)) return "";
  return " (attention as in exact: " + std::to_string(properties.shared_bytes_per_block >> 10) +
         " KiB of shared memory a block are too little)";
}

/// Errors: the library was given explicitly and does not load.
Result<Blas> find_blas(const CudaOptions& options) {
  if (besides_attention(options.precision) == Precision::exact) return Blas{};
  if (options.cublaslt == kNoCublasLt) return Blas{.absence = "off"};
  auto library = gpu::cublaslt::open_library(options.cublaslt);
  if (library) return Blas{.use = std::make_shared<cuda::BlasUse>(std::move(*library))};
  if (!options.cublaslt.empty()) return library.error();
  return Blas{.absence = library.error().message};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(gpu::Properties properties, const CudaOptions& options, Blas blas)
      : properties_(std::move(properties)),
        precision_(options.precision),
        blas_(std::move(blas)),
        budget_(std::make_shared<cuda::Budget>()) {
    budget_->device = properties_.index;
    budget_->limit_bytes = options.vram_bytes;
  }

  [[nodiscard]] std::string_view description() const override;
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) override {
    TRY_ASSIGN(auto buffer, cuda::CudaBuffer::make(bytes, budget_));
    return std::unique_ptr<Buffer>(std::move(buffer));
  }
  [[nodiscard]] Result<std::unique_ptr<Buffer>> allocate_host(uint64_t bytes) override {
    return cuda::PinnedBuffer::make(bytes);
  }
  [[nodiscard]] std::unique_ptr<Queue> make_queue() override {
    return cuda::make_cuda_queue(properties_, precision_, blas_.use);
  }
  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] uint32_t max_window_dim() const override { return cuda::device_max_window_dim(); }
  [[nodiscard]] DeviceMemory memory() const override {
    const uint64_t free = gpu::free_bytes(properties_.index);
    if (budget_->limit_bytes == 0) return {.total_bytes = properties_.total_bytes, .free_bytes = free};
    const uint64_t left = budget_->limit_bytes - std::min(budget_->limit_bytes, budget_->used_bytes.load());
    return {.total_bytes = properties_.total_bytes, .free_bytes = std::min(free, left)};
  }
  [[nodiscard]] Result<std::unique_ptr<ExpertTable>> make_expert_table(
      std::span<const ExpertMatrices> experts) override {
    return cuda::CudaExpertTable::make(experts, budget_);
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const ExpertsShape& shape) const override {
    return cuda::device_experts_bytes(shape, precision_);
  }
  [[nodiscard]] uint64_t workspace_bytes(const WorkspaceShape& largest) const override {
    return cuda::device_workspace_bytes(largest, precision_, blas_.use != nullptr);
  }

 private:
  gpu::Properties properties_;
  Precision precision_;
  Blas blas_;
  std::shared_ptr<cuda::Budget> budget_;
  mutable std::mutex mutex_;                      // guards descriptions_
  mutable std::deque<std::string> descriptions_;  // all ever returned, since callers keep views; refusals are rare
};

std::string_view CudaDevice::description() const {
  std::string now = "cuda " + properties_.name + ", sm_" + std::to_string(properties_.major) +
                    std::to_string(properties_.minor) + ", " + std::string(to_string(precision_)) +
                    attention_words(precision_, properties_) + blas_.words();
  const std::lock_guard lock(mutex_);
  if (descriptions_.empty() || descriptions_.back() != now) descriptions_.push_back(std::move(now));
  return descriptions_.back();
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const CudaOptions& options) {
  TRY_ASSIGN(gpu::Properties properties, gpu::open_device(options.index));
  if (properties.major < kOldestMajor) {
    return Error{ErrorKind::unsupported, properties.name + " has compute capability " +
                                             std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                                             "; the kernels need 8.0 or later"};
  }
  const bool has_code = cuda::has_code_for_device();
  if (const auto failed = gpu::failure()) return *failed;
  if (!has_code) {
    const std::string number = std::to_string(properties.major) + std::to_string(properties.minor);
    return Error{ErrorKind::unsupported, "the CUDA library has no code for " + properties.name + " (sm_" + number +
                                             "), only for " + std::string(gpu::architectures()) +
                                             "; build it with -D DSPACK_CUDA_ARCHITECTURES=" + number +
                                             " (docs/cuda.md)"};
  }
  TRY_ASSIGN(Blas blas, find_blas(options));
  if (blas.use != nullptr) {
    const auto& library = *blas.use->library;
    cuda::warm_linear_blas(library, options.precision, properties);
    if (const auto failed = gpu::failure()) return *failed;
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(std::move(properties), options, std::move(blas)));
}

}  // namespace dspack::kernels
