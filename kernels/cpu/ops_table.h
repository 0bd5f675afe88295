// The operations of one instruction set: a table of functions over pointers and ranges, and the selection of a table.
//
// Every table computes the same bits (NaN payloads may differ). All arithmetic runs on 16 lanes regardless of register
// width, every fused multiply-add is explicit, and the orders below are fixed, so no result depends on the instruction
// set, the tile, or the number of rows or threads:
//   dot product   lane l sums the terms i = l (mod 16) of one scale block, ascending in i, from zero, by fma; the 16
//                 totals then take fma(block sum, scale, total), block by block; last, lanes are added 8 apart, 4,
//                 2, 1. A ragged end is padded with zeros.
//   column sum    one chain per column: fma over the rows of a scale block, ascending, then fma with the scale.
//   index scores  fma over the dimensions for each head, fma over the heads; no sum over lanes (index.inl.h)
//   attention     blocks of 64 positions, counted from the row's first visible position, with a running maximum.
// Threads: the functions are pure except for their outputs. Lifetime: pointers are borrowed for the call; pointers to
// FP32 need only 4-byte alignment. Errors: none; the queue has checked shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "format/base/result.h"
#include "kernels/latent_rows.h"
#include "kernels/weight.h"

namespace dspack::kernels {

/// Half-open range of rows, columns or items.
struct RowRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

/// A weight matrix in host memory. Always has a scale: an unscaled matrix points at 1.0 as a single block.
struct MatrixView : WeightAt<const std::byte*> {
  uint32_t scale_stride = 0;  // scales per row of scales
};

/// y[r * y_stride + o - outputs.begin] = dot(x row r, matrix row o) for every o in outputs.
struct LinearTask {
  MatrixView matrix;
  RowRange outputs;
  const float* x = nullptr;
  uint64_t x_stride = 0;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t rows = 0;
};

/// Most rows of x in one PanelTask.
inline constexpr uint32_t kMaxPanelRows = 96;

/// Packs groups of PanelOps::group_rows rows of x [rows, in] for products with matrices whose scale blocks have
/// `block_in` columns. `to`: start of the memory for all groups.
struct PackingTask {
  const float* x = nullptr;
  uint64_t x_stride = 0;
  uint32_t rows = 0;
  uint32_t in = 0;
  uint32_t block_in = 0;
  RowRange groups;
  float* to = nullptr;
};

/// As LinearTask, with packed x of at most kMaxPanelRows rows.
struct PanelTask {
  MatrixView matrix;
  RowRange outputs;
  const float* x = nullptr;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t rows = 0;
  std::byte* scratch = nullptr;  // kPanelScratchBytes, 64-byte aligned, used by this call only
};

/// Enough for every instruction set (panels.inl.h).
inline constexpr uint64_t kPanelScratchBytes = 1100ULL << 10;

/// Exact products of many rows.
struct PanelOps {
  uint32_t group_rows;
  uint64_t (*x_values)(uint32_t rows, uint32_t in, uint32_t block_in);
  void (*pack)(const PackingTask& task);
  void (*linear[kCodings])(const PanelTask& task);  // by the weight's coding
};

/// y[r * y_stride + j - columns.begin] = sum over d of x[r * x_stride + d - matrix_rows.begin] * matrix[d, j], for
/// every j in columns, d over matrix_rows.
struct ColumnsTask {
  MatrixView matrix;
  RowRange matrix_rows;
  RowRange columns;
  const float* x = nullptr;
  uint64_t x_stride = 0;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t rows = 0;
};

/// Columns of rounded x that are laid out together.
inline constexpr uint32_t kRoundedStep = 32;
/// Rounded x may be padded to a multiple of this many columns.
inline constexpr uint32_t kRoundedPadding = 128;
/// Rows of x that are rounded and laid out together.
inline constexpr uint32_t kRoundedGroup = 16;

/// Rounds groups of rows of x [rows, in] to BF16 or to eight bits, in the layout that the same RoundedOps multiply.
/// `to`: start of all rows.
struct RoundingTask {
  const float* x = nullptr;
  uint64_t x_stride = 0;
  uint32_t rows = 0;
  uint32_t in = 0;
  RowRange groups;
  std::byte* to = nullptr;  // 64-byte aligned
  bool is_packed = false;   // whether for weights of packed codes
};

/// As LinearTask, with rounded x. Scale blocks are whole steps of kRoundedStep columns, or whole rows; scales of codes
/// that are not packed are FP32.
struct RoundedTask {
  MatrixView matrix;
  RowRange outputs;
  const std::byte* x = nullptr;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t rows = 0;
  std::byte* scratch = nullptr;  // scratch_bytes, 64-byte aligned, used by this call only
};

/// Products of rounded x, in a layout of their own. The layout for codes of eight bits and more is another than that
/// for packed codes.
struct RoundedOps {
  uint64_t (*x_bytes)(uint32_t rows, uint32_t in);
  void (*round)(const RoundingTask& task);
  uint64_t (*scratch_bytes)(uint32_t in);
  void (*linear[kCodings])(const RoundedTask& task) = {};  // by the weight's coding; nullptr: is not supported
  uint64_t (*multiply_adds)(uint64_t rounds);              // as CpuOps::multiply_adds
};

struct NormTask {
  const float* x = nullptr;
  uint64_t x_stride = 0;
  const float* gain = nullptr;  // nullptr: 1
  float epsilon = 0;
  float* y = nullptr;
  uint64_t y_stride = 0;
  uint32_t cols = 0;
};

/// Two operands of the same shape; `to` is read and written.
struct PairTask {
  float* to = nullptr;
  uint64_t to_stride = 0;
  const float* from = nullptr;
  uint64_t from_stride = 0;
  uint32_t cols = 0;
};

struct CombineTask {
  float* y = nullptr;
  uint64_t y_stride = 0;
  const float* parts = nullptr;
  uint64_t parts_stride = 0;
  const float* weights = nullptr;  // [rows, top_k]
  uint32_t top_k = 0;
  uint32_t cols = 0;
};

/// Positions per tile of index keys: 64 x 128 values are 32 KB, the size of an L1 cache.
inline constexpr uint32_t kIndexTile = 64;

/// scores[r, j] = sum over h of weights[r, h] * max(queries[r, h] . keys[j], 0).
struct IndexScoresTask {
  const float* queries = nullptr;   // [rows, heads, dim]
  const float* weights = nullptr;   // [rows, heads]
  const std::byte* keys = nullptr;  // [positions, dim], in the function's type
  const float* scales = nullptr;    // [positions]; nullptr: 1
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t positions = 0;
  float* tile = nullptr;    // [dim, kIndexTile], used by this call only
  float* scores = nullptr;  // [rows, scores_stride]; padded to whole vectors of 16, whose padding may be overwritten
  uint64_t scores_stride = 0;
};

/// Positions that attention processes at once: for V3, 64 x 576 values are 147 KB and stay in the L2 cache.
inline constexpr uint32_t kAttendPositions = 64;

/// MlaAttendArgs on host pointers. An item is one head of one row: item = row * heads + head.
struct AttendTask {
  const float* query_latent = nullptr;
  const float* query_rope = nullptr;
  const std::byte* cache = nullptr;  // in the function's type
  float* out = nullptr;
  uint32_t heads = 0;
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint64_t rope_row_stride = 0;
  uint64_t rope_head_stride = 0;
  uint32_t first_position = 0;
  float scale = 0;
  Fp8Row fp8_row = {};     // layout of an FP8 cache's rows
  float* block = nullptr;  // [kAttendPositions, latent_dim + rope_dim]: decoded or gathered rows
  // If there is a choice (kernels::Choice), row r sees counts[r] positions, chosen[r * most_chosen ..]; else nullptr.
  const uint32_t* chosen = nullptr;
  const uint32_t* counts = nullptr;
  uint32_t most_chosen = 0;
  // For WindowAttendArgs: `cache` is the ring, and `chosen` holds entries; else 0 and nullptr.
  uint32_t window = 0;
  uint32_t ring_rows = 0;
  const std::byte* entries = nullptr;
  uint32_t every = 0;
  const float* sinks = nullptr;  // [heads]
};

/// Groups of values to codes (kernels/quantise_groups.h). Adds to both sums.
struct QuantiseTask {
  const float* values = nullptr;
  uint64_t groups = 0;
  uint8_t* codes = nullptr;
  void* scales = nullptr;  // aligned as their type: BF16 of integers, E4M3 of NVFP4
  float global = 1;        // NVFP4's global scale, a divisor
  double squared_error = 0;
  double squared_value = 0;
};

/// One instruction set. No pointer is null. make_table (table.inl.h) fills it for every vector type; sets that extend
/// another copy its table and replace products. So an operation over a vector type needs no change in a set's file.
struct CpuOps {
  std::string_view name;                             // "scalar", "neon", "avx2", "avx512", "vbmi", "amx", ...
  void (*linear[kCodings])(const LinearTask& task);  // by the weight's coding
  PanelOps panels;                                   // the same bits
  void (*columns[kCodings])(const ColumnsTask& task);
  void (*rms_norm)(const NormTask& task, RowRange rows);
  void (*silu_multiply)(const PairTask& task, float limit, RowRange rows);
  void (*add)(const PairTask& task, RowRange rows);
  void (*combine)(const CombineTask& task, RowRange rows);
  void (*attend_f32)(const AttendTask& task, RowRange items);
  void (*attend_bf16)(const AttendTask& task, RowRange items);
  void (*attend_f16)(const AttendTask& task, RowRange items);
  void (*attend_f8_e4m3)(const AttendTask& task, RowRange items);
  void (*window_attend_f32)(const AttendTask& task, RowRange items);
  void (*window_attend_bf16)(const AttendTask& task, RowRange items);
  void (*window_attend_f16)(const AttendTask& task, RowRange items);
  void (*index_f32)(const IndexScoresTask& task);
  void (*index_bf16)(const IndexScoresTask& task);
  void (*index_f16)(const IndexScoresTask& task);
  void (*index_f8_e4m3)(const IndexScoresTask& task);
  /// Precision bf16: the bits of `linear` for rounded x, faster. nullptr: `linear` and `panels` are used.
  const RoundedOps* bf16 = nullptr;
  /// Precision amx, whose order of sums is the tiles' own (amx.cpp). nullptr: there are no tiles.
  const RoundedOps* tiles = nullptr;
  /// Precision int8 (int8.inl.h), with the same bits in every table.
  const RoundedOps* int8 = nullptr;
  void (*quantise_int4)(QuantiseTask& task);
  void (*quantise_int8)(QuantiseTask& task);
  void (*quantise_nvfp4)(QuantiseTask& task);
  /// Runs `rounds` rounds of peak arithmetic (peak.inl.h). Returns the number of multiplications.
  uint64_t (*multiply_adds)(uint64_t rounds);
};

/// Products of E4M3 that replace a table's own.
struct E4m3Ops {
  void (*linear)(const LinearTask& task);
  void (*panels)(const PanelTask& task);
  void (*columns)(const ColumnsTask& task);
};

/// Instruction sets of the processor, each including everything that the table of that name needs. Every AArch64 has
/// NEON.
struct CpuFeatures {
  bool neondot = false;     // NEON's dot products of bytes
  bool avx2 = false;        // with FMA and F16C
  bool avxvnni = false;     // AVX-VNNI, with the above
  bool avx512 = false;      // F, BW, VL and DQ, with AVX2
  bool avx512vnni = false;  // with the above
  bool vbmi = false;        // AVX-512's VBMI, with the above
  bool avx512bf16 = false;  // with the above
  bool amx = false;         // BF16 tiles, with the above, if the kernel grants the tile state
};

/// A table in this program, and whether a processor can run it.
struct InstructionSet {
  const CpuOps* ops = nullptr;
  bool (*runs_on)(CpuFeatures have) = nullptr;
};

[[nodiscard]] CpuFeatures detect_cpu_features();

/// All tables of this program, widest first; the last is scalar and runs anywhere.
[[nodiscard]] std::span<const InstructionSet> instruction_sets();

/// The table called `forced`, or if that is empty the widest that runs. Pure. Errors: unsupported.
[[nodiscard]] Result<const CpuOps*> select_cpu_ops(CpuFeatures have, std::string_view forced);

/// The widest table that this processor runs.
[[nodiscard]] const CpuOps& widest_ops();

extern const CpuOps kScalarOps;
extern const CpuOps kAvx2Ops;                // only where CMake adds avx2.cpp
extern const CpuOps kAvx512Ops;              // only where CMake adds avx512.cpp
extern const CpuOps kNeonOps;                // only where CMake adds neon.cpp
extern const RoundedOps kNeonDotInt8;        // only where CMake adds neondot.cpp
extern const RoundedOps kAvxVnniInt8;        // only where CMake adds avxvnni.cpp
extern const RoundedOps kAvx512VnniInt8;     // only where CMake adds avx512vnni.cpp
extern const E4m3Ops kVbmiE4m3;              // only where CMake adds vbmi.cpp
extern const RoundedOps kAvx512Bf16Rounded;  // only where CMake adds avx512bf16.cpp
extern const RoundedOps kAmxRounded;         // only where CMake adds amx.cpp

}  // namespace dspack::kernels
