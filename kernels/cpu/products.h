// Products of rows with matrices, exact or with rounded x; each thread computes an equal share of the outputs.
// Few rows are multiplied by weights as they stream from memory, many by weights decoded once for all rows. Precision
// bf16 has the bits that exact products give for rounded x, with the instruction set's own operations if it has any.
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

/// The bytes of a slice that the host can address.
[[nodiscard]] std::byte* host(Slice place);
/// nullptr if the slice is empty.
[[nodiscard]] float* floats(Slice place);
[[nodiscard]] MatrixView view_of(const Weight& weight);

/// The operations of an instruction set that a precision is named for; nullptr: the exact ones serve.
[[nodiscard]] const RoundedOps* rounded_ops(const CpuOps& ops, Precision precision);

/// Most rows, in total, of several products that are computed together.
inline constexpr uint32_t kMaxRowsTogether = 64;

class Products {
 public:
  Products(const CpuOps& ops, Workers& workers, Precision precision)
      : ops_(ops), workers_(workers), precision_(precision) {}

  /// y = weight x; or, with `up`, y = silu(weight x) * (up x), clamped, using `scratch`, which has y's shape.
  struct Product {
    Weight weight;
    Rows x;
    Rows y;
    const Weight* up = nullptr;  // same shape as weight
    Rows scratch = {};
    float limit = kNoLimit;  // clamps the gated values, with `up`
    /// x rounded to BF16, as FP32 [rows, cols]; nullptr: x as it is.
    const float* rounded_x = nullptr;
  };
  /// Several products of one shape, with at most kMaxRowsTogether rows in total, or a single product. Products of few
  /// rows each run in one parallel region, in which a thread computes the same outputs of all of them.
  void multiply(std::span<const Product> products);

  /// Memory divided into pieces, one per thread.
  class Pieces {
   public:
    Pieces(std::byte* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
    [[nodiscard]] std::byte* take() { return memory_ + next_.fetch_add(1, std::memory_order_relaxed) * bytes_; }

   private:
    std::byte* memory_;
    uint64_t bytes_;
    std::atomic<unsigned> next_ = 0;
  };
  /// Scratch for linear() with `rows` rows; valid until the next call of any other function.
  [[nodiscard]] Pieces scratch_for(const MatrixView& matrix, uint32_t rows);
  /// Computes an exact product on the calling thread.
  void linear(const LinearTask& task, std::byte* scratch) const;

 private:
  enum class Way {
    direct,   // weights as they stream from memory, once per few rows
    panels,   // weights decoded once for all rows
    rounded,  // RoundedOps
    copied,   // one of the first two, with a rounded copy of x
    apart,    // gate and up separately, since their codings or blocks differ
  };
  struct Choice {
    Way way = Way::direct;
    const RoundedOps* ops = nullptr;  // the operations of Way::rounded
    bool operator==(const Choice&) const = default;
  };
  [[nodiscard]] Way exact_way_of(const MatrixView& matrix, uint32_t rows) const;
  [[nodiscard]] Choice choice_of(const Weight& weight, uint32_t rows) const;
  [[nodiscard]] Choice choice_of(const Product& product) const;
  void multiply_apart(const Product& product);
  void multiply_exactly(std::span<const Product> products);
  void multiply_directly(std::span<const Product> products);
  void multiply_copied(std::span<const Product> products);
  void multiply_panels(const Product& product, RowRange rows);
  void multiply_rounded(const RoundedOps& ops, std::span<const Product> products, RowRange only);
  /// For these rows and outputs: gate times up.
  void finish(const Product& product, RowRange rows, RowRange outputs) const;
  /// Memory for this product, 64-byte aligned: `first_bytes`, then one piece per thread.
  [[nodiscard]] std::byte* memory_of(uint64_t first_bytes, uint64_t piece_bytes);

  const CpuOps& ops_;
  Workers& workers_;
  Precision precision_;
  std::vector<std::byte> memory_;  // x as a way lays it out, then a piece of scratch per thread
  std::vector<float> copies_;      // rounded x of `copied` products
};

}  // namespace dspack::kernels
