// Matrix rows times staged inputs on the tensor cores: a warp's work on 16 or 32 rows while their weights stream by.
// Rounded inputs are in shared memory (staged_inputs.cuh). Weights for up to 8 input rows, where memory is the limit,
// pass through a ring there (tile_stream.cuh); for more rows they are loaded straight into the registers of the lanes
// that multiply them. FP32 sums of a chunk are multiplied by the scales of its block.
#pragma once

#include "kernels/cuda/device/decode.cuh"
#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/linear/packed_tiles.cuh"
#include "kernels/cuda/linear/staged_inputs.cuh"
#include "kernels/cuda/linear/tile_stream.cuh"

namespace dspack::kernels::cuda::device {

// Products of 16 matrix rows with 8 input rows on the tensor cores. The order of columns within a chunk lets every lane
// read 16 bytes of a matrix row at once.
//
// With g = lane / 4 and q = lane % 4 a lane holds, for rows g and g + 8, the 16 bytes that begin at element q * P of
// the chunk (P: elements in 16 bytes; a chunk has 4 P columns), and for input row g the P values that begin at the same
// column. Step s of P / 4 multiplies the lanes' elements 4s .. 4s+3 as if they were columns 2q, 2q+1, 2q+8, 2q+9 of the
// tensor core's tile, both for the matrix and for the inputs, so the sum over columns is the same.

/// Four elements of a lane as two words of BF16: exact for E4M3 and BF16.
template <class Stored>
__device__ __forceinline__ uint2 four_as_bf16(const uint4& bytes, unsigned step) {
  if constexpr (Stored::kCoding == Coding::bf16) {
    return step == 0 ? make_uint2(bytes.x, bytes.y) : make_uint2(bytes.z, bytes.w);
  } else {
    float values[4];
    Stored::decode(bytes, step, values);
    return make_uint2(gpu::floats_to_bf16s(values[0], values[1]), gpu::floats_to_bf16s(values[2], values[3]));
  }
}

/// The inputs of a lane for one chunk: P values of BF16.
template <class Stored>
struct TileInputs {
  uint2 steps[Stored::kPer16 / 4];
};

/// `from`: the lane's values, 16-byte aligned.
template <class Stored>
__device__ __forceinline__ TileInputs<Stored> load_inputs(const uint4* from) {
  TileInputs<Stored> inputs;
#pragma unroll
  for (unsigned i = 0; i < Stored::kPer16 / 8; ++i) {
    const uint4 eight = from[i];
    inputs.steps[2 * i] = make_uint2(eight.x, eight.y);
    inputs.steps[2 * i + 1] = make_uint2(eight.z, eight.w);
  }
  return inputs;
}

/// One decoded chunk of 16 matrix rows (`upper`: row g, `lower`: row g + 8).
template <class Stored>
struct TileWeights {
  uint32_t steps[Stored::kPer16 / 4][4];
};

template <class Stored>
__device__ __forceinline__ TileWeights<Stored> decode_rows(const uint4& upper, const uint4& lower) {
  TileWeights<Stored> weights;
#pragma unroll
  for (unsigned step = 0; step < Stored::kPer16 / 4; ++step) {
    const uint2 first = four_as_bf16<Stored>(upper, step);
    const uint2 second = four_as_bf16<Stored>(lower, step);
    weights.steps[step][0] = first.x;
    weights.steps[step][1] = second.x;
    weights.steps[step][2] = first.y;
    weights.steps[step][3] = second.y;
  }
  return weights;
}

/// sums += weights . inputs, distributed as d in gpu::mma_m16n8k16.
template <class Stored>
__device__ __forceinline__ void multiply_chunk(float (&sums)[4], const TileWeights<Stored>& weights,
                                               const TileInputs<Stored>& inputs) {
#pragma unroll
  for (unsigned step = 0; step < Stored::kPer16 / 4; ++step) {
    const uint32_t b[2] = {inputs.steps[step].x, inputs.steps[step].y};
    gpu::mma_m16n8k16(sums, weights.steps[step], b);
  }
}

/// Columns of a matrix that are multiplied together: some of a row's steps (tile_stream.cuh).
struct ColumnRange {
  uint32_t staged_first;  // first staged column
  uint32_t begin, end;
  uint32_t turn;  // columns between this warp's steps
};

/// kMatrices: matrices that the row tiles belong to (RowsOfTiles).
template <class Stored, unsigned kTokenTiles, unsigned kRowTiles, unsigned kMatrices, bool kFp8>
struct TensorRows {
  static constexpr unsigned kChunk = 4 * Stored::kPer16;  // columns
  using Sums = float[kRowTiles][kTokenTiles][4];          // as in gpu::mma_m16n8k16
  using Of = RowsOfTiles<kMatrices>;

