// The token embedding, read by rows from its file: the table (1.9 GB in V3) is never loaded.
// Threads: single-thread. Lifetime: borrows the files. Errors: not_found, invalid, unsupported when made; those of
// reading.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>

#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

class Embedding {
 public:
  /// The table `name` [vocab, hidden].
  [[nodiscard]] static Result<Embedding> make(const LoadContext& context, std::string_view name, uint32_t vocab,
                                              uint32_t hidden);

  /// rows[i] = row tokens[i] of the table, exact in FP32. For the few rows of a decode pass it does not wait for the
  /// queue of a device. Precondition: every token is below the vocabulary's size.
  [[nodiscard]] Result<void> lookup(kernels::Queue& queue, std::span<const uint32_t> tokens, const kernels::Rows& rows,
                                    const std::stop_token& stop) const;

 private:
  /// Rows on their way to a device.
  struct Staging {
    std::unique_ptr<kernels::Buffer> memory;  // host memory
    std::shared_ptr<kernels::Event> sent;     // end of the last upload from it; null: none yet
  };
  Embedding(CheckpointAccess& access, const format::TensorEntry& table, uint32_t hidden)
      : access_(&access), table_(&table), hidden_(hidden) {}
  /// Reads one row as FP32; `stored` is a buffer for its stored form.
  Result<void> read(uint32_t token, std::span<std::byte> stored, std::span<float> into,
                    const std::stop_token& stop) const;
  Result<void> look_up_staged(kernels::Queue& queue, std::span<const uint32_t> tokens, const kernels::Rows& rows,
                              const std::stop_token& stop) const;

  CheckpointAccess* access_;
  const format::TensorEntry* table_;
  uint32_t hidden_;
  std::unique_ptr<Staging> staging_;  // null if the host computes
};

}  // namespace dspack::runtime
