#include "kernels/cpu/products.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::kernels {

std::byte* host(Slice place) {
  return host_bytes(*place.buffer).data() + place.offset_bytes;
}
float* floats(Slice place) {
  return place.empty() ? nullptr : reinterpret_cast<float*>(host(place));
}

MatrixView view_of(const Weight& weight) {
  static constexpr float kOne = 1.0F;
  MatrixView matrix{{weight, {host(weight.planes[kCodes])}}};
  if (weight.planes[kScales].empty()) {
    matrix.planes[kScales] = reinterpret_cast<const std::byte*>(&kOne);
    matrix.block_out = weight.out;
    matrix.block_in = weight.in;
    matrix.scale = ScaleCoding::f32;
    matrix.global = GlobalScale::none;
  } else {
    matrix.planes[kScales] = host(weight.planes[kScales]);
    for (const size_t plane : {kGlobal, kZeros}) {
      if (!weight.planes[plane].empty()) matrix.planes[plane] = host(weight.planes[plane]);
    }
  }
  matrix.scale_stride = (matrix.in - 1) / matrix.block_in + 1;
  return matrix;
}

namespace {

/// What multiplies a matrix in precision bf16; nullptr: its codes are no BF16, or a block of scales ends within a step.
auto rounded_function(const CpuOps& ops, const MatrixView& matrix) {
  const bool is_whole = matrix.block_in >= matrix.in || matrix.block_in % kRoundedStep == 0;
  if (is_whole && matrix.coding == Coding::f8_e4m3) return ops.rounded.e4m3;
  if (is_whole && matrix.coding == Coding::bf16) return ops.rounded.bf16;
  return decltype(ops.rounded.bf16){nullptr};
}

constexpr uint64_t kAlignment = 64;
constexpr uint32_t kRoundedRowsAtOnce = 256;

/// The first of the rest that are multiplied together: about equal shares of `most` rows at most, whole groups but for
/// the last.
uint32_t share_of(uint32_t rows, uint32_t most, uint32_t group) {
  const uint32_t shares = (rows - 1) / most + 1;
  return static_cast<uint32_t>(std::min<uint64_t>(round_up((rows - 1) / shares + 1, group), most));
}

}  // namespace

uint64_t most_product_bytes(unsigned threads, uint32_t rows, uint32_t in) {
  // Rows are laid out as FP32 in groups of a few, or as BF16 in groups of kRoundedGroup.
  const uint64_t exact = round_up(std::min(rows, kMostPanelRows), kRoundedGroup) * sizeof(float);
  const uint64_t rounded = round_up(std::min(rows, kRoundedRowsAtOnce), kRoundedGroup) * sizeof(uint16_t);
  return std::max(exact, rounded) * round_up(in, kRoundedStep) + threads * kPanelScratchBytes + kAlignment;
}

Products::Way Products::exact_way_of(const MatrixView& matrix, uint32_t rows) const {
  // Up to so many rows decoding a weight again for each four of them costs less than the detour.
  const uint32_t direct_rows = is_packed(matrix.coding) ? 12 : 8;
  constexpr uint32_t kUnit = 16;  // columns, of panels
  const bool has_units = matrix.block_in >= kUnit || matrix.block_in >= matrix.in;
  return has_units && rows > direct_rows ? Way::panels : Way::direct;
}

Products::Way Products::way_of(const MatrixView& matrix, uint32_t rows) const {
  const bool is_rounded = precision_ == Precision::bf16 && rounded_function(ops_, matrix) != nullptr;
  return is_rounded ? Way::rounded : exact_way_of(matrix, rows);
}

void Products::multiply(std::span<const One> products, const Rows& x, const Made& made) {
  if (x.rows == 0) return;
  const MatrixView first = view_of(products.front().weight);
  const Way way = way_of(first, x.rows);
  const auto goes_along = [&](const One& product) {
    const MatrixView matrix = view_of(product.weight);
    DSPACK_CHECK(matrix.out == first.out, "matrices of several shapes");
    return way_of(matrix, x.rows) == way && matrix.block_in == first.block_in;
  };
  if (!std::ranges::all_of(products, goes_along)) {  // each as it would be alone
    for (const One& product : products)
      multiply({&product, 1}, x, {});
    if (made) made({0, x.rows}, {0, first.out});
    return;
  }
  if (way == Way::direct) return multiply_directly(products, x, made);
  // Some rows at a time, so that what is laid out takes a few MB of any matrix.
  const uint32_t share =
      way == Way::rounded ? kRoundedRowsAtOnce : share_of(x.rows, kMostPanelRows, ops_.panels.group_rows);
  for (uint32_t begin = 0; begin < x.rows; begin += share) {
    const RowRange rows{begin, std::min(begin + share, x.rows)};
    way == Way::rounded ? multiply_rounded(products, x, rows, made) : multiply_panels(products, x, rows, made);
  }
}

void Products::multiply_directly(std::span<const One> products, const Rows& x, const Made& made) {
  const Weight& shape = products.front().weight;
  workers_.split(shape.out, uint64_t{shape.in} * x.rows * products.size(), [&](uint32_t begin, uint32_t end) {
    for (const One& product : products) {
      ops_.linear[static_cast<size_t>(product.weight.coding)]({.matrix = view_of(product.weight),
                                                               .outputs = {begin, end},
                                                               .x = floats(x.data),
                                                               .x_stride = x.stride,
                                                               .y = floats(product.y.data) + begin,
                                                               .y_stride = product.y.stride,
                                                               .rows = x.rows});
    }
    if (made) made({0, x.rows}, {begin, end});
  });
}

