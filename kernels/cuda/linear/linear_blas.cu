#include "kernels/cuda/linear/linear_blas.h"

#include "kernels/cuda/device/dot.cuh"
#include "kernels/cuda/tokens/elementwise.cuh"
#include "kernels/cuda/tokens/elementwise.h"
#include "kernels/cuda/tokens/rounding.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr unsigned kWarpsOfBlock = 8;
static_assert(device::kRoundedBlock == kBlasScaleBlock);

/// Four values of input row `row`.
__device__ __forceinline__ float4 input_of(const RoundInputsTask& task, uint64_t row, uint32_t column) {
  const uint32_t from = task.source == nullptr ? static_cast<uint32_t>(row) : task.source[row];
  if (from == kNoSource) return make_float4(0, 0, 0, 0);
  float4 x = *reinterpret_cast<const float4*>(task.x.data + from * task.x.stride + column);
  if (task.up.data == nullptr) return x;
  const float4 up = *reinterpret_cast<const float4*>(task.up.data + from * task.up.stride + column);
  return make_float4(device::silu_times(x.x, up.x, task.limit), device::silu_times(x.y, up.y, task.limit),
                     device::silu_times(x.z, up.z, task.limit), device::silu_times(x.w, up.w, task.limit));
}

/// A thread rounds eight values: 32 bytes in, 16 out.
__global__ void round_to_bf16_kernel(RoundInputsTask task) {
  const uint32_t piece = gpu::block_index().x * gpu::block_threads() + gpu::thread_index();
  if (piece >= task.in / 8) return;
  for (uint64_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const float4 low = input_of(task, row, piece * 8);
    const float4 high = input_of(task, row, piece * 8 + 4);
    auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(task.to) + row * task.in) + piece;
    *to = make_uint4(gpu::floats_to_bf16s(low.x, low.y), gpu::floats_to_bf16s(low.z, low.w),
                     gpu::floats_to_bf16s(high.x, high.y), gpu::floats_to_bf16s(high.z, high.w));
  }
}

/// The E4M3 code of a value that E4M3 represents exactly, or that exceeds 448 by rounding (a block's largest value
/// divided by its scale). NaN for NaN, also for an infinity divided by an infinite scale.
__device__ __forceinline__ uint32_t e4m3_code(float value) {
  constexpr uint32_t kNan = 0x7f;
  const uint32_t bits = gpu::float_to_bits(value);
  const float magnitude = gpu::bits_to_float(bits & 0x7fffffffU);
  uint32_t code = kNan;
  if (magnitude < 0.015625F) {  // subnormal: multiples of 2^-9
    code = static_cast<uint32_t>(magnitude * 512.0F);
  } else if (magnitude < 464.0F) {
    code = ((bits & 0x7fffffffU) >> 20U) - (120U << 3U);  // exponent bias 7 instead of 127
  }
  return ((bits >> 24U) & 0x80U) | code;
}

/// A warp rounds 128 values of one row, four per lane. Warps of a block take neighbouring rows, whose scales are
/// adjacent.
__global__ void round_to_e4m3_kernel(RoundInputsTask task) {
  const uint32_t row = gpu::block_index().x * kWarpsOfBlock + gpu::warp_index();
  if (row >= task.rows) return;  // all lanes of a warp
  const uint32_t block = gpu::block_index().y;
  const uint32_t column = block * device::kRoundedBlock + gpu::lane_index() * 4;
  const bool is_there = column < task.in;  // all four or none
  float4 from = make_float4(0, 0, 0, 0);
  if (is_there) from = input_of(task, row, column);
  float values[4] = {from.x, from.y, from.z, from.w};
  const float scale = device::round_block(values);
  if (gpu::lane_index() == 0) {
    BlasSegment segment{0, task.rows};
    if (task.segments != nullptr) segment = task.segments[row / kSegmentUnit];
    const uint64_t blocks = gpu::grid_blocks().y;
    task.scales[segment.first * blocks + uint64_t{block} * segment.rows + (row - segment.first)] = scale;
  }
  if (!is_there) return;
  const uint32_t codes =
      e4m3_code(values[0]) | e4m3_code(values[1]) << 8U | e4m3_code(values[2]) << 16U | e4m3_code(values[3]) << 24U;
  *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(task.to) + uint64_t{row} * task.in + column) = codes;
}

