// The CPU device: runs every operation immediately, on all of its threads, with the widest available instruction set.
// Threads: thread-safe. Errors: unsupported (an instruction set that this processor or this program lacks).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kernels/ops.h"
#include "kernels/precision.h"

namespace dspack::kernels {

struct CpuOptions {
  unsigned threads = 0;         // 0: one per available core
  std::string instruction_set;  // "scalar", "neon", "avx2", "avx512", "vbmi", "amx"; empty: the widest available
  Precision precision = Precision::exact;  // or bf16 or int8, with the same bits on every instruction set; or amx
};

[[nodiscard]] Result<std::unique_ptr<Device>> make_cpu_device(const CpuOptions& options);

/// Page-aligned memory for the CPU device, at least `bytes` bytes, into which pages of files can be mapped instead of
/// copying their bytes (PageRange). Errors: budget.
[[nodiscard]] Result<std::unique_ptr<Buffer>> make_mapped_memory(uint64_t bytes);

/// Most memory in bytes that a queue of the CPU device keeps for products of `rows` rows with matrices of at most `in`
/// columns.
[[nodiscard]] uint64_t most_product_bytes(unsigned threads, uint32_t rows, uint32_t in);

/// Most memory in bytes that Queue::choose takes on the CPU device, for keys of `dim` values and at most `most` chosen
/// positions per row.
[[nodiscard]] uint64_t most_choose_bytes(unsigned threads, uint32_t most, uint32_t dim);

/// The memory of a buffer that the host can address, for zero-copy reads into it and for tests. Any other buffer is a
/// programming error.
[[nodiscard]] std::span<std::byte> host_bytes(Buffer& buffer);

}  // namespace dspack::kernels
