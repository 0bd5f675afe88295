// The routed experts of many tokens by cuBLASLt, for precision modes bf16 and fp8 (linear_blas.h): three products per
// expert, each of all of its rows.
//
// The host knows the assignments of each expert. They are sorted by expert and divided into pieces whose inputs fit the
// workspace. For each piece
//   * the inputs are gathered and rounded, each expert's rows contiguous;
//   * gate and up of each expert are multiplied, several experts at once on different streams;
//   * SiLU of all rows is computed and rounded;
//   * down of each expert is multiplied, to rows in the sorted order of the assignments.
// The number of rows of a product is rounded up, so that few shapes occur. Padding rows are zeros; down's results for
// them are overwritten by the next expert's rows. Finally rows are summed over slots in the router's order, or each row
// goes to its assignment's place. No result depends on which experts share a piece: the division of an expert's rows
// follows from their number and the shape of the call. Threads: pure functions. Lifetime: plain values; tasks borrow.
// Errors: none; groups have been checked.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/linear/linear_blas.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

struct ExpertsBlasChoice {
  BlasPath path = BlasPath::none;
  uint32_t least_rows = 0;  // rows of an expert; with fewer, run_experts_tensor is faster
};
/// How the library multiplies by such experts, if at all. Pure.
[[nodiscard]] ExpertsBlasChoice choose_experts_blas(const ExpertForm& form, Precision precision, const BlasCard& card);

/// Most assignments of one plan: its data for the device is smaller than kIndexSpaceBytes.
inline constexpr uint32_t kMaxBlasAssignments = 1 << 16;

/// Most rows of a piece, a multiple of kSegmentUnit; 0: no room. The inputs fit the workspace, gate and up fit
/// ExpertsScratch::inner, and for parts only so does down's result, which overwrites them. Pure.
[[nodiscard]] uint32_t choose_piece_rows(BlasPath path, const ExpertsShape& shape, const BlasLimits& limits);

/// Assignments of each expert, in order of experts and ascending.
struct SortedAssignments {
  std::vector<uint32_t> order;
  std::vector<ExpertGroup> groups;  // borrow `order`; experts with assignments only
};
/// Returns no groups if an id is not below `experts`.
[[nodiscard]] SortedAssignments sort_assignments(std::span<const uint32_t> ids, uint32_t experts);

/// Rows of one expert in a piece.
struct ExpertSegment {
  uint32_t entry = 0;
  uint32_t place = 0;  // index of the first among all assignments of the plan, sorted by expert
  uint32_t count = 0;
  BlasSegment at;  // in the piece, including the rows that pad `count`
};
struct ExpertsPiece {
  std::vector<ExpertSegment> segments;
  uint32_t first_row = 0;  // total rows of the pieces before it
  uint32_t rows = 0;
  uint32_t place = 0;  // that of the first segment
  uint32_t count = 0;  // number of assignments
};

struct ExpertsBlasPlan {
  std::vector<ExpertsPiece> pieces;
  uint32_t piece_rows = 0;
  /// Data for the device: for each row of the pieces its token (RoundInputsTask::source), then their BlasSegments, then
  /// the place of each assignment, or for parts only the assignment at each place.
  std::vector<uint32_t> words;
  uint32_t segments_at = 0;
  uint32_t places_at = 0;
};
/// groups: the experts with assignments; all of a call, unless for parts only. piece_rows: from choose_piece_rows, not
/// 0.
[[nodiscard]] ExpertsBlasPlan plan_experts_blas(std::span<const ExpertGroup> groups, uint32_t top_k, bool parts_only,
                                                uint32_t piece_rows);

struct ExpertsBlasTask {
  const ExpertsTask& experts;            // for parts only: `parts` and not y
  std::span<const ExpertEntry> entries;  // experts.table, on the host
  bool parts_only = false;
  BlasPath path = BlasPath::none;
  const ExpertsBlasPlan& plan;
  const uint32_t* words = nullptr;  // the plan's, on the device
};

}  // namespace dspack::kernels::cuda
