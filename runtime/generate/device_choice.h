// Which devices run a model: a GPU if one is requested, or if none is and there is one with room for what every token
// needs; else the CPU. Of several GPUs the first runs the model, and the others compute routed experts.
// Threads: single-thread. Lifetime: owns devices and queue. Errors: those of load_cuda_device if a GPU was requested;
// unsupported (an instruction set).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/load_cuda.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/vram_plan.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

enum class DeviceKind { automatic, cpu, cuda };

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  std::vector<unsigned> gpus = {0};                          // of those that the driver shows; further ones for experts
  kernels::Precision precision = kernels::Precision::exact;  // of what computes
  std::optional<Amount> vram = {};          // most of each GPU's memory for this run; a share is of the card's
  std::optional<Amount> vram_experts = {};  // routed experts in each one's memory; unset: as many as fit
  MissOptions miss = {};                    // what becomes of the others
  std::string cuda_library = {};            // empty: the one that belongs to the program
  std::string cublaslt = {};                // CudaOptions::cublaslt
  /// Opens the one at this place of `gpus`. Empty: load_cuda_device does.
  std::function<Result<std::unique_ptr<kernels::Device>>(size_t place)> open_gpu = {};
  /// Whether somebody may wonder why no GPU computes.
  std::function<bool()> has_driver = [] { return kernels::has_nvidia_driver(); };
};

/// "auto", "cpu", "cuda", "cuda:N" or "cuda:N,M". Errors: invalid (none of these, or a GPU twice).
[[nodiscard]] Result<void> parse_device(std::string_view text, DeviceOptions& into);

class ChosenDevice {
 public:
  /// Into whose memory files are read. It computes where no GPU does.
  [[nodiscard]] kernels::Device& host() { return *host_; }
  [[nodiscard]] kernels::Device& device() { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] const kernels::Device& device() const { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  [[nodiscard]] bool is_gpu() const { return gpu_ != nullptr; }
  /// A GPU beside the first, for experts.
  struct Further {
    std::unique_ptr<kernels::Device> device;
    kernels::DeviceMemory before;  // as memory_before
  };
  [[nodiscard]] const std::vector<Further>& further() const { return further_; }
  /// They have nothing to do in this run.
  void drop_further(std::string_view reason);
  /// All devices that compute, for people.
  [[nodiscard]] std::string description() const;
  [[nodiscard]] kernels::Precision precision() const { return precision_; }
  /// For people: which device runs, and why, where nobody has asked for it by name; else empty.
  [[nodiscard]] const std::string& note() const { return note_; }
  /// Of a GPU: what a plan may take.
  [[nodiscard]] VramLimits vram_limits() const;
  /// Of each further one.
  [[nodiscard]] std::vector<VramLimits> further_limits() const;
  /// Memory of the GPU that was free when it was chosen.
  [[nodiscard]] kernels::DeviceMemory memory_before() const { return before_; }

  /// Whether nobody has asked for the GPU, so that the CPU may take its place.
  [[nodiscard]] bool may_use_host() const { return is_gpu() && is_automatic_; }
  /// The CPU computes from now on. Nothing of the GPU may be in use any more.
  void use_host(const std::string& reason);

 private:
  friend Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);
  ChosenDevice() = default;
  [[nodiscard]] VramLimits limits_of(const kernels::Device& device, const kernels::DeviceMemory& before) const;

  bool is_automatic_ = false;
  kernels::Precision precision_ = kernels::Precision::exact;
  std::optional<Amount> vram_;
  kernels::DeviceMemory before_;
  std::string note_;
  std::unique_ptr<kernels::Device> host_;
  std::unique_ptr<kernels::Device> gpu_;
  std::vector<Further> further_;
  std::unique_ptr<kernels::Queue> queue_;  // of device()
};

[[nodiscard]] Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);

}  // namespace dspack::runtime
