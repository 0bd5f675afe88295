// Products of rows with matrices: an equal share of the outputs for each thread, exactly or in precision bf16. Few rows
// are multiplied by weights as they come from memory, many by weights that are decoded once for all of them.
// Threads: one call at a time. Lifetime: borrows the operations and the threads. Errors: none; shapes have been
// checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/ops_table.h"
#include "kernels/cpu/workers.h"
#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels {

/// Memory of a slice that the host can address.
[[nodiscard]] std::byte* host(Slice place);
/// nullptr: there is none.
[[nodiscard]] float* floats(Slice place);
[[nodiscard]] MatrixView view_of(const Weight& weight);

class Products {
 public:
  Products(const CpuOps& ops, Workers& workers, Precision precision)
      : ops_(ops), workers_(workers), precision_(precision) {}

  struct One {
    Weight weight;
    Rows y;
  };
  /// What is made of results as soon as they are there, by the thread that has computed them.
  using Made = std::function<void(RowRange rows, RowRange outputs)>;
  /// y = weight x for matrices of one shape, in one parallel region: a thread computes the same outputs of all of them.
  void multiply(std::span<const One> products, const Rows& x, const Made& made);

  /// Memory that threads take pieces of, one each.
  class Pieces {
   public:
    Pieces(std::byte* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
    [[nodiscard]] std::byte* take() { return memory_ + next_.fetch_add(1, std::memory_order_relaxed) * bytes_; }

   private:
    std::byte* memory_;
    uint64_t bytes_;
    std::atomic<unsigned> next_ = 0;
  };
  /// For linear() with so many rows, until the next call of anything else.
  [[nodiscard]] Pieces scratch_for(const MatrixView& matrix, uint32_t rows);
  /// An exact product on the calling thread.
  void linear(const LinearTask& task, std::byte* scratch) const;

 private:
  enum class Way {
    direct,   // weights as they come from memory, once for each few rows
    panels,   // decoded once for all rows
    rounded,  // precision bf16
  };
  [[nodiscard]] Way exact_way_of(const MatrixView& matrix, uint32_t rows) const;
  [[nodiscard]] Way way_of(const MatrixView& matrix, uint32_t rows) const;
  void multiply_directly(std::span<const One> products, const Rows& x, const Made& made);
  void multiply_panels(std::span<const One> products, const Rows& x, RowRange rows, const Made& made);
  /// Of this product, 64-byte aligned: `first_bytes`, and behind them a piece for each thread.
  [[nodiscard]] std::byte* memory_of(uint64_t first_bytes, uint64_t piece_bytes);
  void multiply_rounded(std::span<const One> products, const Rows& x, RowRange rows, const Made& made);

  const CpuOps& ops_;
  Workers& workers_;
  Precision precision_;
  std::vector<std::byte> memory_;  // x as it is multiplied, then a piece of scratch for each thread
};

}  // namespace dspack::kernels
