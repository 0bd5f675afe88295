// Operands of attention on tensor cores in shared memory: rows of queries, keys and weights in BF16. Loads queries,
// rounded or split into terms, and keys from each storage form of a cache.
//
// A row begins at a multiple of 128 bytes; its 16-byte pieces are swizzled within each 128: piece p of row r is at p ^
// (r % 8). So eight rows at one column (ldmatrix_x4) touch all 32 banks once, and so do eight pieces of one row
// (stores).
#pragma once

#include "kernels/cuda/attention/attend.cuh"
#include "kernels/cuda/device/decode.cuh"

namespace dspack::kernels::cuda::device {

inline constexpr unsigned kPieceValues = 8;  // BF16 values in 16 bytes

/// Byte offset of piece `piece` of row `row`.
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t row_bytes, uint32_t piece) {
  return row * row_bytes + (piece ^ (row % 8)) * 16;
}

__device__ __forceinline__ uint4 round_piece(const float (&values)[kPieceValues]) {
  return make_uint4(gpu::floats_to_bf16s(values[0], values[1]), gpu::floats_to_bf16s(values[2], values[3]),
                    gpu::floats_to_bf16s(values[4], values[5]), gpu::floats_to_bf16s(values[6], values[7]));
}

/// Splits two values into BF16 terms that add up to them, largest first. Three terms hold all 24 bits of an FP32 value:
/// a term rounds to the nearest 8 bits, so the remainder has 8 fewer. One term is the rounded value.
template <unsigned kTerms>
__device__ __forceinline__ void split_pair(float low, float high, uint32_t (&terms)[kTerms]) {
#pragma unroll
  for (unsigned term = 0; term < kTerms; ++term) {
    terms[term] = gpu::floats_to_bf16s(low, high);
    if (term + 1 == kTerms) break;
    low -= gpu::bits_to_float(terms[term] << 16U);  // exact
    high -= gpu::bits_to_float(terms[term] & 0xffff0000U);
  }
}

/// Offsets within 128 bytes of a row, of pieces 0, 2, 4 and 6, or with `odd` = 1 of the pieces after them. Every
/// further 128 bytes have the same offsets.
struct Pieces {
  uint32_t at[4];
  __device__ __forceinline__ Pieces(uint32_t row, uint32_t odd) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      at[i] = swizzled(row % 8, 0, i * 2 + odd);
  }
};

/// Loads the queries of a block as terms, [kTerms, kCount, row bytes]; after the last query it repeats that one, whose
/// scores there are unused. Some lanes of a warp share a row, and request half of it or all before they store the first
/// piece.
template <unsigned kCount, unsigned kTerms, unsigned kThreads>
__device__ __forceinline__ void load_tensor_queries(const AttendRun& run, const BlockQueries& queries,
                                                    unsigned char* to) {
  constexpr unsigned kLanes = kThreads / kCount;  // lanes per row: 4 or 8
  constexpr unsigned kRows = gpu::kWarpThreads / kLanes;
  constexpr unsigned kAhead = 9;  // pieces in flight
  static_assert(kLanes == 4 || kLanes == 8);
  // Eight lanes that store together have pieces of one row, or of rows four apart, and so touch all banks once.
  const unsigned group = gpu::lane_index() / kLanes;
  const uint32_t row = gpu::warp_index() * kRows + (kLanes == 4 ? group % 2 * 4 + group / 2 : group);
  const uint32_t last = queries.end - 1;
  const uint32_t query = queries.first + row < last ? queries.first + row : last;
  const uint32_t pieces = run.key_dim / kPieceValues;
  const QueryRow values_of(run, query);
  const bool are_whole = has_whole_pieces(run, kPieceValues);
  for (uint32_t first = gpu::lane_index() % kLanes; first < pieces; first += kLanes * kAhead) {
    float4 values[kAhead][2];
    if (are_whole) {
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t piece = first + i * kLanes < pieces ? first + i * kLanes : first;
        const float* from = values_of.at(piece * kPieceValues);
        values[i][0] = gpu::load_four(from);
        values[i][1] = gpu::load_four(from + 4);
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t piece = first + i * kLanes < pieces ? first + i * kLanes : first;
        const auto four = [&](uint32_t column) {
          return make_float4(*values_of.at(column), *values_of.at(column + 1), *values_of.at(column + 2),
                             *values_of.at(column + 3));
        };
        values[i][0] = four(piece * kPieceValues);
        values[i][1] = four(piece * kPieceValues + 4);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t piece = first + i * kLanes;
      if (piece >= pieces) break;
      const float4& low = values[i][0];
      const float4& high = values[i][1];
      uint32_t pairs[4][kTerms];
      split_pair(low.x, low.y, pairs[0]);
      split_pair(low.z, low.w, pairs[1]);
      split_pair(high.x, high.y, pairs[2]);
      split_pair(high.z, high.w, pairs[3]);
#pragma unroll
      for (unsigned term = 0; term < kTerms; ++term) {
        *reinterpret_cast<uint4*>(to + swizzled(term * kCount + row, kTensorRowBytes, piece)) =
            make_uint4(pairs[0][term], pairs[1][term], pairs[2][term], pairs[3][term]);
      }
    }
  }
}

