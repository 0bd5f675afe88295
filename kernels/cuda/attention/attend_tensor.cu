// Attention on tensor cores with operands rounded to BF16: a block (attention/tensor_attend.cuh) takes 64 or 16 queries
// through the positions of one split, 64 keys at a time.
//
// At short contexts, where few blocks would have work, a block takes 32 queries instead: for scores four parts of 16
// positions, for values 16 queries per warp.
//
// Why 64 queries: with V3's 128 heads a key takes 242 operations per byte of BF16 cache, so the kernel is bound by the
// transfers of tiles from shared memory to registers, which all queries of a block share; and 64 x 512 sums in FP32 are
// half of the register file.
#include "format/base/check.h"
#include "kernels/cuda/attention/tensor_attend.cuh"

namespace dspack::kernels::cuda {
namespace {

/// Blocks of half the queries, for short contexts, where whole blocks would leave multiprocessors idle. The bits are
/// those of whole blocks.
template <TensorTile kTile>
struct HalvedBlocks {
  static constexpr TensorTile kHalf = {.queries = kTile.queries / 2,
                                       .positions = kTile.positions,
                                       .terms = kTile.terms,
                                       .warps = kTile.warps,
                                       .stages = kTile.stages,
                                       .is_halved = false};
  uint32_t groups;
  uint32_t splits;  // most splits of any row
  __device__ __forceinline__ explicit HalvedBlocks(const device::AttendRun& run) {
    const uint32_t last_row = device::row_of(run, run.queries - 1);
    const bool is_chosen = run.chosen != nullptr;
    const uint32_t of_row = (run.heads - 1) / kHalf.queries + 1;
    groups = is_chosen ? (last_row + 1) * of_row : (run.queries - 1) / kHalf.queries + 1;
    splits = is_chosen ? run.slots : device::splits_of(run, device::positions_of(run, last_row));
  }
  [[nodiscard]] __device__ __forceinline__ bool are_few() const { return uint64_t{groups} * splits <= kTensorBlocks; }
};

template <AttendChoice kChoice>
constexpr TensorTile kTileOf = tensor_tile(kChoice);

template <AttendChoice kChoice, class Keys>
__global__ void __launch_bounds__(kTileOf<kChoice>.warps* gpu::kWarpThreads) tensor_kernel(device::AttendRun run) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  constexpr TensorTile kTile = kTileOf<kChoice>;
  const uint3 block = gpu::block_index();
  if constexpr (kTile.is_halved) {
    using Halved = HalvedBlocks<kTile>;
    const Halved halved(run);
    if (halved.are_few()) {
      const uint32_t number = block.y * gpu::grid_blocks().x + block.x;
      return device::attend_block<device::TensorLayout<Halved::kHalf>, Keys>(run, number % halved.groups,
                                                                             number / halved.groups);
    }
  }
  device::attend_block<device::TensorLayout<kTile>, Keys>(run, block.x, block.y);
}

template <AttendChoice kChoice, class Keys>
void run_tensor(gpu::Stream& stream, const MlaAttendTask& task) {
  for_each_run(stream, task, kChoice, [&](const device::AttendRun& run, const gpu::LaunchShape& shape) {
    gpu::launch_overlapping(stream, shape, tensor_kernel<kChoice, Keys>, run);
  });
}

/// Keys that are rounded take a single tile: the loads are waited for, so a second tile would gain nothing.
template <AttendChoice kCopied, AttendChoice kRounded>
void run_choice(gpu::Stream& stream, const MlaAttendTask& task) {
  if (task.cache_dtype == Dtype::f8_e4m3) return run_tensor<kCopied, device::Fp8TensorKeys>(stream, task);
  const bool is_aligned = reinterpret_cast<uint64_t>(task.cache) % 16 == 0;
  if (task.cache_dtype == Dtype::bf16 && is_aligned)
    return run_tensor<kCopied, device::CopyKeys<kTensorPositions>>(stream, task);
  if (task.cache_dtype == Dtype::bf16) return run_tensor<kRounded, device::RoundKeys<device::StoredBf16>>(stream, task);
  if (task.cache_dtype == Dtype::f16) return run_tensor<kRounded, device::RoundKeys<device::StoredF16>>(stream, task);
  run_tensor<kRounded, device::RoundKeys<device::StoredF32>>(stream, task);
}

}  // namespace

void attend_tensor(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice) {
  switch (choice) {
    case AttendChoice::tensor_64x2:
      return run_choice<AttendChoice::tensor_64x2, AttendChoice::tensor_64x1>(stream, task);
    case AttendChoice::tensor_64x1:
      return run_choice<AttendChoice::tensor_64x1, AttendChoice::tensor_64x1>(stream, task);
    case AttendChoice::tensor_16x2:
      return run_choice<AttendChoice::tensor_16x2, AttendChoice::tensor_16x1>(stream, task);
    case AttendChoice::tensor_16x1:
      return run_choice<AttendChoice::tensor_16x1, AttendChoice::tensor_16x1>(stream, task);
    default: DSPACK_CHECK(false, "not a choice of tensor attention");
  }
}

}  // namespace dspack::kernels::cuda
