// The GPU functions that kernels may use, on NVIDIA hardware. The test suite has a second header of this name that
// implements them on the CPU (threads of a block take turns); the build selects the folder.
//
// Kernels use no other CUDA than this. There is no static shared memory: a kernel gets its bytes from the launch
// (`shared_memory`), uninitialised. A warp is 32 threads; every thread of a block must reach every block barrier.
// Source: PTX ISA 8.7 (mma.m16n8k16 fragments: 9.7.14.5.8), CUDA programming guide.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/hardware/cuda_check.h"
#include "kernels/cuda/hardware/runtime.h"

namespace dspack::gpu {

inline constexpr unsigned kWarpThreads = 32;

// Thread and block indices
// ----------------------------------------------------------------------------------------------------

__device__ inline unsigned thread_index() {
  return threadIdx.x;
}
__device__ inline unsigned block_threads() {
  return blockDim.x;
}
__device__ inline unsigned lane_index() {
  return threadIdx.x % kWarpThreads;
}
__device__ inline unsigned warp_index() {
  return threadIdx.x / kWarpThreads;
}
__device__ inline uint3 block_index() {
  return blockIdx;
}
__device__ inline dim3 grid_blocks() {
  return gridDim;
}

// Memory
// ---------------------------------------------------------------------------------------------------------------

/// The dynamic shared memory of this block, 128-byte aligned.
template <class T>
__device__ inline T* shared_memory() {
  extern __shared__ __align__(128) unsigned char dspack_shared_memory[];
  return reinterpret_cast<T*>(dspack_shared_memory);
}

/// Loads 16 aligned bytes that are not reused soon (weights), without allocating in the L1 cache.
__device__ inline uint4 load_streaming(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

/// Loads four values, 16-byte aligned.
__device__ inline float4 load_four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

/// Prefetches the 128 bytes around an address of global memory into the L2 cache.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(from));
}

/// Starts a cp.async of 16 bytes, both addresses aligned; if not `valid` it writes zeros and reads nothing.
__device__ inline void cp_async(void* shared, const void* global, bool valid) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
/// Same, for data that is read sequentially: also prefetches the 256 bytes around it into the L2 cache.
__device__ inline void cp_async_l2_256b(void* shared, const void* global, bool valid) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
/// Ends a group of this thread's asynchronous copies.
__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
/// Waits until at most `kPending` groups of this thread are pending. Other threads' copies also need a block barrier.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// Barriers and warp shuffles
// -------------------------------------------------------------------------------------------------------------

__device__ inline void block_barrier() {
  __syncthreads();
}
__device__ inline void warp_barrier() {
  __syncwarp();
}
// All 32 lanes must take part.
__device__ inline float shuffle_xor(float value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(mask));
}
__device__ inline unsigned shuffle_xor(unsigned value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(mask));
}
__device__ inline double shuffle_xor(double value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(mask));
}
__device__ inline float shuffle(float value, unsigned lane) {
  return __shfl_sync(0xffffffffU, value, static_cast<int>(lane));
}
__device__ inline unsigned shuffle(unsigned value, unsigned lane) {
  return __shfl_sync(0xffffffffU, value, static_cast<int>(lane));
}
/// The sum over all lanes, in every lane; adds lanes 16 apart first, then 8, 4, 2 and 1.
__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (unsigned apart = kWarpThreads / 2; apart > 0; apart /= 2)
    value += shuffle_xor(value, apart);
  return value;
}
/// The maximum over all lanes, in every lane; one instruction.
__device__ inline unsigned largest_of_warp(unsigned value) {
  return __reduce_max_sync(0xffffffffU, value);
}
__device__ inline unsigned smallest_of_warp(unsigned value) {
  return __reduce_min_sync(0xffffffffU, value);
}
/// Bit l is lane l's flag.
__device__ inline unsigned ballot(bool flag) {
  return __ballot_sync(0xffffffffU, flag);
}

// Between blocks of a launch
// -----------------------------------------------------------------------------------------

