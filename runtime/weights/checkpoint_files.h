// Reads tensors where a storage keeps them, for what is not a routed expert, and counts the bytes by purpose.
// Threads: single-thread. Lifetime: borrows the storage. Errors: those of the storage; each names file and tensor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>

#include "format/base/result.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

/// What a byte was read for.
enum class ReadPurpose { always_needed, embedding };
inline constexpr size_t kReadPurposes = 2;

class CheckpointFiles {
 public:
  explicit CheckpointFiles(WeightStorage& storage) : storage_(storage) {}

  [[nodiscard]] const format::Checkpoint& checkpoint() const { return storage_.checkpoint(); }
  [[nodiscard]] WeightStorage& storage() { return storage_; }

  /// Fills `into` with bytes of a tensor, from `offset` relative to the tensor's first byte.
  [[nodiscard]] Result<void> read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                  ReadPurpose purpose, const std::stop_token& stop);

  /// Counts what was read by other means.
  void count(ReadPurpose purpose, uint64_t bytes) { bytes_read_[static_cast<size_t>(purpose)] += bytes; }
  [[nodiscard]] uint64_t bytes_read(ReadPurpose purpose) const { return bytes_read_[static_cast<size_t>(purpose)]; }

 private:
  WeightStorage& storage_;
  std::array<uint64_t, kReadPurposes> bytes_read_{};
};

}  // namespace dspack::runtime
