// Divides a pass's rows among the prompts that wait to be read: first come, first served. A prompt alone is read at
// nearly the speed of several together once each of its experts gets enough rows, so waiting for the others would only
// delay its answer. A prompt that is no longer than such a share is not kept waiting by longer ones before it, since it
// delays them by one share at most. Where experts are read in each pass, rows beside it are nearly free, and the pass
// is filled. Bits of answers do not depend on the division (scheduler.h). Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/config/config.h"

namespace dspack::runtime {

struct PromptShare {
  uint32_t most = 0;      // rows that the pass has for prompts
  uint32_t share = 0;     // rows with which a pass is efficient
  bool is_filled = true;  // the pass takes all rows that it has room for
};

/// Rows with which a pass is efficient on a CPU that has the experts in memory: each routed expert gets about 64 rows,
/// for which its weights are decoded once (kernels/cpu/panels.inl.h); beside answers, which wait for their next tokens
/// meanwhile, 32. (V3's shapes with 32 experts, 2026-11: 128 rows 19.9 tokens/s, 256 22.2, 768 23.0.)
[[nodiscard]] uint32_t efficient_rows(const ModelConfig& config, bool is_beside_answers);

/// Rows of each prompt, given how many each lacks, in order of arrival; 0: it waits for the next pass.
[[nodiscard]] std::vector<uint32_t> divide_rows(std::span<const uint32_t> lacking, const PromptShare& pass);

}  // namespace dspack::runtime