  // The lane's rows: the upper and the lower row of each row tile.
  const uint8_t* data[kRowTiles][2];
  ScalesOf<Stored> scales[kRowTiles][2];
  float of_folded[kMatrices];  // factor_of_folded, if scales are folded

  /// The staged row of a token. Tokens beyond the last of a single tile repeat it; they are computed but not stored.
  static __device__ __forceinline__ uint32_t staged_row(const StagedInputs& inputs, uint32_t token) {
    return kTokenTiles > 1 || token < inputs.rows ? token : inputs.rows - 1;
  }

  /// Finds the tiles' rows from `first` on. Rows beyond the last repeat it; they are computed but not stored.
  __device__ __forceinline__ void find(const Matrix (&matrices)[kMatrices], uint32_t first) {
#pragma unroll
    for (unsigned matrix = 0; matrix < kMatrices; ++matrix)
      of_folded[matrix] = kFoldsScales<Stored> ? factor_of_folded(matrices[matrix]) : 1.0F;
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const Matrix& matrix = matrices[Of::matrix(tile, half)];
        uint32_t row = first + Of::first(tile, half) + gpu::lane_index() / 4;
        row = row < matrix.out ? row : matrix.out - 1;
        data[tile][half] = aligned_row<Stored>(matrix, row);
        scales[tile][half].take(matrix, row);
      }
    }
  }

  /// Scales of the rows' weights in one block.
  __device__ __forceinline__ void take_scales(const Matrix (&matrices)[kMatrices], uint32_t block,
                                              float (&scale)[kRowTiles][2]) const {
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        scale[tile][half] = scales[tile][half].at(matrices[Of::matrix(tile, half)], block);
    }
  }

  __device__ __forceinline__ void take_folded(const Matrix (&matrices)[kMatrices], uint32_t column,
                                              FoldedBytes (&stored)[kRowTiles][2]) const {
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        stored[tile][half] = load_folded(matrices[Of::matrix(tile, half)], scales[tile][half].first, column);
    }
  }

  /// totals += a chunk, whose weights have one scale per row, times the staged `column`.
  __device__ __forceinline__ static void add_chunk(const uint4 (&bytes)[kRowTiles][2],
                                                   const float (&scale)[kRowTiles][2], const StagedInputs& inputs,
                                                   uint32_t column, Sums& totals) {
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    TileWeights<Stored> weights[kRowTiles];
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile)
      weights[tile] = decode_rows<Stored>(bytes[tile][0], bytes[tile][1]);
#pragma unroll
    for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
      const auto values = load_inputs<Stored>(reinterpret_cast<const uint4*>(
          inputs.at(staged_row(inputs, tokens * kTileTokens + group), column + quad * Stored::kPer16)));
      float input_scale[2] = {1.0F, 1.0F};
      if constexpr (kFp8) {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i)
          input_scale[i] =
              inputs.scale(staged_row(inputs, tokens * kTileTokens + 2 * quad + i), column / kRoundedBlock);
      }
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
        float sums[4] = {};
        multiply_chunk<Stored>(sums, weights[tile], values);
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          float& total = totals[tile][tokens][i];
          total = gpu::fma_rn(sums[i], scale[tile][i / 2] * input_scale[i % 2], total);
        }
      }
    }
  }

  /// totals += a chunk of E2M1 codes times the staged `column`, with the scales folded into the weights.
  __device__ __forceinline__ void add_folded_chunk(const Matrix (&matrices)[kMatrices],
                                                   const uint4 (&bytes)[kRowTiles][2],
                                                   const FoldedBytes (&stored)[kRowTiles][2],
                                                   const StagedInputs& inputs, uint32_t column, Sums& totals) const {
    static_assert(!kFp8, "inputs are rounded to E4M3 for weights of E4M3 alone");
    constexpr uint32_t kLow = 0x5410, kHigh = 0x7632;
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    uint2 factors[kRowTiles][2];
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        factors[tile][half] = folded_factors(matrices[Of::matrix(tile, half)], stored[tile][half]);
    }