/// A tile of keys in shared memory.
struct KeyTile {
  unsigned char* rows;
  [[nodiscard]] __device__ __forceinline__ uint4* at(uint32_t row, uint32_t piece) const {
    return reinterpret_cast<uint4*>(rows + swizzled(row, kTensorRowBytes, piece));
  }
};

// Keys of one storage form: load(run, map, first, end, tile), called by every thread of the block, loads the keys of
// kPositions positions from `first` on, zeros from `end` on. row_bytes: bytes of a row in the cache. kStaged: copy
// instead loads them in stored form, and decode decodes them from there.

/// A BF16 cache with 16-byte aligned rows, copied unchanged: eight lanes per row, 128 bytes at a time.
template <uint32_t kCount>
struct CopyKeys {
  static constexpr uint32_t kPositions = kCount;
  static constexpr bool kStaged = false;
  static __device__ __forceinline__ uint32_t row_bytes(const AttendRun& run) { return run.key_dim * 2; }
  static __device__ __forceinline__ void load(const AttendRun& run, const PositionMap& map, uint32_t first,
                                              uint32_t end, const KeyTile& tile) {
    constexpr unsigned kLanes = 8;
    constexpr unsigned kTurns = kTensorKeyDim / kPieceValues / kLanes;
    const uint32_t piece = gpu::thread_index() % kLanes;
    const uint32_t pieces = run.key_dim / kPieceValues;
    for (uint32_t row = gpu::thread_index() / kLanes; row < kPositions; row += gpu::block_threads() / kLanes) {
      const bool is_there = first + row < end;
      const uint64_t place = is_there ? map.at(first + row) : 0;
      const auto* from = static_cast<const uint4*>(run.cache) + place * pieces + piece;
      uint4* to = tile.at(row, piece);
#pragma unroll
      for (unsigned turn = 0; turn < kTurns; ++turn) {
        if (turn * kLanes + piece < pieces) gpu::cp_async(to + turn * kLanes, from + turn * kLanes, is_there);
      }
    }
  }
};

