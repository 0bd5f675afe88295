// What lies in a GPU's memory while a model runs on it, decided before anything is loaded: all of the model, or all but
// those experts for which there is no room, and how many tokens of a prompt go through it at once.
//
//   limit = reserve + head + MTP + KV cache + activations + workspace + layers (or buffers to stream them) + experts
//
// Further GPUs, which have experts alone:
//
//   limit = reserve + activations + workspace + experts
//
// Threads: pure functions on plain values. Errors: budget, with the number that would do and the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "format/json.h"
#include "runtime/budget/layer_plan.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/pass_rows.h"

namespace dspack::runtime {

struct MemoryNeeds;

/// What a plan may take of a GPU's memory, and do with it. Bytes; a card of 0: nothing is known of it.
struct VramLimits {
  std::string device;                   // for the error: "NVIDIA H100"
  uint64_t card_bytes = 0;              // that it has
  uint64_t free_bytes = 0;              // that are free now
  std::optional<uint64_t> asked_bytes;  // --vram
  bool may_stream = true;               // layers for which there is no room are copied there in every pass
};

struct VramPlan {
  uint64_t card_bytes = 0;
  uint64_t free_bytes = 0;
  std::optional<uint64_t> limit_bytes;
  uint64_t reserve_bytes = 0;  // what is allocated besides, and what allocating in pieces wastes
  uint64_t head_bytes = 0;
  uint64_t mtp_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t activation_bytes = 0;
  uint64_t workspace_bytes = 0;        // of the queue: partial results of attention, counters
  LayerPlan layers = {};               // those that stream are copied from the host's memory in every pass
  uint64_t expert_bytes = 0;           // of all that it holds, those that pass through included
  std::optional<uint64_t> slots = {};  // for experts that it keeps; unset: it keeps all
  [[nodiscard]] bool holds_all() const { return !slots; }
  [[nodiscard]] uint64_t total_bytes() const;

  PassRows rows = {};  // of a prompt at once
};

/// All of the model; of one without experts layers may stream.
[[nodiscard]] Result<VramPlan> make_vram_plan(const MemoryNeeds& needs, const VramLimits& limits);
/// All but some experts: of these so many as are asked for, else as many as fit. Where none fits, layers may stream.
[[nodiscard]] Result<VramPlan> make_tiered_vram_plan(const MemoryNeeds& needs, const VramLimits& limits,
                                                     const std::optional<Amount>& experts);

/// Experts of further GPUs beside that of `first`, whose rows they take: of all GPUs each keeps so many as are asked
/// for, else as many as fit, but all together no more than there are; then the first and they have as equal shares as
/// their room allows (`first` is changed). Errors: budget, also a GPU without room for its activations.
[[nodiscard]] Result<std::vector<VramPlan>> make_further_vram_plans(const MemoryNeeds& needs, VramPlan& first,
                                                                    std::span<const VramLimits> further,
                                                                    const std::optional<Amount>& experts);

/// "limit": null where there is none; "slots": null where all experts are there; "streamed_layers", "streamed_bytes":
/// as of the host's memory (memory_plan.h).
[[nodiscard]] format::Json to_json(const VramPlan& plan);

}  // namespace dspack::runtime