#pragma unroll
    for (unsigned eight = 0; eight < 4; ++eight) {  // columns of the lane's 32
      uint32_t weights[kRowTiles][2][4];            // for each product, as in gpu::mma_m16n8k16
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          const uint32_t word = word_of(bytes[tile][half], eight);
          const uint32_t factor = eight < 2 ? factors[tile][half].x : factors[tile][half].y;
          weights[tile][0][half] = decode_folded(word, 0, factor);
          weights[tile][0][2 + half] = decode_folded(word, 1, factor);
          weights[tile][1][half] = decode_folded(word, 2, factor);
          weights[tile][1][2 + half] = decode_folded(word, 3, factor);
        }
      }
#pragma unroll
      for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
        const uint4 x = *reinterpret_cast<const uint4*>(
            inputs.at(staged_row(inputs, tokens * kTileTokens + group), column + quad * Stored::kPer16 + eight * 8));
        const uint32_t b[2][2] = {{gpu::prmt(x.x, x.z, kLow), gpu::prmt(x.x, x.z, kHigh)},
                                  {gpu::prmt(x.y, x.w, kLow), gpu::prmt(x.y, x.w, kHigh)}};
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile) {
          float sums[4] = {};
#pragma unroll
          for (unsigned product = 0; product < 2; ++product)
            gpu::mma_m16n8k16(sums, weights[tile][product], b[product]);
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) {
            float& total = totals[tile][tokens][i];
            total = gpu::fma_rn(sums[i], of_folded[Of::matrix(tile, i / 2)], total);
          }
        }
      }
    }
  }

  /// totals += a chunk of packed codes that begins with the matrix's column `first`, times the staged `column`: one run
  /// of 32 columns after another, each with its own scales.
  __device__ __forceinline__ void add_packed_chunk(const Matrix (&matrices)[kMatrices],
                                                   const uint4 (&bytes)[kRowTiles][2],
                                                   const BlockOfRun<Stored>& block_of, uint32_t first,
                                                   const StagedInputs& inputs, uint32_t column, Sums& totals) const {
    static_assert(!kFp8, "inputs are rounded to E4M3 for weights of E4M3 alone");
    const unsigned group = gpu::lane_index() / 4;
    const unsigned quad = gpu::lane_index() % 4;
    const bool is_halved = matrices[0].block_in % kRunColumns != 0 && matrices[0].block_in < matrices[0].in;
    uint4 words[kRowTiles][2];
    RunScales mine[kRowTiles][2];  // scales of the columns that this lane has read
#pragma unroll
    for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        words[tile][half] = exchange_words(bytes[tile][half]);
        mine[tile][half] = take_run_scales<Stored>(matrices[Of::matrix(tile, half)], scales[tile][half], block_of,
                                                   first + quad * kRunColumns, is_halved);
      }
    }
    // Sums of 64 input rows leave no registers for several runs at once.
    [[maybe_unused]] constexpr unsigned kRunsAtOnce = kTokenTiles < 8 ? 4 : 1;
#pragma unroll kRunsAtOnce
    for (unsigned run = 0; run < 4; ++run) {
      const unsigned holder = gpu::lane_index() / 4 * 4 + run;
      uint32_t weights[kRowTiles][2][4];  // for each product
      float scale[kRowTiles][2][2];       // for each half of the rows, and of the columns
#pragma unroll
      for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          uint32_t offset[2] = {};
#pragma unroll
          for (unsigned part = 0; part < 2; ++part) {
            scale[tile][half][part] = gpu::shuffle(mine[tile][half].scale[part], holder);
            if constexpr (kHasZeros<Stored>) offset[part] = gpu::shuffle(mine[tile][half].offset[part], holder);
          }
          const RunWeights decoded = decode_run<Stored>(word_of(words[tile][half], run), offset[quad / 2]);
#pragma unroll
          for (unsigned product = 0; product < 2; ++product) {
            weights[tile][product][half] = decoded.products[product].x;
            weights[tile][product][2 + half] = decoded.products[product].y;
          }
        }
      }