/// Atomically adds one to a counter in global memory and returns the previous value. Relaxed: orders no other memory
/// access. A block with ticket n began after those with lower tickets.
__device__ inline uint32_t take_ticket(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
/// Same, with acquire-release order: writes of this thread (and, if a block barrier precedes, of its block) are visible
/// to a thread that sees the new count through count_up or wait_for_count, and after a block barrier to that thread's
/// block.
__device__ inline uint32_t count_up(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}
/// Waits until a counter is at least `count`. Only for counts that running blocks will reach: a block that has not
/// begun may never begin while others wait for it.
__device__ inline void wait_for_count(const uint32_t* counter, uint32_t count) {
  constexpr unsigned kNanoseconds = 100;  // yields the multiprocessor to blocks that have work
  for (;;) {
    uint32_t now;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    if (now >= count) break;
    __nanosleep(kNanoseconds);
  }
  // One acquire after the loop, not one per poll: each would invalidate the multiprocessor's L1 cache.
  asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

// Between launches that overlap
// ----------------------------------------------------------------------------------------------------------

/// Allows the next launch to begin once all blocks have called this or ended. The next launch must wait for its inputs.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
/// Waits until the previous launch has ended, and with it all launches before. Every thread of a kernel that may
/// overlap calls this before it reads or writes memory that another launch writes or reads.
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/// Atomic add to a place that other threads add to. Integers only, so that the order of additions does not matter.
/// Returns the previous value.
__device__ inline uint32_t add_together(uint32_t* place, uint32_t value) {
  return atomicAdd(place, value);
}
/// Atomically sets bits of a word in which other threads set other bits.
__device__ inline void set_together(uint32_t* word, uint32_t bits) {
  atomicOr(word, bits);
}
/// Atomic add to a place that other threads add to.
__device__ inline void add_together(uint64_t* place, uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(value));
}

// Numbers
// --------------------------------------------------------------------------------------------------------------

__device__ inline float fma_rn(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
/// Index of the lowest set bit. Precondition: bits != 0.
__device__ inline unsigned lowest_bit(unsigned bits) {
  return static_cast<unsigned>(__ffs(static_cast<int>(bits))) - 1;
}
__device__ inline unsigned popc(unsigned bits) {
  return static_cast<unsigned>(__popc(bits));
}
__device__ inline float bits_to_float(uint32_t bits) {
  return __uint_as_float(bits);
}
__device__ inline uint32_t float_to_bits(float value) {
  return __float_as_uint(value);
}
/// e^x within 2 ulp.
__device__ inline float exponential(float x) {
  return expf(x);
}
__device__ inline double exponential(double x) {
  return exp(x);
}
/// The logarithm of 1 + x within 1 ulp.
__device__ inline double log1p(double x) {
  return ::log1p(x);
}
__device__ inline float square_root(float x) {
  return __fsqrt_rn(x);
}
__device__ inline double square_root(double x) {
  return __dsqrt_rn(x);
}
__device__ inline float divide(float a, float b) {
  return __fdiv_rn(a, b);
}
/// Widens two F16 in a word, the lower half first; exact.
__device__ inline float2 halves_to_floats(uint32_t halves) {
  float2 values;
  asm("{.reg .f16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(halves));
  return values;
}
/// Products of two pairs of F16.
__device__ inline uint32_t multiply_halves(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
/// Converts four E4M3 codes to F16, two in a word, in order; exact, NaN stays NaN.
__device__ inline uint2 f8_to_halves(uint32_t codes) {
  uint2 halves;
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.rn.f16x2.e4m3x2 %0, low;\n"
      " cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(halves.x), "=r"(halves.y)
      : "r"(codes));
#else
  // An F16 whose bits after the sign are the code's seven bits is the value times 2^-8, also for subnormal codes. NaN
  // (all seven set) gets an exponent of ones instead.
  const auto widen = [](uint32_t high_bytes) {
    const uint32_t magnitude = (high_bytes >> 1U) & 0x3f803f80U;
    const uint32_t nan = ((magnitude + 0x00800080U) & 0x40004000U) >> 14U;
    const uint32_t scaled = multiply_halves(magnitude, 0x5c005c00U);  // 2^8
    return (high_bytes & 0x80008000U) | scaled | nan * 0x7c00U;
  };
  halves.x = widen(__byte_perm(codes, 0, 0x1404));
  halves.y = widen(__byte_perm(codes, 0, 0x3424));
#endif
  return halves;
}
/// Rounds to F16, to nearest, ties to even; `low` in the lower half.
__device__ inline uint32_t floats_to_halves(float low, float high) {
  uint32_t halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  return halves;
}
/// Rounds to BF16, to nearest, ties to even; `low` in the lower half.
__device__ inline uint32_t floats_to_bf16s(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// Products of two pairs of BF16, each rounded to BF16, without flushing subnormal numbers.
__device__ inline uint32_t multiply_bf16s(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(0x80008000U));
  return pair;
}
/// Differences of two pairs of BF16, each rounded to BF16.
__device__ inline uint32_t subtract_bf16s(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(b), "r"(0xbf80bf80U), "r"(a));  // b times -1
  return pair;
}
/// The bytes of {a, b} (a: 0 to 3) that the four nibbles of `selector` index.
__device__ inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

// Tensor cores
// ---------------------------------------------------------------------------------------------------------

/// d += a b with a [16, 16] and b [16, 8] in BF16, d [16, 8] in FP32, distributed over the warp. With g = lane / 4 and
/// q = lane % 4, low half first:
///   a[0] = a(g, 2q..)   a[1] = a(g+8, 2q..)   a[2] = a(g, 2q+8..)   a[3] = a(g+8, 2q+8..)
///   b[0] = b(2q.., g)   b[1] = b(2q+8.., g)
///   d[0] = d(g, 2q)     d[1] = d(g, 2q+1)     d[2] = d(g+8, 2q)     d[3] = d(g+8, 2q+1)
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// ldmatrix: loads four 8 x 8 matrices of 16-bit values from shared memory. Lanes 8i to 8i+7 pass the rows (16 bytes,
/// aligned) of matrix i; tile[i] of a lane is the pair at row lane / 4, columns 2 (lane % 4).. of matrix i.
__device__ inline void ldmatrix_x4(uint32_t (&tile)[4], const void* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(from)
               : "memory");
}
/// Same, each matrix transposed.
__device__ inline void ldmatrix_x4_trans(uint32_t (&tile)[4], const void* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(from)
               : "memory");
}