/// Any other cache of FP32, BF16 or F16: eight lanes per row, 16 bytes at a time if rows are 16-byte aligned, else
/// value by value.
template <class Stored>
struct RoundKeys {
  static constexpr uint32_t kPositions = kTensorPositions;
  static constexpr bool kStaged = false;
  static __device__ __forceinline__ uint32_t row_bytes(const AttendRun& run) {
    return run.key_dim * (16 / Stored::kPer16);
  }
  static __device__ __forceinline__ void load(const AttendRun& run, const PositionMap& map, uint32_t first,
                                              uint32_t end, const KeyTile& tile) {
    const bool is_aligned = reinterpret_cast<uint64_t>(run.cache) % 16 == 0;
    for (uint32_t row = gpu::thread_index() / kLanes; row < kPositions; row += gpu::block_threads() / kLanes) {
      const bool is_there = first + row < end;
      const uint64_t at = (is_there ? map.at(first + row) : 0) * uint64_t{run.key_dim};
      if (is_aligned) {
        round_words(run, at, is_there, row, tile);
      } else {
        round_values(run, at, is_there, row, tile);
      }
    }
  }

 private:
  static constexpr unsigned kLanes = 8;
  static constexpr unsigned kWords = kPieceValues / Stored::kPer16;  // 16-byte words in a piece
  static constexpr unsigned kTurns = kTensorKeyDim / kPieceValues / kLanes;
  static constexpr unsigned kAhead = kTurns / 2 + 1;  // pieces in flight

  /// Rounds the row that begins with element `at` of the cache.
  static __device__ __forceinline__ void round_words(const AttendRun& run, uint64_t at, bool is_there, uint32_t row,
                                                     const KeyTile& tile) {
    const auto* words = static_cast<const uint4*>(run.cache) + at / Stored::kPer16;
    const uint32_t pieces = run.key_dim / kPieceValues;
#pragma unroll 1
    for (uint32_t first = gpu::thread_index() % kLanes; first < pieces; first += kAhead * kLanes) {
      uint4 ahead[kAhead][kWords];
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t piece = first + i * kLanes;
#pragma unroll
        for (unsigned word = 0; word < kWords; ++word)
          ahead[i][word] = is_there && piece < pieces ? words[piece * kWords + word] : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        const uint32_t piece = first + i * kLanes;
        if (piece >= pieces) break;
        float values[kPieceValues];
#pragma unroll
        for (unsigned four = 0; four < 2; ++four) {
          float decoded[4];
          Stored::decode(ahead[i][four / Stored::kQuarters], four % Stored::kQuarters, decoded);
#pragma unroll
          for (unsigned j = 0; j < 4; ++j)
            values[four * 4 + j] = decoded[j];
        }
        *tile.at(row, piece) = round_piece(values);
      }
    }
  }
  static __device__ __forceinline__ void round_values(const AttendRun& run, uint64_t at, bool is_there, uint32_t row,
                                                      const KeyTile& tile) {
    for (uint32_t piece = gpu::thread_index() % kLanes; piece < run.key_dim / kPieceValues; piece += kLanes) {
      float values[kPieceValues];
#pragma unroll
      for (unsigned i = 0; i < kPieceValues; ++i)
        values[i] = is_there ? Stored::decode_one(run.cache, at + piece * kPieceValues + i) : 0.0F;
      *tile.at(row, piece) = round_piece(values);
    }
  }
};

/// FP8 (kernels/latent_rows.h): values, code times scale in FP32, are rounded to BF16; the rotary key is unchanged.
struct Fp8TensorKeys {
  static constexpr uint32_t kPositions = kTensorPositions;
  static constexpr bool kStaged = true;
  static __device__ __forceinline__ uint32_t row_bytes(const AttendRun& run) {
    return static_cast<uint32_t>(run.fp8_row.bytes);
  }

