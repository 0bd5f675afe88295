// Drawing tokens on a GPU.
// Threads: enqueues. Lifetime: device memory is borrowed until the stream has run. Errors: none; shapes have been
// checked.
#pragma once

#include <cstdint>

#include "kernels/cuda/matrix.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

/// Logits that a warp surveys at once. What the rest of the work goes by is the highest of each chunk: most of a
/// vocabulary is out of the question and is read no second time.
inline constexpr uint32_t kSampleChunk = 128;

[[nodiscard]] constexpr uint32_t sample_chunks(uint32_t cols) {
  return (cols + kSampleChunk - 1) / kSampleChunk;
}

/// What is known of a row.
struct SampleRow {
  uint32_t highest = 0;   // by device::order_of, as the rest
  uint32_t lowest = 0;    // of what top-k leaves
  uint32_t is_valid = 0;  // whether there is something to draw
};

/// Device memory that the four launches share.
struct SampleScratch {
  uint64_t* weights = nullptr;   // [rows, chunks, kSampleChunk]: 0 for what is left out
  uint64_t* sums = nullptr;      // [rows, chunks] of these
  uint64_t* heaviest = nullptr;  // [rows, chunks] of these
  uint32_t* highest = nullptr;   // [rows, chunks]: of the logits
  SampleRow* of_rows = nullptr;  // [rows]
  uint32_t chunks = 0;           // of a row
};
[[nodiscard]] uint64_t sample_scratch_bytes(uint32_t rows, uint32_t cols);
/// `memory` has so many bytes and is 8-byte aligned.
[[nodiscard]] SampleScratch lay_out_sample(std::byte* memory, uint32_t rows, uint32_t cols);

/// ops.h's `sample`. Four launches: the chunks' highest; of each row the highest and what top-k leaves; the weights and
/// their sums; the choice.
struct SampleTask {
  RowsAt<const float> logits;
  const SampleSettings* settings = nullptr;
  const double* uniforms = nullptr;  // [rows]
  uint32_t* ids = nullptr;           // [rows]
  uint32_t rows = 0;
  uint32_t cols = 0;
  SampleScratch scratch;
};
void run_sample(gpu::Stream& stream, const SampleTask& task);

/// Pure.
/// A warp a chunk.
[[nodiscard]] gpu::LaunchShape choose_chunks_launch(uint32_t rows, uint32_t cols);
/// A block a row, without its shared memory.
[[nodiscard]] gpu::LaunchShape choose_row_launch(uint32_t rows, uint32_t cols);

}  // namespace dspack::kernels::cuda
