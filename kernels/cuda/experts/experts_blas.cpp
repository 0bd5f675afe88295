#include "kernels/cuda/experts/experts_blas.h"

#include <algorithm>
#include <cmath>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/tokens/elementwise.h"

namespace dspack::kernels::cuda {
namespace {

/// Streams that multiply gate and up of different experts concurrently: a hundred rows of V3's 2,048 outputs are 16 of
/// the library's tiles, and a card has 132 multiprocessors. (Down's 7,168 outputs are 56 tiles.) If weights are decoded
/// each stream has memory for one matrix, and one stream decodes while the other multiplies.
size_t lanes_for(BlasPath path) {
  return path == BlasPath::bf16_decoded ? 2 : 4;
}

/// Rounds up to few distinct row counts, at little cost: the library's tiles have 64 rows and more.
uint32_t padded_rows(uint32_t count) {
  constexpr uint32_t kFew = 256;
  return static_cast<uint32_t>(round_up(count, count <= kFew ? kSegmentUnit : kPartsPadding));
}

/// Products of a piece, and the addresses of their operands.
class PieceProducts {
 public:
  /// limits: those of one lane.
  PieceProducts(const ExpertsBlasTask& task, Precision precision, const BlasLimits& limits, std::byte* inputs)
      : task_(task),
        gate_up_rows_(blas_weight_rows(task.path, task.experts.form.gate_up, limits)),
        down_rows_(blas_weight_rows(task.path, task.experts.form.down, limits)),
        inputs_(inputs) {
    const ExpertsTask& experts = task.experts;
    scratch_ = lay_out_experts(experts.scratch,
                               {.hidden = hidden(),
                                .inner = inner(),
                                .experts = experts.experts,
                                .top_k = experts.top_k,
                                .rows = experts.tokens,
                                .parts_only = task.parts_only},
                               precision);
  }

  /// Whether a lane has memory for some rows of each weight.
  [[nodiscard]] bool have_room() const { return gate_up_rows_ > 0 && down_rows_ > 0; }
  [[nodiscard]] uint32_t hidden() const { return task_.experts.form.gate_up.in; }
  [[nodiscard]] uint32_t inner() const { return task_.experts.form.gate_up.out; }
  /// [piece_rows, inner]
  [[nodiscard]] RowsAt<float> gated() const { return {.data = scratch_.inner, .stride = inner()}; }
  [[nodiscard]] RowsAt<float> up() const {
    return {.data = scratch_.inner + uint64_t{task_.plan.piece_rows} * inner(), .stride = inner()};
  }
  [[nodiscard]] std::byte* rounded_inner() const { return scratch_.rounded_inner; }
  /// down's results: of one piece, in the memory of gate and up, or of all pieces.
  [[nodiscard]] RowsAt<float> results() const {
    return {.data = task_.parts_only ? scratch_.inner : scratch_.parts, .stride = hidden()};
  }

  [[nodiscard]] BlasProduct gate(const ExpertsPiece& piece, const ExpertSegment& segment) const {
    const auto& planes = task_.entries[segment.entry].gate;
    return product(task_.experts.form.gate_up, planes, inputs_, piece, segment, row_of(gated(), segment.at.first));
  }
  [[nodiscard]] BlasProduct up(const ExpertsPiece& piece, const ExpertSegment& segment) const {
    const auto& planes = task_.entries[segment.entry].up;
    return product(task_.experts.form.gate_up, planes, inputs_, piece, segment, row_of(up(), segment.at.first));
  }
  [[nodiscard]] BlasProduct down(const ExpertsPiece& piece, const ExpertSegment& segment) const {
    const auto& planes = task_.entries[segment.entry].down;
    const uint32_t row = segment.place - (task_.parts_only ? piece.place : 0);
    return product(task_.experts.form.down, planes, rounded_inner(), piece, segment, row_of(results(), row));
  }

 private:
  static RowsAt<float> row_of(RowsAt<float> rows, uint32_t row) {
    return {.data = rows.data + row * rows.stride, .stride = rows.stride};
  }
  BlasProduct product(const MatrixForm& form, const void* const (&planes)[kPlanes], std::byte* inputs,
                      const ExpertsPiece& piece, const ExpertSegment& segment, RowsAt<float> y) const {
    const uint64_t row = segment.at.first;
    const bool is_down = inputs != inputs_;
    const uint64_t code_bytes = task_.path == BlasPath::fp8 ? 1 : 2;
    BlasProduct product{
        .weight = {form},
        .path = task_.path,
        .weight_rows_at_once = is_down ? down_rows_ : gate_up_rows_,
        .rows = segment.at.rows,
        .inputs = inputs + row * form.in * code_bytes,
        .input_scales = scales_behind(inputs, piece.rows, form.in) + row * ceil_div(form.in, kBlasScaleBlock),
        .y = y};
    std::ranges::copy(planes, product.weight.planes);
    return product;
  }