/// Whether the library has code of a kernel for the device. Loads the code, which also serves the first launch. A card
/// without memory for it, or that does not respond, counts as a failure and not as missing code.
template <class... Parameters>
bool has_code(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes = {};
  switch (const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel); status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      cudaGetLastError();  // otherwise the next launch would report it
      return false;
    default: check(status); return true;
  }
}

// Launching
// ------------------------------------------------------------------------------------------------------------

/// On first use of a kernel on a device, asks the driver for the largest shared memory carveout: occupancy is planned
/// for it, and consecutive kernels with the same carveout need no reconfiguration pause. Also raises the kernel's limit
/// if a block needs more than 48 KiB. `device` is the calling thread's device. Thread-safe.
inline void prepare_kernel(unsigned device, const void* kernel, unsigned shared_bytes) {
  constexpr unsigned kAlwaysAllowed = 48U << 10U;
  static std::mutex mutex;
  static std::vector<std::unordered_map<const void*, unsigned>> allowed;  // by device
  const std::lock_guard lock(mutex);
  if (device >= allowed.size()) allowed.resize(device + 1);
  const auto [found, is_new] = allowed[device].try_emplace(kernel, kAlwaysAllowed);
  if (is_new) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  }
  if (shared_bytes <= found->second) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  found->second = shared_bytes;
}

/// Runs a kernel after the work in the stream, or overlapping with its end. `shape` is within the device's limits.
template <class... Parameters, class... Arguments>
void launch_when(Overlap overlap, Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  if (has_failed()) return;
  const auto on = static_cast<cudaStream_t>(stream.handle());  // first: selects the thread's device
  // Rounded up to 16 bytes: nvcc may read pairs and fours of numbers even if a kernel uses only the first.
  const unsigned shared_bytes = (shape.shared_bytes + 15) / 16 * 16;
  prepare_kernel(stream.device(), reinterpret_cast<const void*>(kernel), shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid_x, shape.grid_y, shape.grid_z);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = on;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = overlap == Overlap::with_previous && stream.can_overlap_launches() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// Runs after all work in the stream.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...), const Arguments&... arguments) {
  launch_when(Overlap::none, stream, shape, kernel, arguments...);
}
/// The kernel itself waits for the previous launch (griddepcontrol_wait).
template <class... Parameters, class... Arguments>
void launch_overlapping(Stream& stream, const LaunchShape& shape, void (*kernel)(Parameters...),
                        const Arguments&... arguments) {
  launch_when(Overlap::with_previous, stream, shape, kernel, arguments...);
}

}  // namespace dspack::gpu