void Products::multiply_panels(std::span<const One> products, const Rows& x, RowRange rows, const Made& made) {
  const PanelOps& ops = ops_.panels;
  const uint32_t count = rows.end - rows.begin;
  const uint32_t block_in = view_of(products.front().weight).block_in;
  const uint64_t x_bytes = round_up(ops.x_values(count, x.cols, block_in) * sizeof(float), kAlignment);
  std::byte* const memory = memory_of(x_bytes, kPanelScratchBytes);
  auto* const packed = reinterpret_cast<float*>(memory);
  const auto groups = static_cast<uint32_t>(ceil_div(count, ops.group_rows));
  workers_.split(groups, uint64_t{ops.group_rows} * x.cols, [&](uint32_t begin, uint32_t end) {
    ops.pack({.x = floats(x.data) + uint64_t{rows.begin} * x.stride,
              .x_stride = x.stride,
              .rows = count,
              .in = x.cols,
              .block_in = block_in,
              .groups = {begin, end},
              .to = packed});
  });
  Pieces pieces(memory + x_bytes, kPanelScratchBytes);
  const uint64_t cost = uint64_t{x.cols} * count * products.size();
  workers_.split(products.front().weight.out, cost, [&](uint32_t begin, uint32_t end) {
    std::byte* const scratch = pieces.take();
    for (const One& product : products) {
      ops.linear[static_cast<size_t>(product.weight.coding)](
          {.matrix = view_of(product.weight),
           .outputs = {begin, end},
           .x = packed,
           .y = floats(product.y.data) + uint64_t{rows.begin} * product.y.stride + begin,
           .y_stride = product.y.stride,
           .rows = count,
           .scratch = scratch});
    }
    if (made) made(rows, {begin, end});
  });
}

std::byte* Products::memory_of(uint64_t first_bytes, uint64_t piece_bytes) {
  const uint64_t bytes = first_bytes + workers_.threads() * piece_bytes + kAlignment;
  if (memory_.size() < bytes) memory_.resize(bytes);
  const auto address = reinterpret_cast<uint64_t>(memory_.data());
  return memory_.data() + (round_up(address, kAlignment) - address);
}

Products::Pieces Products::scratch_for(const MatrixView& matrix, uint32_t rows) {
  if (exact_way_of(matrix, rows) != Way::panels) return {nullptr, 0};
  const PanelOps& ops = ops_.panels;
  const uint64_t packed = ops.x_values(std::min(rows, kMostPanelRows), matrix.in, matrix.block_in) * sizeof(float);
  const uint64_t bytes = kPanelScratchBytes + round_up(packed, kAlignment);
  return {memory_of(0, bytes), bytes};
}

void Products::linear(const LinearTask& task, std::byte* scratch) const {
  const PanelOps& ops = ops_.panels;
  const auto coding = static_cast<size_t>(task.matrix.coding);
  if (exact_way_of(task.matrix, task.rows) != Way::panels) return ops_.linear[coding](task);
  const uint32_t share = share_of(task.rows, kMostPanelRows, ops.group_rows);
  auto* const packed = reinterpret_cast<float*>(scratch + kPanelScratchBytes);
  for (uint32_t first = 0; first < task.rows; first += share) {
    const uint32_t count = std::min(share, task.rows - first);
    ops.pack({.x = task.x + first * task.x_stride,
              .x_stride = task.x_stride,
              .rows = count,
              .in = task.matrix.in,
              .block_in = task.matrix.block_in,
              .groups = {0, static_cast<uint32_t>(ceil_div(count, ops.group_rows))},
              .to = packed});
    ops.linear[coding]({.matrix = task.matrix,
                        .outputs = task.outputs,
                        .x = packed,
                        .y = task.y + first * task.y_stride,
                        .y_stride = task.y_stride,
                        .rows = count,
                        .scratch = scratch});
  }
}

void Products::multiply_rounded(std::span<const One> products, const Rows& x, RowRange rows, const Made& made) {
  const RoundedOps& ops = ops_.rounded;
  const uint32_t count = rows.end - rows.begin;
  const uint32_t in = x.cols;
  const uint32_t out = products.front().weight.out;
  const uint64_t x_bytes = round_up(ops.x_bytes(count, in), kAlignment);
  const uint64_t scratch_bytes = round_up(ops.scratch_bytes(in), kAlignment);
  std::byte* const to = memory_of(x_bytes, scratch_bytes);
  const auto groups = static_cast<uint32_t>(ceil_div(uint64_t{count}, uint64_t{kRoundedGroup}));
  workers_.split(groups, std::min(count, kRoundedGroup) * uint64_t{in} / 4, [&](uint32_t begin, uint32_t end) {
    ops.round({.x = floats(x.data) + uint64_t{rows.begin} * x.stride,
               .x_stride = x.stride,
               .rows = count,
               .in = in,
               .groups = {begin, end},
               .to = to});
  });
  Pieces pieces(to + x_bytes, scratch_bytes);
  workers_.split(out, uint64_t{in} * count * products.size(), [&](uint32_t begin, uint32_t end) {
    std::byte* const scratch = pieces.take();
    for (const One& product : products) {
      const MatrixView matrix = view_of(product.weight);
      rounded_function(ops_, matrix)({.matrix = matrix,
                                      .outputs = {begin, end},
                                      .x = to,
                                      .y = floats(product.y.data) + uint64_t{rows.begin} * product.y.stride + begin,
                                      .y_stride = product.y.stride,
                                      .rows = count,
                                      .scratch = scratch});
    }
    if (made) made(rows, {begin, end});
  });
}

}  // namespace dspack::kernels