  const ExpertsBlasTask& task_;
  uint32_t gate_up_rows_, down_rows_;
  std::byte* inputs_;
  ExpertsScratch scratch_;
};

void sum_slots(gpu::Stream& stream, const ExpertsBlasTask& task, const RowsAt<float>& parts) {
  const ExpertsTask& experts = task.experts;
  run_placed_sum(stream,
                 {.y = experts.y,
                  .parts = {.data = parts.data, .stride = parts.stride},
                  .weights = experts.weights,
                  .rows = experts.tokens,
                  .cols = experts.form.down.out,
                  .top_k = experts.top_k,
                  .more = experts.more,
                  .adds = experts.adds},
                 task.words + task.plan.places_at);
}

}  // namespace

ExpertsBlasChoice choose_experts_blas(const ExpertForm& form, Precision precision, const BlasCard& card) {
  const BlasPath path = blas_path_of(form.gate_up, precision, card);
  if (path == BlasPath::none || path != blas_path_of(form.down, precision, card)) return {};
  // The library's three products overlap, and either the calls or the memory traffic take longest. Calls are compared
  // for few rows with run_experts_tensor at 57 TFLOP/s; traffic is compared with its time for many rows: measured on an
  // H200 with 512 and 4,096 tokens of V3, it reads an expert at 3.1 TB/s and then multiplies at 93 TFLOP/s (fp8) or 129
  // (bf16), while the library's traffic runs at 2.4 TB/s and hides its products.
  constexpr double kCallSeconds = 3 * 6e-6;
  constexpr double kFewRowsRate = 57e12;
  constexpr double kOwnMemoryRate = 3.1e12;
  constexpr double kLibraryMemoryRate = 2.4e12;
  const double many_rows_rate = path == BlasPath::fp8 ? 93e12 : 129e12;
  const double weights = 3.0 * form.gate_up.in * form.gate_up.out;
  const double stored_bytes = path == BlasPath::bf16 ? 2 : 1;                             // bytes per weight
  const double moved_bytes = path == BlasPath::fp8 ? 1 : path == BlasPath::bf16 ? 2 : 5;  // read, written, read again
  const double of_calls = kCallSeconds / (2 * weights / kFewRowsRate);
  const double of_traffic = (moved_bytes / kLibraryMemoryRate - stored_bytes / kOwnMemoryRate) / (2 / many_rows_rate);
  return {.path = path, .least_rows = static_cast<uint32_t>(std::ceil(std::max(of_calls, of_traffic)))};
}

uint32_t choose_piece_rows(BlasPath path, const ExpertsShape& shape, const BlasLimits& limits) {
  constexpr uint64_t kFew = 256;
  const uint64_t assignments = uint64_t{shape.rows} * shape.top_k;
  uint64_t most = std::min(assignments / 2, limits.input_bytes / blas_input_bytes(path, 1, shape.hidden));
  if (shape.parts_only) {
    const uint64_t results = assignments * shape.inner / std::max(shape.hidden, 1U);
    most = std::min(most, results - std::min<uint64_t>(results, kPartsPadding));
  }
  return static_cast<uint32_t>(most > kFew ? most / kPartsPadding * kPartsPadding : most / kSegmentUnit * kSegmentUnit);
}

SortedAssignments sort_assignments(std::span<const uint32_t> ids, uint32_t experts) {
  SortedAssignments sorted;
  std::vector<uint32_t> first(size_t{experts} + 1, 0);
  for (const uint32_t id : ids) {
    if (id >= experts) return {};
    ++first[id + 1];
  }
  for (uint32_t expert = 0; expert < experts; ++expert)
    first[expert + 1] += first[expert];
  sorted.order.resize(ids.size());
  for (uint32_t expert = 0; expert < experts; ++expert) {
    const uint32_t count = first[expert + 1] - first[expert];
    if (count > 0)
      sorted.groups.push_back({.entry = expert, .parts = std::span(sorted.order).subspan(first[expert], count)});
  }
  for (uint32_t assignment = 0; assignment < ids.size(); ++assignment)
    sorted.order[first[ids[assignment]]++] = assignment;
  return sorted;
}

ExpertsBlasPlan plan_experts_blas(std::span<const ExpertGroup> groups, uint32_t top_k, bool parts_only,
                                  uint32_t piece_rows) {
  ExpertsBlasPlan plan{.pieces = std::vector<ExpertsPiece>(1), .piece_rows = piece_rows, .words = {}};
  std::vector<uint32_t> segments;
  std::vector<uint32_t> order;
  const auto add = [&](uint32_t entry, std::span<const uint32_t> parts) {
    const auto count = launch_count(parts.size());
    const uint32_t rows = padded_rows(count);
    if (plan.pieces.back().rows + rows > piece_rows) {
      const ExpertsPiece& full = plan.pieces.back();
      plan.pieces.push_back(
          {.segments = {}, .first_row = full.first_row + full.rows, .place = full.place + full.count});
    }
    ExpertsPiece& piece = plan.pieces.back();
    piece.segments.push_back(
        {.entry = entry, .place = launch_count(order.size()), .count = count, .at = {piece.rows, rows}});
    for (uint32_t row = 0; row < rows; ++row) {
      plan.words.push_back(row < count ? parts[row] / top_k : kNoSource);
      if (row % kSegmentUnit == 0) segments.insert(segments.end(), {piece.rows, rows});
    }
    piece.rows += rows;
    piece.count += count;
    order.insert(order.end(), parts.begin(), parts.end());
  };
  for (const ExpertGroup& group : groups) {
    const size_t cuts = ceil_div(group.parts.size(), piece_rows);
    const size_t at_once = cuts == 0 ? 1 : ceil_div(group.parts.size(), cuts);
    for (size_t first = 0; first < group.parts.size(); first += at_once)
      add(group.entry, group.parts.subspan(first, std::min(at_once, group.parts.size() - first)));
  }
  plan.segments_at = launch_count(plan.words.size());
  plan.words.insert(plan.words.end(), segments.begin(), segments.end());
  plan.places_at = launch_count(plan.words.size());
  if (parts_only) {
    plan.words.insert(plan.words.end(), order.begin(), order.end());
    return plan;
  }
  plan.words.resize(plan.words.size() + order.size());
  for (uint32_t place = 0; place < order.size(); ++place)
    plan.words[plan.places_at + order[place]] = place;
  return plan;
}

bool LinearBlas::run(gpu::Stream& stream, const ExpertsBlasTask& task) {
  if (!has_workspace(false)) return false;
  drop_old_plans();
  const std::vector<Lane> lanes = this->lanes(stream, lanes_for(task.path));
  BlasLimits of_lane = limits_;
  of_lane.weight_bytes = share_of(limits_.weight_bytes, lanes.size());
  const PieceProducts products(task, precision_, of_lane, inputs());
  if (!products.have_room()) return false;
  for (const ExpertsPiece& piece : task.plan.pieces) {
    for (const ExpertSegment& segment : piece.segments) {
      if (!is_planned(lanes[0], products.gate(piece, segment), false) ||
          !is_planned(lanes[0], products.down(piece, segment), false))
        return false;
    }
  }
  const auto* segments = reinterpret_cast<const BlasSegment*>(task.words + task.plan.segments_at);
  for (const ExpertsPiece& piece : task.plan.pieces) {
    RoundInputsTask round{.x = task.experts.x,
                          .rows = piece.rows,
                          .in = products.hidden(),
                          .source = task.words + piece.first_row,
                          .segments = segments + piece.first_row / kSegmentUnit};
    round_inputs(stream, task.path, round, inputs());
    fork(lanes);
    bool is_done = true;
    for (size_t i = 0; i < piece.segments.size() && is_done; ++i) {
      const Lane& lane = lanes[i % lanes.size()];
      is_done = multiply(lane, products.gate(piece, piece.segments[i])) &&
                multiply(lane, products.up(piece, piece.segments[i]));
    }
    join(lanes);
    if (!is_done) return false;
    round.source = nullptr;
    round.x = {.data = products.gated().data, .stride = products.inner()};
    round.up = {.data = products.up().data, .stride = products.inner()};
    round.limit = task.experts.form.limit;
    round.in = products.inner();
    round_inputs(stream, task.path, round, products.rounded_inner());
    for (const ExpertSegment& segment : piece.segments) {
      if (!multiply(lanes[0], products.down(piece, segment))) return false;
    }
    if (!task.parts_only) continue;
    run_scatter_rows(stream, {.to = task.experts.parts,
                              .from = {.data = products.results().data, .stride = products.hidden()},
                              .index = task.words + task.plan.places_at + piece.place,
                              .rows = piece.count,
                              .cols = products.hidden()});
  }
  if (!task.parts_only) sum_slots(stream, task, products.results());
  return true;
}

}  // namespace dspack::kernels::cuda
