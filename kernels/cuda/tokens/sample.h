// Sampling of tokens on a GPU.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/matrix.h"
#include "kernels/cuda/hardware/runtime.h"
#include "kernels/ops.h"
#include "kernels/sample_noise.h"

namespace dspack::kernels::cuda {

/// Logits that one warp weighs.
inline constexpr uint32_t kSampleChunk = 128;
/// Logits are sorted into buckets by distance below the highest, from e^0 down to weight 0. In real distributions few
/// logits share a bucket, and the place where a sum of weights ends is searched within one bucket.
inline constexpr uint32_t kSampleBuckets = 2048;

[[nodiscard]] constexpr uint32_t sample_chunks(uint32_t cols) {
  return (cols + kSampleChunk - 1) / kSampleChunk;
}

/// Summary of a row.
struct SampleRow {
  uint32_t highest = 0;   // device::order_of
  uint32_t is_valid = 0;  // whether any token can be drawn
};

/// A logit in its row's sorted list.
struct alignas(8) SampleEntry {
  uint32_t order = 0;  // device::order_of
  uint32_t index = 0;
};

/// Device memory that the three launches share.
struct SampleScratch {
  SampleEntry* entries = nullptr;  // [rows, cols]: bucket by bucket, highest first; unordered within one
  Arrival* arrivals = nullptr;     // [rows, chunks]: the first arrival in each
  uint64_t* sums = nullptr;        // [rows, buckets]: sums of weights
  uint32_t* counts = nullptr;      // [rows, buckets]
  uint32_t* placed = nullptr;      // [rows, buckets]: entries already placed in the list
  uint32_t* done = nullptr;        // [rows]: blocks that have placed their entries
  uint32_t* highest = nullptr;     // [rows, parts]
  SampleRow* of_rows = nullptr;    // [rows]
  uint16_t* buckets = nullptr;     // [rows, cols]: bucket of each logit
  uint32_t chunks = 0;             // per row
  uint64_t size_bytes = 0;
};
[[nodiscard]] uint64_t sample_scratch_bytes(uint32_t rows, uint32_t cols);
/// `memory` has sample_scratch_bytes and is 8-byte aligned; null: only size_bytes is set.
[[nodiscard]] SampleScratch lay_out_sample(std::byte* memory, uint32_t rows, uint32_t cols);

/// Queue::sample (ops.h). Three launches: the highest logit of each row; weights, and the first arrival of each chunk
/// or, if top-k or top-p is set, sums by bucket; the sorted list, from which each row's last block chooses.
struct SampleTask {
  RowsAt<const float> logits;
  const SampleSettings* settings = nullptr;
  const NoiseKey* keys = nullptr;  // [rows]
  uint32_t* ids = nullptr;         // [rows]
  uint32_t rows = 0;
  uint32_t cols = 0;
  SampleScratch scratch;
  uint32_t* counter = nullptr;  // one word, zero, used by no other stream; zero again when the stream has run
};
void run_sample(gpu::Stream& stream, const SampleTask& task);

/// x: rows, y: parts of each, one warp per chunk; without shared memory. Pure.
[[nodiscard]] gpu::LaunchShape choose_sample_launch(uint32_t rows, uint32_t cols);

}  // namespace dspack::kernels::cuda
