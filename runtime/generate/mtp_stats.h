// Statistics of drafting with the MTP module.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <string>

#include "format/json.h"
#include "runtime/experts/store_stats.h"
#include "runtime/generate/speculator.h"

namespace dspack::runtime {

struct MtpStats {
  SpeculationStats speculation;
  std::optional<uint32_t> drafts;  // drafts per step; absent: chosen by measurement
  MtpHidden hidden = MtpHidden::post_norm;
  bool finds_hidden = false;      // --dev mtp-hidden=auto
  bool shares_head = false;       // with the main model, in memory
  bool shares_embedding = false;  // rows are read from the main model's table
  uint64_t read_weight_bytes = 0;
  uint64_t read_expert_bytes = 0;
  uint64_t weight_bytes = 0;  // in memory
  uint64_t cache_bytes = 0;
  uint64_t scratch_bytes = 0;
};

[[nodiscard]] MtpStats collect_mtp_stats(const Speculator& speculator, const MtpState& state,
                                         const format::Checkpoint& checkpoint, const ExpertStoreStats& experts);

/// The object "mtp" of `--stats`.
[[nodiscard]] format::Json to_json(const MtpStats& stats);

/// A part of the line for people: "MTP: 55 of 56 drafts accepted, 1.97 tokens a pass".
[[nodiscard]] std::string summary(const MtpStats& stats);

}  // namespace dspack::runtime
