// Drawing tokens on a GPU.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"
#include "kernels/sample_noise.h"

namespace dspack::kernels::cuda {

/// Logits that a warp weighs.
inline constexpr uint32_t kSampleChunk = 128;
/// Logits are sorted into buckets by how far they lie below the highest: so many from e^0 to what weighs nothing. Few
/// share one of a real distribution, and where a sum of weights ends is looked for within a bucket.
inline constexpr uint32_t kSampleBuckets = 2048;

[[nodiscard]] constexpr uint32_t sample_chunks(uint32_t cols) {
  return (cols + kSampleChunk - 1) / kSampleChunk;
}

/// What is known of a row.
struct SampleRow {
  uint32_t highest = 0;   // by device::order_of
  uint32_t is_valid = 0;  // whether there is something to draw
};

/// A logit in the list of its row.
struct alignas(8) SampleEntry {
  uint32_t order = 0;  // by device::order_of
  uint32_t index = 0;
};

/// Device memory that the three launches share.
struct SampleScratch {
  SampleEntry* entries = nullptr;  // [rows, cols]: bucket by bucket, the highest first; in no order within one
  Arrival* arrivals = nullptr;     // [rows, chunks]: the first of each
  uint64_t* sums = nullptr;        // [rows, buckets]: of weights
  uint32_t* counts = nullptr;      // [rows, buckets]
  uint32_t* placed = nullptr;      // [rows, buckets]: so many have their places in the list
  uint32_t* done = nullptr;        // [rows]: blocks that have placed theirs
  uint32_t* highest = nullptr;     // [rows, parts]
  SampleRow* of_rows = nullptr;    // [rows]
  uint16_t* buckets = nullptr;     // [rows, cols]: of each logit
  uint32_t chunks = 0;             // of a row
  uint64_t size_bytes = 0;
};
[[nodiscard]] uint64_t sample_scratch_bytes(uint32_t rows, uint32_t cols);
/// `memory` has so many bytes and is 8-byte aligned; null: no places.
[[nodiscard]] SampleScratch lay_out_sample(std::byte* memory, uint32_t rows, uint32_t cols);

/// ops.h's `sample`. Three launches: the rows' highest; weights, and of each chunk the token that arrives first or,
/// where values matter, sums by bucket; the list, and by each row's last block the choice.
struct SampleTask {
  RowsAt<const float> logits;
  const SampleSettings* settings = nullptr;
  const NoiseKey* keys = nullptr;  // [rows]
  uint32_t* ids = nullptr;         // [rows]
  uint32_t rows = 0;
  uint32_t cols = 0;
  SampleScratch scratch;
  uint32_t* counter = nullptr;  // a word, zero, that no other stream uses; it is zero again when the stream has run
};
void run_sample(gpu::Stream& stream, const SampleTask& task);

/// x: rows, y: parts of each, a warp a chunk; without shared memory. Pure.
[[nodiscard]] gpu::LaunchShape choose_sample_launch(uint32_t rows, uint32_t cols);

}  // namespace dspack::kernels::cuda
