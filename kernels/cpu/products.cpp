#include "kernels/cpu/products.h"

#include <algorithm>
#include <array>
#include <bit>

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

/// Whether no scale block ends within a step.
bool has_whole_steps(const MatrixView& matrix) {
  return matrix.block_in >= matrix.in || matrix.block_in % kRoundedStep == 0;
}

/// Whether x is rounded to BF16 for this matrix, whose codes fit BF16.
bool is_for_bf16(const MatrixView& matrix) {
  return has_whole_steps(matrix) && (matrix.coding == Coding::f8_e4m3 || matrix.coding == Coding::bf16);
}

/// The nearest BF16, ties to even, as FP32; NaN stays NaN.
float nearest_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  const uint32_t rounded = (bits + 0x7fffU + (bits >> 16U & 1U)) & 0xffff0000U;
  return std::bit_cast<float>(is_nan ? (bits & 0xffff0000U) | 0x00400000U : rounded);
}

/// FP32 rows.
struct Inputs {
  const float* data = nullptr;
  uint64_t stride = 0;
};
Inputs inputs_of(const Products::Product& product) {
  if (product.rounded_x != nullptr) return {product.rounded_x, product.x.cols};
  return {floats(product.x.data), product.x.stride};
}

/// Whether two products have the same x.
bool share_inputs(const Products::Product& a, const Products::Product& b) {
  return floats(a.x.data) == floats(b.x.data) && a.x.stride == b.x.stride && a.x.rows == b.x.rows;
}

/// Whether two matrices take rounded x in the same layout.
bool share_layout(const Weight& a, const Weight& b) {
  return is_packed(a.coding) == is_packed(b.coding);
}

/// Some rows of a product.
Products::Product part_of(Products::Product product, uint32_t first, uint32_t count) {
  for (Rows* rows : {&product.x, &product.y, &product.scratch}) {
    rows->data.offset_bytes += uint64_t{first} * rows->stride * sizeof(float);
    rows->rows = count;
  }
  return product;
}

constexpr uint64_t kAlignment = 64;
constexpr uint32_t kRoundedRowsAtOnce = 256;

/// Rows to multiply next: about equal shares of at most `most` rows, each a whole number of groups except the last.
uint32_t share_of(uint32_t rows, uint32_t most, uint32_t group) {
  const uint32_t shares = (rows - 1) / most + 1;
  return static_cast<uint32_t>(std::min<uint64_t>(round_up((rows - 1) / shares + 1, group), most));
}

uint32_t matrices_of(const Products::Product& product) {
  return product.up == nullptr ? 1 : 2;
}

/// Calls work(weight, y) for the product's matrix or for both.
template <class Work>
void for_each_matrix(const Products::Product& product, Work work) {
  work(product.weight, product.y);
  if (product.up != nullptr) work(*product.up, product.scratch);
}

}  // namespace

const RoundedOps* rounded_ops(const CpuOps& ops, Precision precision) {
  switch (precision) {
    case Precision::bf16: return ops.bf16;
    case Precision::amx: return ops.tiles;
    case Precision::int8: return ops.int8;
    default: return nullptr;
  }
}

uint64_t most_product_bytes(unsigned threads, uint32_t rows, uint32_t in) {
  // Exact rows are laid out as FP32 in groups of a few; rounded ones are copied as FP32 before that, or laid out as
  // BF16 in groups of kRoundedGroup.
  const uint64_t exact = round_up(std::min(rows, kMaxPanelRows), kRoundedGroup) * sizeof(float);
  const uint64_t rounded = std::min(std::max(rows, kMaxRowsTogether), kRoundedRowsAtOnce) * sizeof(float);
  return (exact + rounded) * round_up(in, kRoundedPadding) + threads * kPanelScratchBytes + kAlignment;
}

Products::Way Products::exact_way_of(const MatrixView& matrix, uint32_t rows) const {
  // Up to this many rows, decoding a weight again for each four rows costs less than panels.
  const uint32_t direct_rows = is_packed(matrix.coding) ? 12 : 8;
  constexpr uint32_t kUnit = 16;  // columns per unit of panels
  const bool has_units = matrix.block_in >= kUnit || matrix.block_in >= matrix.in;
  return has_units && rows > direct_rows ? Way::panels : Way::direct;
}

