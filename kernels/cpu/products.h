// Products of rows with matrices: an equal share of the outputs for each thread, exactly or in precision bf16. Few rows
// are multiplied by weights as they come from memory, many by weights that are decoded once for all of them.
// Threads: one call at a time. Lifetime: borrows the operations and the threads. Errors: none; shapes have been
// checked.
#pragma once

#include <atomic>
#include <cstddef>
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

/// Rows of several products that are computed together, in all.
inline constexpr uint32_t kMostRowsTogether = 64;

class Products {
 public:
  Products(const CpuOps& ops, Workers& workers, Precision precision)
      : ops_(ops), workers_(workers), precision_(precision) {}

  /// y = weight x; or, with `up`, y = silu(weight x) * (up x), limited, by way of `scratch`, of y's shape.
  struct Product {
    Weight weight;
    Rows x;
    Rows y;
    const Weight* up = nullptr;  // of weight's shape
    Rows scratch = {};
    float limit = kNoLimit;  // of the gated values, with `up`
  };
  /// Products of one shape; of kMostRowsTogether rows in all, or one alone. Those of few rows each are computed in one
  /// parallel region, in which a thread computes the same outputs of all of them.
  void multiply(std::span<const Product> products);

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
    apart,    // gate and up are not alike
  };
  [[nodiscard]] Way exact_way_of(const MatrixView& matrix, uint32_t rows) const;
  [[nodiscard]] Way way_of(const Product& product) const;
  void multiply_apart(const Product& product);
  void multiply_directly(std::span<const Product> products);
  void multiply_panels(const Product& product, RowRange rows);
  void multiply_rounded(std::span<const Product> products, RowRange rows);
  /// `rows` of these outputs: gate times up.
  void finish(const Product& product, RowRange rows, RowRange outputs) const;
  /// Of this product, 64-byte aligned: `first_bytes`, and behind them a piece for each thread.
  [[nodiscard]] std::byte* memory_of(uint64_t first_bytes, uint64_t piece_bytes);

  const CpuOps& ops_;
  Workers& workers_;
  Precision precision_;
  std::vector<std::byte> memory_;  // x as it is multiplied, then a piece of scratch for each thread
};

}  // namespace dspack::kernels
