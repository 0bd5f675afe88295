// The routed experts of many tokens by cuBLASLt, for precision modes bf16 and fp8 (linear_blas.h): three products for
// each expert, of all rows that it has.
//
// The host knows the assignments of each expert. Sorted by expert they are cut into pieces, whose inputs have room in
// the workspace. Of a piece
//   * the inputs are gathered and rounded, each expert's rows one after the other;
//   * gate and up of each expert, some of them at once on streams of their own; SiLU and rounding of all rows;
//   * down of each expert, to rows in the order of the assignments as they are sorted.
// The number of rows of a product is rounded up, so that there are few shapes; what is too much is zeros, and down's
// rows of it are where the next expert's come afterwards. Then the sum over slots in the router's order, or each row
// goes to its assignment's place. Nothing depends on which experts share a piece: how an expert's rows are cut follows
// from their number and from the shape of the call. Threads: pure functions. Lifetime: plain values; tasks borrow.
// Errors: none; groups have been checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/experts.h"
#include "kernels/cuda/linear_blas.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

struct ExpertsBlasChoice {
  BlasPath path = BlasPath::none;
  uint32_t least_rows = 0;  // of an expert; with fewer, run_experts_tensor takes less time
};
/// How the library multiplies by such experts, if it does. Pure.
[[nodiscard]] ExpertsBlasChoice choose_experts_blas(const ExpertForm& form, Precision precision, const BlasCard& card);

/// Assignments that one plan has at most: what it has for the device is less than kIndexSpaceBytes.
inline constexpr uint32_t kMostBlasAssignments = 1 << 16;

/// Rows that a piece has at most, a multiple of kSegmentUnit; 0: there is no room for any. Its inputs fit the
/// workspace, gate and up the place of ExpertsScratch::inner, and of parts only down's result, too, which comes after
/// them. Pure.
[[nodiscard]] uint32_t choose_piece_rows(BlasPath path, const ExpertsShape& shape, const BlasLimits& limits);

/// Assignments of each expert, in the order of the experts and ascending.
struct SortedAssignments {
  std::vector<uint32_t> order;
  std::vector<ExpertGroup> groups;  // borrow `order`; of experts that have some
};
/// No groups: an id is not below `experts`.
[[nodiscard]] SortedAssignments sort_assignments(std::span<const uint32_t> ids, uint32_t experts);

/// Rows of one expert in a piece.
struct ExpertSegment {
  uint32_t entry = 0;
  uint32_t place = 0;  // of the first one among all assignments of the plan, sorted by expert
  uint32_t count = 0;
  BlasSegment at;  // in the piece, with what `count` is rounded up by
};
struct ExpertsPiece {
  std::vector<ExpertSegment> segments;
  uint32_t first_row = 0;  // rows of the pieces before it
  uint32_t rows = 0;
  uint32_t place = 0;  // of the first segment
  uint32_t count = 0;  // assignments
};

struct ExpertsBlasPlan {
  std::vector<ExpertsPiece> pieces;
  uint32_t piece_rows = 0;
  /// What goes to the device: of each row of the pieces which token it is (RoundInputsTask::source), then their
  /// BlasSegments, then the place of each assignment, or of parts only the assignment of each place.
  std::vector<uint32_t> words;
  uint32_t segments_at = 0;
  uint32_t places_at = 0;
};
/// groups: with assignments, and unless it is for parts only, all of a call. piece_rows: of choose_piece_rows, not 0.
[[nodiscard]] ExpertsBlasPlan plan_experts_blas(std::span<const ExpertGroup> groups, uint32_t top_k, bool parts_only,
                                                uint32_t piece_rows);

struct ExpertsBlasTask {
  const ExpertsTask& experts;            // of parts only: `parts` and not y
  std::span<const ExpertEntry> entries;  // of its table, on the host
  bool parts_only = false;
  BlasPath path = BlasPath::none;
  const ExpertsBlasPlan& plan;
  const uint32_t* words = nullptr;  // the plan's, on the device
};

}  // namespace dspack::kernels::cuda
