// GPU memory for the interfaces of ops.h: buffers, and tables of experts.
// Threads: thread-safe. Lifetime: a buffer returns its bytes to its budget. Errors: budget.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// Bytes that a device may allocate, and has allocated.
struct Budget {
  unsigned device = 0;       // gpu::Properties::index
  uint64_t limit_bytes = 0;  // 0: limited only by the card
  std::atomic<uint64_t> used_bytes{0};
};

class CudaBuffer final : public Buffer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<CudaBuffer>> make(uint64_t bytes, std::shared_ptr<Budget> budget);
  ~CudaBuffer() override;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  [[nodiscard]] uint64_t size_bytes() const override { return bytes_; }
  [[nodiscard]] std::byte* address() const { return memory_; }

 private:
  CudaBuffer(std::byte* memory, uint64_t bytes, std::shared_ptr<Budget> budget)
      : memory_(memory), bytes_(bytes), budget_(std::move(budget)) {}
  std::byte* memory_;
  uint64_t bytes_;
  std::shared_ptr<Budget> budget_;
};

/// Pinned host memory, which the device copies from and to directly, and which kernels address.
class PinnedBuffer final : public Buffer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Buffer>> make(uint64_t bytes);
  ~PinnedBuffer() override { gpu::release_pinned(memory_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] uint64_t size_bytes() const override { return bytes_; }
  [[nodiscard]] std::span<std::byte> host() override { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  PinnedBuffer(void* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
  void* memory_;
  uint64_t bytes_;
};

/// Device address of a slice; null for an empty one.
[[nodiscard]] std::byte* address_of(Slice place);
/// Whether a slice is in a PinnedBuffer.
[[nodiscard]] bool is_pinned(Slice place);
/// Address by which kernels access a slice in device memory or in a PinnedBuffer.
[[nodiscard]] std::byte* visible_address(Slice place);

/// The weight as kernels take it.
[[nodiscard]] Matrix matrix_of(const Weight& weight);

class CudaExpertTable final : public ExpertTable {
 public:
  /// Errors: unsupported (experts differ in storage form), budget.
  [[nodiscard]] static Result<std::unique_ptr<ExpertTable>> make(std::span<const ExpertMatrices> experts,
                                                                 std::shared_ptr<Budget> budget);
  [[nodiscard]] uint32_t size() const override { return static_cast<uint32_t>(on_host_.size()); }
  [[nodiscard]] const ExpertForm& form() const { return form_; }
  [[nodiscard]] const ExpertEntry* entries() const { return reinterpret_cast<const ExpertEntry*>(memory_->address()); }
  /// The same entries in host memory.
  [[nodiscard]] std::span<const ExpertEntry> entries_on_host() const { return on_host_; }

 private:
  CudaExpertTable(std::unique_ptr<CudaBuffer> memory, const ExpertForm& form, std::vector<ExpertEntry> entries)
      : memory_(std::move(memory)), form_(form), on_host_(std::move(entries)) {}
  std::unique_ptr<CudaBuffer> memory_;
  ExpertForm form_;
  std::vector<ExpertEntry> on_host_;
};

}  // namespace dspack::kernels::cuda
