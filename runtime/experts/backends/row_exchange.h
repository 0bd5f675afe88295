// Rows of a wave on their way between the first device, which has the layers, and a further one, which computes some
// experts: the input there, results back. They pass through pinned memory of the host that kernels of both read and
// write themselves, so that they stand behind no copy of an expert; the host waits for nothing.
// Threads: single-thread. Lifetime: borrows both queues; owns memory of the further device and of the host. Errors:
// budget.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "runtime/experts/executor.h"

namespace dspack::runtime {

class RowExchange {
 public:
  /// A device with a queue of it.
  struct End {
    kernels::Device& device;
    kernels::Queue& queue;
  };
  [[nodiscard]] static Result<std::unique_ptr<RowExchange>> make(const End& first, const End& further,
                                                                 const ExecutorShape& shape);
  /// Memory of the further device.
  [[nodiscard]] static uint64_t device_bytes(const ExecutorShape& shape);
  /// Memory of the host.
  [[nodiscard]] static uint64_t host_bytes(const ExecutorShape& shape);

  /// What the further queue does from now on finds these rows of the first device in `x`.
  void send(const kernels::Rows& x);
  /// What the first queue does from now on finds the rows `which` of `parts` in the same rows of `to`.
  void bring(const kernels::Rows& to, std::span<const uint32_t> which);

  /// What the first queue does from now on comes after all that the further one has been given.
  void meet() { first_.wait(*further_.mark()); }

  /// Of the last rows sent. [rows, hidden]
  [[nodiscard]] kernels::Rows x() const { return own_rows(0, rows_); }
  /// [rows * top_k, hidden]
  [[nodiscard]] kernels::Rows parts() const { return own_rows(shape_.wave_tokens, rows_ * shape_.top_k); }

 private:
  /// Rows that pass together, and memory of the host for them: one piece is written while the other one is read.
  struct Piece {
    uint64_t offset_bytes = 0;
    std::shared_ptr<kernels::Event> read;  // what was there last; null: nothing was
  };
  RowExchange(kernels::Queue& first, kernels::Queue& further, const ExecutorShape& shape)
      : first_(first), further_(further), shape_(shape) {}
  [[nodiscard]] kernels::Rows own_rows(uint64_t first, uint32_t rows) const;
  [[nodiscard]] kernels::Rows rows_of_piece(const Piece& piece, uint32_t rows) const;
  /// The next piece, which `writer` may write from now on.
  [[nodiscard]] Piece& next_piece(kernels::Queue& writer);

  kernels::Queue& first_;
  kernels::Queue& further_;
  ExecutorShape shape_;
  uint32_t rows_ = 0;
  std::unique_ptr<kernels::Buffer> own_;     // of the further device
  std::unique_ptr<kernels::Buffer> pinned_;  // of the host
  std::array<Piece, 2> pieces_;
  size_t turn_ = 0;
};

}  // namespace dspack::runtime