  static __device__ __forceinline__ void load(const AttendRun& run, const PositionMap& map, uint32_t first,
                                              uint32_t end, const KeyTile& tile) {
    decode_rows(run, end - first, tile, [&](uint32_t row) {
      return static_cast<const uint8_t*>(run.cache) + map.at(first + row) * run.fp8_row.bytes;
    });
  }
  /// Rows are contiguous in `to` as well. They take no more room than a tile: one scale per 128 values is smaller than
  /// the byte per value that is saved compared to BF16.
  static __device__ __forceinline__ void copy(const AttendRun& run, const PositionMap& map, uint32_t first,
                                              uint32_t end, unsigned char* to) {
    const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
    const uint32_t bytes = row_bytes(run);
    const uint32_t rows = end - first < kPositions ? end - first : kPositions;
    if (!map.is_chosen()) {  // rows are contiguous in the cache
      const uint8_t* from = static_cast<const uint8_t*>(run.cache) + uint64_t{first} * bytes;
#pragma unroll 4
      for (uint32_t at = gpu::thread_index() * 16; at < rows * bytes; at += gpu::block_threads() * 16)
        gpu::cp_async(to + at, from + at, true);
      return;
    }
    for (uint32_t row = gpu::warp_index(); row < rows; row += warps) {
      const auto* from = static_cast<const uint8_t*>(run.cache) + uint64_t{map.at(first + row)} * bytes;
      for (uint32_t at = gpu::lane_index() * 16; at < bytes; at += gpu::kWarpThreads * 16)
        gpu::cp_async(to + row * bytes + at, from + at, true);
    }
  }
  static __device__ __forceinline__ void decode(const AttendRun& run, uint32_t first, uint32_t end,
                                                const unsigned char* from, const KeyTile& tile) {
    decode_rows(run, end - first, tile, [&](uint32_t row) { return from + row * run.fp8_row.bytes; });
  }

 private:
  /// Decodes the first `count` of a tile's rows, at stored_at(row); the others are zeros. A warp loads the codes of
  /// some rows before it decodes the first; eight lanes copy a row's rotary key.
  template <class StoredAt>
  static __device__ __forceinline__ void decode_rows(const AttendRun& run, uint32_t count, const KeyTile& tile,
                                                     StoredAt stored_at) {
    constexpr unsigned kAhead = 4;
    constexpr unsigned kLanes = 8;
    static_assert(kTensorColumns <= gpu::kWarpThreads * StoredF8::kPer16);
    const uint32_t column = gpu::lane_index() * StoredF8::kPer16;
    const unsigned turn = gpu::block_threads() / gpu::kWarpThreads * kAhead;
    for (uint32_t first = gpu::warp_index() * kAhead; first < kPositions; first += turn) {
      uint4 codes[kAhead];
      float scales[kAhead];
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        codes[i] = make_uint4(0, 0, 0, 0);
        scales[i] = 0;
        if (first + i >= count || column >= run.latent_dim) continue;
        const uint8_t* stored = stored_at(first + i);
        codes[i] = *reinterpret_cast<const uint4*>(stored + column);
        scales[i] = fp8_row_scale(stored, run.fp8_row, column);
      }
#pragma unroll
      for (unsigned i = 0; i < kAhead; ++i) {
        if (column < run.latent_dim) store_sixteen(codes[i], scales[i], column, first + i, tile);
      }
    }
    const uint32_t first_piece = run.latent_dim / kPieceValues;
    for (uint32_t row = gpu::thread_index() / kLanes; row < kPositions; row += gpu::block_threads() / kLanes) {
      const uint8_t* stored = row < count ? stored_at(row) + run.fp8_row.rope_at : nullptr;
      for (uint32_t i = gpu::thread_index() % kLanes; first_piece + i < run.key_dim / kPieceValues; i += kLanes)
        *tile.at(row, first_piece + i) =
            stored != nullptr ? reinterpret_cast<const uint4*>(stored)[i] : make_uint4(0, 0, 0, 0);
    }
  }
  static __device__ __forceinline__ void store_sixteen(const uint4& codes, float scale, uint32_t column, uint32_t row,
                                                       const KeyTile& tile) {
    uint4 pieces[2];
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      float values[kPieceValues];
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        float four[4];
        StoredF8::decode(codes, i * 2 + half, four);
#pragma unroll
        for (unsigned j = 0; j < 4; ++j)
          values[half * 4 + j] = four[j] * scale;
      }
      pieces[i] = round_piece(values);
    }
    // Lanes 0 to 3 of eight write even pieces while the others write odd ones, so all banks are touched once.
    const uint32_t piece = column / kPieceValues;
    const unsigned odd = gpu::lane_index() / 4 % 2;
    *tile.at(row, piece + odd) = odd == 0 ? pieces[0] : pieces[1];
    *tile.at(row, piece + (odd ^ 1U)) = odd == 0 ? pieces[1] : pieces[0];
  }
};

