// Memory limits as the user gives them: bytes or a share of memory, a number or a share of experts.
// Threads: plain values and pure functions. Errors: invalid, with what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "format/base/result.h"
#include "format/dtype.h"

namespace dspack::runtime {

/// A number, or a share in percent of something that is not known yet.
struct Amount {
  uint64_t number = 0;  // unless it is a share
  std::optional<double> percent;

  /// The number, or so much of `whole`, rounded down.
  [[nodiscard]] uint64_t of(uint64_t whole) const;
  bool operator==(const Amount&) const = default;
};

/// "24GB", "8G", "75%": see parse_size; a share is above 0 and at most 100 %.
[[nodiscard]] Result<Amount> parse_memory_amount(std::string_view text);
/// "464", "12%", "12.5%"
[[nodiscard]] Result<Amount> parse_expert_amount(std::string_view text);

struct MemoryOptions {
  /// All of this process's memory; a share is of the machine's. Unset: what is available, with something left over.
  std::optional<Amount> ram;
  /// Experts that memory holds at most; a share is of all that the layers of the pass have. Unset: as many as fit.
  std::optional<Amount> experts;
  /// Of the KV cache: f32 (exact), bf16, f16 or f8_e4m3. Unset: what the precision means.
  std::optional<Dtype> kv_dtype;
  /// Of the keys of sparse attention's indexer, likewise. Unset: kv_dtype.
  std::optional<Dtype> index_dtype;
};

}  // namespace dspack::runtime
