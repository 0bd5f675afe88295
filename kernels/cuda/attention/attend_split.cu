// Attention on tensor cores without a rounded product: FP32 queries and softmax weights are split into three BF16
// terms, each multiplied by the unrounded BF16 keys. A block (attention/tensor_attend.cuh) takes 32 or 16 queries
// through the positions of one split, 32 keys at a time; a key is loaded once for all terms.
//
// Why 32 queries and 32 keys: three terms of 32 of V3's queries are 108 KiB and two tiles 72, of the 227 available to a
// block (compute capability 8.0: 163, so 16 queries).
#include "format/base/check.h"
#include "kernels/cuda/attention/tensor_attend.cuh"

namespace dspack::kernels::cuda {
namespace {

template <AttendChoice kChoice>
using SplitLayout = device::TensorLayout<tensor_tile(kChoice)>;

template <AttendChoice kChoice>
__global__ void __launch_bounds__(SplitLayout<kChoice>::kThreads) split_kernel(device::AttendRun run) {
  gpu::launch_dependents();
  gpu::griddepcontrol_wait();
  const uint3 block = gpu::block_index();
  device::attend_block<SplitLayout<kChoice>, device::CopyKeys<kSplitPositions>>(run, block.x, block.y);
}

template <AttendChoice kChoice>
void run_split(gpu::Stream& stream, const MlaAttendTask& task) {
  for_each_run(stream, task, kChoice, [&](const device::AttendRun& run, const gpu::LaunchShape& shape) {
    gpu::launch_overlapping(stream, shape, split_kernel<kChoice>, run);
  });
}

}  // namespace

void attend_split(gpu::Stream& stream, const MlaAttendTask& task, AttendChoice choice) {
  DSPACK_CHECK(shape_of(task).has_bf16_keys, "keys that are not BF16 lose bits on tensor cores");
  switch (choice) {
    case AttendChoice::split_32x2: return run_split<AttendChoice::split_32x2>(stream, task);
    case AttendChoice::split_16x2: return run_split<AttendChoice::split_16x2>(stream, task);
    default: DSPACK_CHECK(false, "not a choice of split attention");
  }
}

}  // namespace dspack::kernels::cuda