#pragma unroll
      for (unsigned tokens = 0; tokens < kTokenTiles; ++tokens) {
        const uint4 eight = *reinterpret_cast<const uint4*>(
            inputs.at(staged_row(inputs, tokens * kTileTokens + group), column + run * kRunColumns + quad * 8));
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile)
          add_run(weights[tile], scale[tile], is_halved, eight, totals[tile][tokens]);
      }
    }
  }

  /// total += 32 columns. If their halves have different scales, each half is multiplied with the other set to zero.
  __device__ __forceinline__ static void add_run(const uint32_t (&weights)[2][4], const float (&scale)[2][2],
                                                 bool is_halved, const uint4& inputs, float (&total)[4]) {
    const unsigned quad = gpu::lane_index() % 4;
    const uint32_t b[2][2] = {{inputs.x, inputs.y}, {inputs.z, inputs.w}};
    for (unsigned part = 0; part < (is_halved ? 2U : 1U); ++part) {
      const uint32_t mask = is_halved && quad / 2 != part ? 0 : 0xffffffffU;
      float sums[4] = {};
#pragma unroll
      for (unsigned product = 0; product < 2; ++product) {
        uint32_t a[4];
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          a[i] = weights[product][i] & mask;
        gpu::mma_m16n8k16(sums, a, b[product]);
      }
#pragma unroll
      for (unsigned i = 0; i < 4; ++i)
        total[i] = gpu::fma_rn(sums[i], scale[i / 2][part], total[i]);
    }
  }

  /// Other four-bit codes than E2M1 have scales of many types, which are loaded when used.
  static constexpr bool kAsksAhead = kMayHaveScales<Stored> && (!kIsPacked<Stored> || kFoldsScales<Stored>);
  /// The scales of a row in one chunk.
  using ChunkScales = std::conditional_t<kFoldsScales<Stored>, FoldedBytes, float>;
  static __device__ __forceinline__ float from_lane(float value, unsigned lane) {
    return gpu::shuffle(value, lane);
  }
  static __device__ __forceinline__ FoldedBytes from_lane(const FoldedBytes& bytes, unsigned lane) {
    return make_uint2(gpu::shuffle(bytes.x, lane), gpu::shuffle(bytes.y, lane));
  }
  /// Scales of the chunks of four steps: each of the four lanes of a row has loaded one step's. Those of the next four
  /// steps are in flight, since an uncached scale takes longer to arrive than a step to be multiplied.
  struct StepScales {
    struct Values {
      ChunkScales of[2][kRowTiles][2];  // by chunk, row tile, upper and lower row
    };
    Values now;
    Values next;
    unsigned step = 0;  // index within the four
  };
  /// Requests the scales of the warp's first steps, the first of which begins at `column`.
  __device__ __forceinline__ StepScales first_scales(const Matrix (&matrices)[kMatrices],
                                                     const BlockOfRun<Stored>& block_of, uint32_t column,
                                                     uint32_t turn) const {
    StepScales scales_ahead;
    ask_scales(matrices, block_of, column, turn, scales_ahead.now.of);
    ask_scales(matrices, block_of, column + 4 * turn, turn, scales_ahead.next.of);
    return scales_ahead;
  }
  /// Requests the scales of four steps, from the one at `column` on.
  __device__ __forceinline__ void ask_scales(const Matrix (&matrices)[kMatrices], const BlockOfRun<Stored>& block_of,
                                             uint32_t column, uint32_t turn,
                                             ChunkScales (&values)[2][kRowTiles][2]) const {
    if constexpr (kAsksAhead) {
#pragma unroll
      for (unsigned chunk = 0; chunk < 2; ++chunk) {
        const uint32_t first = column + gpu::lane_index() % 4 * turn + chunk * kChunk;
        if constexpr (kFoldsScales<Stored>) {
          take_folded(matrices, first, values[chunk]);
        } else {
          const uint32_t last = matrices[0].in - 1;  // after it: any scale, times zeros
          take_scales(matrices, block_of((first < last ? first : last) / Stored::kPer16), values[chunk]);
        }
      }
    }
  }
  /// Returns the scales of the next step, which is at `column`.
  __device__ __forceinline__ void next_scales(const Matrix (&matrices)[kMatrices], const BlockOfRun<Stored>& block_of,
                                              uint32_t column, uint32_t turn, StepScales& ahead,
                                              ChunkScales (&values)[2][kRowTiles][2]) const {
    if constexpr (!kMayHaveScales<Stored>) {  // all scales are 1, nothing to exchange
#pragma unroll
      for (unsigned chunk = 0; chunk < 2; ++chunk)
        take_scales(matrices, 0, values[chunk]);
    } else if constexpr (kAsksAhead) {
      const unsigned holder = gpu::lane_index() / 4 * 4 + ahead.step;
#pragma unroll
      for (unsigned chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half)
            values[chunk][tile][half] = from_lane(ahead.now.of[chunk][tile][half], holder);
        }
      }
      if (++ahead.step < 4) return;
      ahead.step = 0;
      ahead.now = ahead.next;
      ask_scales(matrices, block_of, column + 5 * turn, turn, ahead.next.of);
    }
  }

  /// Adds the warp's steps, in turn to each of the first kSums of `totals`. `ahead`: from the first step of the row on.
  template <unsigned kSums, class Stream, unsigned kTotals>
  __device__ __forceinline__ void add_steps(const Matrix (&matrices)[kMatrices], const BlockOfRun<Stored>& block_of,
                                            const ColumnRange& range, const StagedInputs& inputs, Stream& stream,
                                            StepScales& ahead, Sums (&totals)[kTotals]) const {
    for (uint32_t at = range.begin; at < range.end; at += kSums * range.turn) {
#pragma unroll
      for (unsigned i = 0; i < kSums; ++i) {
        const uint32_t first = at + i * range.turn;
        if (first >= range.end) break;
        uint4 bytes[2][kRowTiles][2];
        stream.take(bytes);
        ChunkScales scale[2][kRowTiles][2];
        next_scales(matrices, block_of, first, range.turn, ahead, scale);
#pragma unroll
        for (unsigned chunk = 0; chunk < 2; ++chunk) {
          const uint32_t column = first + chunk * kChunk;
          const uint32_t staged = column - range.staged_first;
          if constexpr (kFoldsScales<Stored>) {
            if (column < range.end) add_folded_chunk(matrices, bytes[chunk], scale[chunk], inputs, staged, totals[i]);
          } else if constexpr (kIsPacked<Stored>) {
            if (column < range.end)
              add_packed_chunk(matrices, bytes[chunk], block_of, column, inputs, staged, totals[i]);
          } else {
            // Without a branch, so that the products of both chunks are in flight together: after the row's end both
            // weights and inputs are zeros, since rounded rows are whole steps.
            static_assert(kRoundedBlock % kStepColumns<Stored> == 0);
            add_chunk(bytes[chunk], scale[chunk], inputs, staged, totals[i]);
          }
        }
      }
    }
  }

  /// totals += this warp's steps, without a ring. kAhead: chunks whose weights are in flight before the first is used;
  /// 1 only if the warp takes all steps.
  template <unsigned kAhead>
  __device__ __forceinline__ void add_columns(const Matrix (&matrices)[kMatrices], const ColumnRange& range,
                                              const StagedInputs& inputs, Sums& totals) const {
    const Matrix& matrix = matrices[0];
    const unsigned quad = gpu::lane_index() % 4;
    const BlockOfRun<Stored> block_of(matrix);
    const uint32_t turn = kAhead == 1 ? kChunk : kAhead / 2 * range.turn;
    for (uint32_t at = range.begin; at < range.end; at += turn) {
      uint4 bytes[kAhead][kRowTiles][2];
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        // The last chunk of a row may be shorter; its 16-byte pieces are whole.
        const uint32_t first = at + ahead / 2 * range.turn + ahead % 2 * kChunk;
        const uint32_t column = first + quad * Stored::kPer16;
        const bool is_there = first < range.end && column < matrix.in;
#pragma unroll
        for (unsigned tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
          for (unsigned half = 0; half < 2; ++half) {
            const uint8_t* from = data[tile][half] + uint64_t{column} / Stored::kPer16 * 16;
            bytes[ahead][tile][half] = is_there ? gpu::load_streaming(from) : make_uint4(0, 0, 0, 0);
          }
        }
      }
#pragma unroll
      for (unsigned ahead = 0; ahead < kAhead; ++ahead) {
        const uint32_t column = at + ahead / 2 * range.turn + ahead % 2 * kChunk;
        if (column >= range.end) continue;
        const uint32_t staged = column - range.staged_first;
        if constexpr (kFoldsScales<Stored>) {
          FoldedBytes stored[kRowTiles][2];
          take_folded(matrices, column, stored);
          add_folded_chunk(matrices, bytes[ahead], stored, inputs, staged, totals);
        } else if constexpr (kIsPacked<Stored>) {
          add_packed_chunk(matrices, bytes[ahead], block_of, column, inputs, staged, totals);
        } else {
          float scale[kRowTiles][2];
          take_scales(matrices, block_of(column / Stored::kPer16), scale);
          add_chunk(bytes[ahead], scale, inputs, staged, totals);
        }
      }
    }
  }
};

}  // namespace dspack::kernels::cuda::device
