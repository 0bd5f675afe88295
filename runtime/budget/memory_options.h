// Memory limits as the user gives them: bytes or a share of memory, a number or a share of experts.
// Threads: plain values and pure functions. Errors: invalid, with what is allowed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "format/base/result.h"
#include "format/dtype.h"

namespace dspack::runtime {

/// A number, or a percentage of something that is not known yet.
struct Amount {
  uint64_t number = 0;  // unless it is a share
  std::optional<double> percent;

  /// The number, or the share of `whole`, rounded down.
  [[nodiscard]] uint64_t of(uint64_t whole) const;
  bool operator==(const Amount&) const = default;
};

/// "24GB", "8G", "75%": see parse_size; a share is above 0 and at most 100 %.
[[nodiscard]] Result<Amount> parse_memory_amount(std::string_view text);
/// "464", "12%", "12.5%"
[[nodiscard]] Result<Amount> parse_expert_amount(std::string_view text);

struct MemoryOptions {
  /// All memory of this process; a share is of the machine's. Unset: the available memory, less a reserve.
  std::optional<Amount> ram;
  /// The most experts in memory; a share is of all experts of the pass's layers. Unset: as many as fit.
  std::optional<Amount> experts;
  /// The type of the KV cache: f32 (exact), bf16, f16 or f8_e4m3. Unset: the precision's default.
  std::optional<Dtype> kv_dtype;
  /// The type of the keys of sparse attention's indexer, with the same choices. Unset: kv_dtype.
  std::optional<Dtype> index_dtype;
};

}  // namespace dspack::runtime