Products::Choice Products::choice_of(const Weight& weight, uint32_t rows) const {
  const MatrixView matrix = view_of(weight);
  if (precision_ == Precision::int8 && has_whole_steps(matrix) &&
      ops_.int8->linear[static_cast<size_t>(weight.coding)] != nullptr)
    return {Way::rounded, ops_.int8};
  if (precision_ == Precision::exact || !is_for_bf16(matrix)) return {exact_way_of(matrix, rows)};
  const RoundedOps* ops = precision_ == Precision::amx ? ops_.tiles : ops_.bf16;
  return {ops != nullptr ? Way::rounded : Way::copied, ops};
}

Products::Choice Products::choice_of(const Product& product) const {
  const Choice choice = choice_of(product.weight, product.x.rows);
  if (product.up == nullptr) return choice;
  DSPACK_CHECK(product.up->out == product.weight.out, "gate and up of several shapes");
  const bool is_alike = choice_of(*product.up, product.x.rows) == choice &&
                        view_of(*product.up).block_in == view_of(product.weight).block_in &&
                        share_layout(*product.up, product.weight);
  return is_alike ? choice : Choice{Way::apart};
}

void Products::multiply(std::span<const Product> products) {
  std::vector<Product> exact;
  std::vector<Product> rounded;
  std::vector<Product> copied;
  for (const Product& product : products) {
    DSPACK_CHECK(product.weight.out == products.front().weight.out && product.x.cols == products.front().x.cols,
                 "products of several shapes");
    const uint32_t rows = product.x.rows;
    if (rows == 0) continue;
    const Choice choice = choice_of(product);
    switch (choice.way) {
      case Way::direct:
      case Way::panels: exact.push_back(product); break;
      case Way::copied: copied.push_back(product); break;
      case Way::rounded:
        if (rows <= kMaxRowsTogether) {
          rounded.push_back(product);
          break;
        }
        // Limits the rows at once, so that the layout takes a few MB for any matrix.
        for (uint32_t begin = 0; begin < rows; begin += kRoundedRowsAtOnce)
          multiply_rounded(*choice.ops, {&product, 1}, {begin, std::min(begin + kRoundedRowsAtOnce, rows)});
        break;
      case Way::apart: multiply_apart(product);
    }
  }
  multiply_exactly(exact);
  multiply_copied(copied);
  // As many products at once as most_product_bytes allows for, with the same operations.
  for (std::span<const Product> rest = rounded; !rest.empty();) {
    const RoundedOps* const ops = choice_of(rest.front()).ops;
    size_t count = 0;
    uint64_t rows = 0;
    while (count < rest.size() && choice_of(rest[count]).ops == ops &&
           rows + round_up(rest[count].x.rows, kRoundedGroup) <= kRoundedRowsAtOnce)
      rows += round_up(rest[count++].x.rows, kRoundedGroup);
    multiply_rounded(*ops, rest.first(count), {});
    rest = rest.subspan(count);
  }
}

void Products::multiply_exactly(std::span<const Product> products) {
  std::vector<Product> direct;
  for (const Product& product : products) {
    const uint32_t rows = product.x.rows;
    if (exact_way_of(view_of(product.weight), rows) == Way::direct) {
      direct.push_back(product);
      continue;
    }
    const uint32_t share = share_of(rows, kMaxPanelRows, ops_.panels.group_rows);
    for (uint32_t begin = 0; begin < rows; begin += share)
      multiply_panels(product, {begin, std::min(begin + share, rows)});
  }
  if (!direct.empty()) multiply_directly(direct);
}

