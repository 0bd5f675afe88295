// Operands of operations (kernels/ops.h) as addresses in device memory, for launches.
// Threads: pure functions. Lifetime: addresses are those of the buffers. Errors: none; shapes have been checked.
#pragma once

#include "kernels/cuda/attention/latent_rows.h"
#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/host/cuda_memory.h"
#include "kernels/cuda/linear/head_linear.h"
#include "kernels/cuda/tokens/elementwise.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

[[nodiscard]] inline float* floats(Slice place) {
  return reinterpret_cast<float*>(address_of(place));
}
[[nodiscard]] inline uint32_t* numbers(Slice place) {
  return reinterpret_cast<uint32_t*>(address_of(place));
}
/// For `at` of the arguments of operations (kernels/arguments.h).
struct Addresses {
  struct Anything {
    std::byte* address;
    template <class T>
    operator T*() const {  // NOLINT(google-explicit-constructor): the field's type is the one to have
      return reinterpret_cast<T*>(address);
    }
  };
  Anything operator()(Slice place) const { return {address_of(place)}; }
  Matrix operator()(const Weight& weight) const { return matrix_of(weight); }
};
inline constexpr Addresses kAddresses;

[[nodiscard]] inline RowsAt<float> rows_at(const Rows& rows) {
  return {.data = floats(rows.data), .stride = rows.stride};
}
[[nodiscard]] inline RowsAt<const float> inputs_at(const Rows& rows) {
  return {.data = floats(rows.data), .stride = rows.stride};
}
/// For rows that may be in pinned host memory.
[[nodiscard]] inline RowsAt<float> visible_rows_at(const Rows& rows) {
  return {.data = reinterpret_cast<float*>(visible_address(rows.data)), .stride = rows.stride};
}
[[nodiscard]] inline RowsAt<const float> visible_inputs_at(const Rows& rows) {
  return {.data = reinterpret_cast<const float*>(visible_address(rows.data)), .stride = rows.stride};
}
[[nodiscard]] inline RowPairTask pair(const Rows& to, const Rows& from) {
  return {.to = rows_at(to), .from = inputs_at(from), .rows = to.rows, .cols = to.cols};
}
[[nodiscard]] inline bool is_empty(const Rows& rows) {
  return rows.rows == 0 || rows.cols == 0;
}

[[nodiscard]] inline StoreRowsTask store_rows_task(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) {
  return {.to = address_of(to),
          .dtype = dtype,
          .from = inputs_at(from),
          .rows = from.rows,
          .cols = from.cols,
          .live = numbers(live.value)};
}
[[nodiscard]] inline StoreLatentsTask store_latents_task(Slice to, LatentShape shape, const Rows& from,
                                                         const LivePosition& live) {
  return {.to = reinterpret_cast<uint8_t*>(address_of(to)),
          .shape = shape,
          .row = fp8_row(shape),
          .tiles = latent_tiles(shape.latent_dim),
          .from = inputs_at(from),
          .rows = from.rows,
          .live = numbers(live.value)};
}

[[nodiscard]] inline RotateTask rotate_task(const RopeArgs& args) {
  return {.data = floats(args.data),
          .rows = args.rows,
          .heads = args.heads,
          .dim = args.dim,
          .apart = args.pairs == RopePairs::halves ? args.dim / 2 : 1,
          .step = args.pairs == RopePairs::halves ? 1U : 2U,
          .head_stride = args.head_stride,
          .row_stride = args.row_stride,
          .first_position = args.first_position,
          .cos_sin = floats(args.cos_sin),
          .live = numbers(args.live.value),
          .inverse = args.inverse};
}

}  // namespace dspack::kernels::cuda