/// A thread decodes 16 bytes, all in one scale block.
template <class Stored>
__global__ void decode_weight_kernel(DecodeWeightTask task) {
  const uint32_t chunk = gpu::block_index().x * gpu::block_threads() + gpu::thread_index();
  if (chunk >= task.weight.in / Stored::kPer16) return;
  const device::BlockOfRun<Stored> block_of(task.weight);
  for (uint32_t row = gpu::block_index().y; row < task.rows; row += gpu::grid_blocks().y) {
    const uint32_t from_row = task.first_row + row;
    const uint4 bytes = gpu::load_streaming(device::aligned_row<Stored>(task.weight, from_row) + uint64_t{chunk} * 16);
    const float* scales = device::scales_of(task.weight, from_row);
    const float scale = scales == nullptr ? 1.0F : scales[block_of(chunk)];
    uint32_t pairs[Stored::kPer16 / 2];
#pragma unroll
    for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
      float values[4];
      Stored::decode(bytes, quarter, values);
      pairs[quarter * 2] = gpu::floats_to_bf16s(values[0] * scale, values[1] * scale);
      pairs[quarter * 2 + 1] = gpu::floats_to_bf16s(values[2] * scale, values[3] * scale);
    }
    auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(task.to) + uint64_t{row} * task.weight.in) +
               uint64_t{chunk} * (Stored::kPer16 / 8);
#pragma unroll
    for (unsigned i = 0; i < Stored::kPer16 / 8; ++i)
      to[i] = make_uint4(pairs[i * 4], pairs[i * 4 + 1], pairs[i * 4 + 2], pairs[i * 4 + 3]);
  }
}

__global__ void pad_scales_kernel(PadScalesTask task) {
  const uint32_t column = gpu::block_index().x * gpu::block_threads() + gpu::thread_index();
  if (column >= task.padded) return;
  for (uint64_t row = gpu::block_index().y; row < task.blocks; row += gpu::grid_blocks().y)
    task.to[row * task.padded + column] = column < task.across ? task.from[row * task.across + column] : 0.0F;
}

}  // namespace

void run_round_to_bf16(gpu::Stream& stream, const RoundInputsTask& task) {
  gpu::launch(stream, choose_rows_launch(task.rows, task.in / 8), round_to_bf16_kernel, task);
}

void run_round_to_e4m3(gpu::Stream& stream, const RoundInputsTask& task) {
  const gpu::LaunchShape shape{.grid_x = static_cast<unsigned>(ceil_div(task.rows, kWarpsOfBlock)),
                               .grid_y = static_cast<unsigned>(ceil_div(task.in, device::kRoundedBlock)),
                               .threads = kWarpsOfBlock * gpu::kWarpThreads};
  gpu::launch(stream, shape, round_to_e4m3_kernel, task);
}

void run_decode_weight(gpu::Stream& stream, const DecodeWeightTask& task) {
  if (task.weight.coding == Coding::bf16) {
    return gpu::launch(stream, choose_rows_launch(task.rows, task.weight.in / device::StoredBf16::kPer16),
                       decode_weight_kernel<device::StoredBf16>, task);
  }
  gpu::launch(stream, choose_rows_launch(task.rows, task.weight.in / device::StoredF8::kPer16),
              decode_weight_kernel<device::StoredF8>, task);
}

void run_pad_scales(gpu::Stream& stream, const PadScalesTask& task) {
  gpu::launch(stream, choose_rows_launch(task.blocks, task.padded), pad_scales_kernel, task);
}

}  // namespace dspack::kernels::cuda