/// At most kRoundedRowsAtOnce rows are copied at a time, so that the copies take a few MB for any matrix.
void Products::multiply_copied(std::span<const Product> products) {
  std::vector<Product> parts;
  for (const Product& product : products) {
    for (uint32_t first = 0; first < product.x.rows; first += kRoundedRowsAtOnce)
      parts.push_back(part_of(product, first, std::min(kRoundedRowsAtOnce, product.x.rows - first)));
  }
  for (std::span<Product> rest = parts; !rest.empty();) {
    size_t count = 0;
    uint32_t rows = 0;
    std::vector<uint32_t> first_rows;  // each part's first row among the copies
    for (; count < rest.size(); ++count) {
      const bool is_same = count > 0 && share_inputs(rest[count - 1], rest[count]);
      if (!is_same && count > 0 && rows + rest[count].x.rows > kRoundedRowsAtOnce) break;
      first_rows.push_back(is_same ? first_rows.back() : rows);
      if (!is_same) rows += rest[count].x.rows;
    }
    const uint64_t cols = rest.front().x.cols;
    if (copies_.size() < rows * cols) copies_.resize(rows * cols);
    for (size_t i = 0; i < count; ++i)
      rest[i].rounded_x = copies_.data() + first_rows[i] * cols;
    workers_.split(rows, cols, [&](uint32_t begin, uint32_t end) {
      for (size_t i = 0; i < count; ++i) {
        const Rows& x = rest[i].x;
        for (uint32_t row = std::max(begin, first_rows[i]); row < std::min(end, first_rows[i] + x.rows); ++row) {
          const float* from = floats(x.data) + uint64_t{row - first_rows[i]} * x.stride;
          std::transform(from, from + cols, copies_.data() + row * cols, nearest_bf16);
        }
      }
    });
    multiply_exactly(rest.first(count));
    rest = rest.subspan(count);
  }
}

void Products::multiply_apart(const Product& product) {
  multiply(std::array{Product{.weight = product.weight, .x = product.x, .y = product.y}});
  multiply(std::array{Product{.weight = *product.up, .x = product.x, .y = product.scratch}});
  finish(product, {0, product.x.rows}, {0, product.weight.out});
}

void Products::finish(const Product& product, RowRange rows, RowRange outputs) const {
  if (product.up == nullptr) return;
  ops_.silu_multiply({.to = floats(product.y.data) + outputs.begin,
                      .to_stride = product.y.stride,
                      .from = floats(product.scratch.data) + outputs.begin,
                      .from_stride = product.scratch.stride,
                      .cols = outputs.end - outputs.begin},
                     product.limit, rows);
}

void Products::multiply_directly(std::span<const Product> products) {
  uint64_t cost = 0;
  for (const Product& product : products)
    cost += uint64_t{product.weight.in} * product.x.rows * matrices_of(product);
  workers_.split(products.front().weight.out, cost, [&](uint32_t begin, uint32_t end) {
    for (const Product& product : products) {
      const Inputs x = inputs_of(product);
      for_each_matrix(product, [&](const Weight& weight, const Rows& y) {
        ops_.linear[static_cast<size_t>(weight.coding)]({.matrix = view_of(weight),
                                                         .outputs = {begin, end},
                                                         .x = x.data,
                                                         .x_stride = x.stride,
                                                         .y = floats(y.data) + begin,
                                                         .y_stride = y.stride,
                                                         .rows = product.x.rows});
      });
      finish(product, {0, product.x.rows}, {begin, end});
    }
  });
}

