// The CPU device: runs every operation at once, on all of its threads, with the widest available instruction set.
// Threads: thread-safe. Errors: an instruction set that this processor or this program lacks is `unsupported`.
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
  std::string instruction_set;  // "scalar", "neon", "avx2", "avx512", "vbmi", "amx"; empty: the widest there is here
  Precision precision = Precision::exact;  // or bf16, with the same bits on every instruction set (rounded.inl.h)
};

[[nodiscard]] Result<std::unique_ptr<Device>> make_cpu_device(const CpuOptions& options);

/// Memory for the CPU's device, of at least so many bytes from a page on, over which pages of files can be laid in
/// place of a copy of their bytes (PageRange). Errors: budget.
[[nodiscard]] Result<std::unique_ptr<Buffer>> make_mapped_memory(uint64_t bytes);

/// What a queue of the CPU's device keeps for itself when it multiplies so many rows with matrices of at most so many
/// columns.
[[nodiscard]] uint64_t most_product_bytes(unsigned threads, uint32_t rows, uint32_t in);

/// What Queue::choose keeps for itself on the CPU's device, of keys of `dim` values and so many chosen positions a row.
[[nodiscard]] uint64_t most_choose_bytes(unsigned threads, uint32_t most, uint32_t dim);

/// The memory of a buffer that the host can address, for zero-copy reads into it and for tests. Any other is a
/// programming error.
[[nodiscard]] std::span<std::byte> host_bytes(Buffer& buffer);

}  // namespace dspack::kernels
