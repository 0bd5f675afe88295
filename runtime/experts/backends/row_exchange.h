// Passes rows of a wave between the first device, which runs the layers, and a further one, which computes some
// experts: input there, results back. They go through pinned host memory that kernels of both devices read and write
// directly, so rows never wait for an expert's copy, and the host never blocks.
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
  /// A device and one of its queues.
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

  /// Later work on the further queue finds these rows of the first device in `x()`.
  void send(const kernels::Rows& x);
  /// Later work on the first queue finds the rows `which` of `parts()` in the same rows of `to`.
  void bring(const kernels::Rows& to, std::span<const uint32_t> which);

  /// Later work on the first queue runs after all work given to the further one so far.
  void meet() { first_.wait(*further_.mark()); }

  /// The last rows sent, [rows, hidden].
  [[nodiscard]] kernels::Rows x() const { return own_rows(0, rows_); }
  /// The results for these rows, [rows * top_k, hidden].
  [[nodiscard]] kernels::Rows parts() const { return own_rows(shape_.wave_tokens, rows_ * shape_.top_k); }

 private:
  /// Host memory for rows that are passed together: one piece is written while the other one is read.
  struct Piece {
    uint64_t offset_bytes = 0;
    std::shared_ptr<kernels::Event> read;  // last read of the piece; null: none
  };
  RowExchange(kernels::Queue& first, kernels::Queue& further, const ExecutorShape& shape)
      : first_(first), further_(further), shape_(shape) {}
  [[nodiscard]] kernels::Rows own_rows(uint64_t first, uint32_t rows) const;
  [[nodiscard]] kernels::Rows rows_of_piece(const Piece& piece, uint32_t rows) const;
  /// The next piece; makes `writer` wait until it has been read.
  [[nodiscard]] Piece& next_piece(kernels::Queue& writer);

  kernels::Queue& first_;
  kernels::Queue& further_;
  ExecutorShape shape_;
  uint32_t rows_ = 0;
  std::unique_ptr<kernels::Buffer> own_;     // further device's memory
  std::unique_ptr<kernels::Buffer> pinned_;  // host memory
  std::array<Piece, 2> pieces_;
  size_t turn_ = 0;
};

}  // namespace dspack::runtime
