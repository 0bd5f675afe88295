// Which device runs a model: a GPU if one is requested, or if none is and there is one with room for what every token
// needs; else the CPU.
// Threads: single-thread. Lifetime: owns device and queue. Errors: those of load_cuda_device if a GPU was requested;
// unsupported (an instruction set).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_library.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/vram_plan.h"
#include "runtime/experts/schedule.h"

namespace dspack::runtime {

enum class DeviceKind { automatic, cpu, cuda };

struct DeviceOptions {
  DeviceKind kind = DeviceKind::cpu;
  unsigned gpu = 0;                                          // of those that the driver shows
  kernels::Precision precision = kernels::Precision::exact;  // of what computes
  std::optional<Amount> vram = {};          // most of a GPU's memory for this run; a share is of the card's
  std::optional<Amount> vram_experts = {};  // routed experts in its memory; unset: as many as fit
  MissOptions miss = {};                    // what becomes of the others
  std::string cuda_library = {};            // empty: the one that belongs to the program
  std::string cublaslt = {};                // CudaOptions::cublaslt
  /// Opens a GPU. Empty: load_cuda_device does.
  std::function<Result<std::unique_ptr<kernels::Device>>()> open_gpu = {};
};

/// "auto", "cpu", "cuda" or "cuda:N". False: none of these.
[[nodiscard]] bool parse_device(std::string_view text, DeviceOptions& into);

class ChosenDevice {
 public:
  /// Into whose memory files are read. It computes where no GPU does.
  [[nodiscard]] kernels::Device& host() { return *host_; }
  [[nodiscard]] kernels::Device& device() { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] const kernels::Device& device() const { return gpu_ ? *gpu_ : *host_; }
  [[nodiscard]] kernels::Queue& queue() { return *queue_; }
  [[nodiscard]] bool is_gpu() const { return gpu_ != nullptr; }
  [[nodiscard]] kernels::Precision precision() const { return precision_; }
  /// For people: which device runs, and why, where nobody has asked for it by name; else empty.
  [[nodiscard]] const std::string& note() const { return note_; }
  /// Of a GPU: what a plan may take.
  [[nodiscard]] VramLimits vram_limits() const;
  /// Memory of the GPU that was free when it was chosen.
  [[nodiscard]] kernels::DeviceMemory memory_before() const { return before_; }

  /// Whether nobody has asked for the GPU, so that the CPU may take its place.
  [[nodiscard]] bool may_use_host() const { return is_gpu() && is_automatic_; }
  /// The CPU computes from now on. Nothing of the GPU may be in use any more.
  void use_host(const std::string& reason);

 private:
  friend Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);
  ChosenDevice() = default;

  bool is_automatic_ = false;
  kernels::Precision precision_ = kernels::Precision::exact;
  std::optional<Amount> vram_;
  kernels::DeviceMemory before_;
  std::string note_;
  std::unique_ptr<kernels::Device> host_;
  std::unique_ptr<kernels::Device> gpu_;
  std::unique_ptr<kernels::Queue> queue_;  // of device()
};

[[nodiscard]] Result<ChosenDevice> choose_device(const DeviceOptions& options, const kernels::CpuOptions& cpu);

}  // namespace dspack::runtime
