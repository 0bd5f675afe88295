// Chooses the devices that run a model: a GPU if one is requested, or if no device is requested and a GPU has room for
// what every token needs; else the CPU. Of several GPUs the first runs the model, and the others compute routed
// experts.
// Threads: single-thread. Lifetime: owns devices and queue. Errors: those of load_cuda_device if a GPU was requested;
// unsupported (an instruction set).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/host/cuda_library.h"
#include "kernels/load_cuda.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/vram_plan.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

enum class DeviceKind { automatic, cpu, cuda };

/// The precision if none is named (--precision auto): a fixed table, so that neither a measurement nor an instruction
/// set decides what an answer is. bf16 on a CPU, where it rounds the inputs of FP8 and BF16 weights alone and its bits
/// depend on nothing but the row; exact on a GPU, whose bf16 sums long prompts in an order that company may change.
/// docs/validation.md has both with their errors.
[[nodiscard]] constexpr kernels::Precision usual_precision(bool is_gpu) {
  return is_gpu ? kernels::Precision::exact : kernels::Precision::bf16;
}

/// How far an input of a product may be rounded, for people.
[[nodiscard]] constexpr std::string_view rounding_words(kernels::Precision precision) {
  switch (precision) {
    case kernels::Precision::exact:
    case kernels::Precision::split: break;
    case kernels::Precision::bf16:
    case kernels::Precision::amx: return "inputs within 0.2 %";
    case kernels::Precision::fp8: return "inputs within 6.3 %";
    case kernels::Precision::int8: return "inputs within 0.4 % of the largest of 32, or 0.2 %";
  }
  return "nothing rounded";
}

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  std::vector<unsigned> gpus = {0};  // indices among the driver's; further ones compute experts
  std::optional<kernels::Precision> precision = kernels::Precision::exact;  // unset: usual_precision
  std::optional<Amount> vram = {};          // limit on each GPU's memory for this run; a share is of the card's
  std::optional<Amount> vram_experts = {};  // limit on routed experts in each GPU's memory; unset: all that fit
  MissOptions miss = {};                    // how the other experts are computed
  std::string cuda_library = {};            // empty: the program's own
  std::string cublaslt = {};                // CudaOptions::cublaslt
  /// Opens the GPU at index `place` of `gpus`. Empty: by load_cuda_device.
  std::function<Result<std::unique_ptr<kernels::Device>>(size_t place)> open_gpu = {};
  /// Whether to explain why no GPU computes.
  std::function<bool()> has_driver = [] { return kernels::has_nvidia_driver(); };

  /// The computing device's.
  [[nodiscard]] kernels::Precision precision_on(bool is_gpu) const {
    return precision.value_or(usual_precision(is_gpu));
  }
};

/// "auto", "cpu", "cuda", "cuda:N" or "cuda:N,M". Errors: invalid (none of these, or a GPU twice).
[[nodiscard]] Result<void> parse_device(std::string_view text, DeviceOptions& into);

class ChosenDevice {
 public:
  /// Files are read into its memory. It computes if no GPU does.
  [[nodiscard]] kernels::Device& host() { return *host_; }
  [[nodiscard]] kernels::Device& device() { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] const kernels::Device& device() const { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  [[nodiscard]] bool is_gpu() const { return gpu_ != nullptr; }
  /// A GPU after the first, for experts.
  struct Further {
    std::unique_ptr<kernels::Device> device;
    kernels::DeviceMemory before;  // memory when it was opened
  };
  [[nodiscard]] const std::vector<Further>& further() const { return further_; }
  /// Closes the further GPUs, which this run has no use for.
  void drop_further(std::string_view reason);
  /// All devices that compute, for people.
  [[nodiscard]] std::string description() const;
  [[nodiscard]] kernels::Precision precision() const { return precision_; }
  /// For people: which device runs and why, unless it was requested by name; else empty.
  [[nodiscard]] const std::string& note() const { return note_; }
  /// GPU memory that a plan may use. Precondition: is_gpu().
  [[nodiscard]] VramLimits vram_limits() const;
  /// The same for each further GPU.
  [[nodiscard]] std::vector<VramLimits> further_limits() const;
  /// The GPU's memory when it was chosen.
  [[nodiscard]] kernels::DeviceMemory memory_before() const { return before_; }

  /// Whether the GPU was chosen automatically, so the CPU may replace it.
  [[nodiscard]] bool may_use_host() const { return is_gpu() && is_automatic_; }
  /// Switches to the CPU, as a host() of its own. Precondition: may_use_host(), and nothing of the GPU or of the
  /// earlier host() is in use any more.
  Result<void> use_host(const std::string& reason);

 private:
  friend Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);
  ChosenDevice() = default;
  [[nodiscard]] VramLimits limits_of(const kernels::Device& device, const kernels::DeviceMemory& before) const;
  Result<void> compute_on_host();

  kernels::CpuOptions cpu_;  // if the CPU computes
  bool is_automatic_ = false;
  kernels::Precision precision_ = kernels::Precision::exact;
  std::optional<Amount> vram_;
  kernels::DeviceMemory before_;
  std::string note_;
  std::unique_ptr<kernels::Device> host_;
  std::unique_ptr<kernels::Device> gpu_;
  std::vector<Further> further_;
  std::unique_ptr<kernels::Queue> queue_;  // device()'s
};

[[nodiscard]] Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);

}  // namespace dspack::runtime