void Products::multiply_panels(const Product& product, RowRange rows) {
  const PanelOps& ops = ops_.panels;
  const Rows& x = product.x;
  const uint32_t count = rows.end - rows.begin;
  const uint32_t block_in = view_of(product.weight).block_in;
  const uint64_t x_bytes = round_up(ops.x_values(count, x.cols, block_in) * sizeof(float), kAlignment);
  std::byte* const memory = memory_of(x_bytes, kPanelScratchBytes);
  auto* const packed = reinterpret_cast<float*>(memory);
  const auto groups = static_cast<uint32_t>(ceil_div(count, ops.group_rows));
  workers_.split(groups, uint64_t{ops.group_rows} * x.cols, [&](uint32_t begin, uint32_t end) {
    const Inputs inputs = inputs_of(product);
    ops.pack({.x = inputs.data + uint64_t{rows.begin} * inputs.stride,
              .x_stride = inputs.stride,
              .rows = count,
              .in = x.cols,
              .block_in = block_in,
              .groups = {begin, end},
              .to = packed});
  });
  Pieces pieces(memory + x_bytes, kPanelScratchBytes);
  const uint64_t cost = uint64_t{x.cols} * count * matrices_of(product);
  workers_.split(product.weight.out, cost, [&](uint32_t begin, uint32_t end) {
    std::byte* const scratch = pieces.take();
    for_each_matrix(product, [&](const Weight& weight, const Rows& y) {
      ops.linear[static_cast<size_t>(weight.coding)]({.matrix = view_of(weight),
                                                      .outputs = {begin, end},
                                                      .x = packed,
                                                      .y = floats(y.data) + uint64_t{rows.begin} * y.stride + begin,
                                                      .y_stride = y.stride,
                                                      .rows = count,
                                                      .scratch = scratch});
    });
    finish(product, rows, {begin, end});
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
  const uint64_t packed = ops.x_values(std::min(rows, kMaxPanelRows), matrix.in, matrix.block_in) * sizeof(float);
  const uint64_t bytes = kPanelScratchBytes + round_up(packed, kAlignment);
  return {memory_of(0, bytes), bytes};
}

void Products::linear(const LinearTask& task, std::byte* scratch) const {
  const PanelOps& ops = ops_.panels;
  const auto coding = static_cast<size_t>(task.matrix.coding);
  if (exact_way_of(task.matrix, task.rows) != Way::panels) return ops_.linear[coding](task);
  const uint32_t share = share_of(task.rows, kMaxPanelRows, ops.group_rows);
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

// All rows of each product; if `only` is given, these rows of the single product.
void Products::multiply_rounded(const RoundedOps& ops, std::span<const Product> products, RowRange only) {
  struct Rounded {
    const Product* product;
    RowRange rows;
    uint64_t at;  // offset in memory; products with the same x share it
    uint32_t first_group, groups;
  };
  std::vector<Rounded> all;
  uint64_t x_bytes = 0;
  uint32_t groups = 0;
  uint64_t cost = 0;
  uint32_t most_rows = 0;
  for (const Product& product : products) {
    const RowRange rows = only.end != 0 ? only : RowRange{0, product.x.rows};
    const uint32_t count = rows.end - rows.begin;
    cost += uint64_t{product.x.cols} * count * matrices_of(product);
    most_rows = std::max(most_rows, count);
    if (!all.empty() && share_inputs(*all.back().product, product) &&
        share_layout(all.back().product->weight, product.weight)) {
      all.push_back({&product, rows, all.back().at, groups, 0});
      continue;
    }
    all.push_back({&product, rows, x_bytes, groups, static_cast<uint32_t>(ceil_div(count, kRoundedGroup))});
    x_bytes += round_up(ops.x_bytes(count, product.x.cols), kAlignment);
    groups += all.back().groups;
  }
  const uint32_t in = products.front().x.cols;
  const uint64_t scratch_bytes = round_up(ops.scratch_bytes(in), kAlignment);
  std::byte* const memory = memory_of(x_bytes, scratch_bytes);
  workers_.split(groups, std::min(most_rows, kRoundedGroup) * uint64_t{in} / 4, [&](uint32_t begin, uint32_t end) {
    for (const Rounded& one : all) {
      const uint32_t first = std::max(begin, one.first_group);
      const uint32_t last = std::min(end, one.first_group + one.groups);
      if (first >= last) continue;
      const Rows& x = one.product->x;
      ops.round({.x = floats(x.data) + uint64_t{one.rows.begin} * x.stride,
                 .x_stride = x.stride,
                 .rows = one.rows.end - one.rows.begin,
                 .in = in,
                 .groups = {first - one.first_group, last - one.first_group},
                 .to = memory + one.at,
                 .is_packed = is_packed(one.product->weight.coding)});
    }
  });
  Pieces pieces(memory + x_bytes, scratch_bytes);
  workers_.split(products.front().weight.out, cost, [&](uint32_t begin, uint32_t end) {
    std::byte* const scratch = pieces.take();
    for (const Rounded& one : all) {
      for_each_matrix(*one.product, [&](const Weight& weight, const Rows& y) {
        ops.linear[static_cast<size_t>(weight.coding)](
            {.matrix = view_of(weight),
             .outputs = {begin, end},
             .x = memory + one.at,
             .y = floats(y.data) + uint64_t{one.rows.begin} * y.stride + begin,
             .y_stride = y.stride,
             .rows = one.rows.end - one.rows.begin,
             .scratch = scratch});
      });
      finish(*one.product, one.rows, {begin, end});
    }
  });
}

}  // namespace dspack::kernels
