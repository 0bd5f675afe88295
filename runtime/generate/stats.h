// Statistics of a run: speed, bytes read, memory, which experts were read and from which files.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "format/json.h"
#include "runtime/experts/schedule.h"
#include "runtime/experts/store_stats.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/speculator.h"

namespace dspack::runtime {

/// Statistics of drafting with the MTP module.
struct MtpStats {
  SpeculationStats speculation;
  std::optional<uint32_t> drafts;  // drafts per step; absent: chosen by measurement
  MtpHidden hidden = MtpHidden::post_norm;
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

struct RunStats {
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  uint64_t context = 0;        // positions
  format::LayerMap layer_map;  // the layers of a pass, in order
  SessionTimes times;
  struct BytesRead {
    uint64_t always_needed = 0;
    uint64_t embedding = 0;
    uint64_t experts = 0;
  } bytes_read;
  struct MemoryBytes {
    uint64_t weights = 0;
    uint64_t kv_cache = 0;
    uint64_t scratch = 0;
    uint64_t experts = 0;
  } memory_bytes;
  IoChoice io;             // how local weights were read
  MemoryPlan memory_plan;  // the plan made before loading
  struct VramBytes {
    uint64_t card = 0;
    uint64_t used = 0;  // increase since the device was made, by all users of the card
  };
  std::optional<VramBytes> vram;               // absent without a GPU
  std::vector<VramBytes> further_vram;         // further GPUs
  std::optional<uint64_t> process_peak_bytes;  // most resident memory so far; absent: not reported by the system
  ExpertStoreStats experts;
  DecodeBound decode_bound;               // for decode passes
  uint64_t present_experts = 0;           // experts in the checkpoint, in layers that run
  uint64_t expert_files = 0;              // files of the checkpoint that hold them
  std::optional<NetworkTraffic> network;  // absent without distant places
  std::optional<MtpStats> mtp;            // if there was drafting; included in the sums above
};

[[nodiscard]] RunStats collect_stats(LoadedModel& loaded, const Session& session);

/// By the names of stages.
[[nodiscard]] format::Json to_json(const StageSeconds& seconds);
/// The object that `--stats` writes.
[[nodiscard]] format::Json to_json(const RunStats& stats);

/// One line for people: tokens, tokens per second, bytes read for experts.
[[nodiscard]] std::string summary(const RunStats& stats);

}  // namespace dspack::runtime