/// Loads the tiles of a split to shared memory, one after the other. Call every function with every thread of the
/// block.
///   one stage                 a tile is loaded when needed; the next one is prefetched to L2 while it is used
///   two stages                the next tile is copied (cp_async) while one is used
///   two stages, kStaged       the next tile's rows are copied in stored form, to the second stage
template <class Keys, unsigned kStages>
class KeyTiles {
 public:
  __device__ __forceinline__ KeyTiles(const AttendRun& run, const PositionMap& map, uint32_t end, unsigned char* stages)
      : run_(run), map_(map), end_(end), tile_{stages}, other_(stages + Keys::kPositions * kTensorRowBytes) {}

  __device__ __forceinline__ void start(uint32_t first) {
    if constexpr (kStages == 2) fetch(first, other_);
  }

  /// Returns the tile at `first`; the one after it is at `next`. No thread uses the previous tile any more, and this
  /// one is visible to all threads.
  __device__ __forceinline__ const unsigned char* take(uint32_t first, uint32_t next) {
    if constexpr (kStages == 1) {
      gpu::block_barrier();  // the previous keys have been used
      Keys::load(run_, map_, first, end_, tile_);
      gpu::cp_async_commit_group();
      gpu::cp_async_wait_group<0>();
      gpu::block_barrier();  // the keys are loaded
      if (next < end_) prefetch(next);
    } else if constexpr (kStaged) {
      gpu::cp_async_wait_group<0>();
      gpu::block_barrier();  // the rows have arrived, and the previous keys have been used
      Keys::decode(run_, first, end_, other_, tile_);
      gpu::block_barrier();  // the keys are decoded, and the rows have been used
      if (next < end_) fetch(next, other_);
    } else {
      gpu::cp_async_wait_group<0>();
      gpu::block_barrier();  // the keys have arrived, and the previous ones have been used
      turn();
      if (next < end_) fetch(next, other_);
    }
    return tile_.rows;
  }

 private:
  static constexpr bool kStaged = Keys::kStaged;

  /// Prefetches the rows of a tile into the L2 cache, eight lanes per row.
  __device__ __forceinline__ void prefetch(uint32_t first) const {
    constexpr unsigned kLanes = 8;
    constexpr uint32_t kLine = 128;
    const uint32_t row_bytes = Keys::row_bytes(run_);
    for (uint32_t row = gpu::thread_index() / kLanes; row < Keys::kPositions && first + row < end_;
         row += gpu::block_threads() / kLanes) {
      const uint8_t* from = static_cast<const uint8_t*>(run_.cache) + uint64_t{map_.at(first + row)} * row_bytes;
      for (uint32_t at = gpu::thread_index() % kLanes * kLine; at < row_bytes; at += kLanes * kLine)
        gpu::prefetch(from + at);
    }
  }
  __device__ __forceinline__ void fetch(uint32_t first, unsigned char* to) {
    if constexpr (kStaged) {
      Keys::copy(run_, map_, first, end_, to);
    } else {
      Keys::load(run_, map_, first, end_, {to});
    }
    gpu::cp_async_commit_group();
  }
  __device__ __forceinline__ void turn() {
    unsigned char* used = tile_.rows;
    tile_.rows = other_;
    other_ = used;
  }

  const AttendRun& run_;
  PositionMap map_;
  uint32_t end_;
  KeyTile tile_;
  unsigned char* other_;
};

}  // namespace dspack::kernels::cuda::device
