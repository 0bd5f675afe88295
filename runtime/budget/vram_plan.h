// Plans the memory of a GPU that runs a model, before anything is loaded: it holds all of the model, or all but the
// experts that do not fit; and how many tokens of a prompt are computed at once.
//
//   limit = reserve + head + MTP + KV cache + activations + workspace + layers (or buffers to stream them) + experts
//
// Further GPUs, which hold experts alone:
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

/// A plan's limits on a GPU. Bytes; a card of 0: nothing is known of it.
struct VramLimits {
  std::string device;                   // for the error: "NVIDIA H100"
  uint64_t card_bytes = 0;              // total
  uint64_t free_bytes = 0;              // free now
  std::optional<uint64_t> asked_bytes;  // --vram
  bool may_stream = true;               // layers that do not fit are copied there in every pass
};

struct VramPlan {
  uint64_t card_bytes = 0;
  uint64_t free_bytes = 0;
  std::optional<uint64_t> limit_bytes;
  uint64_t reserve_bytes = 0;  // other allocations, and the waste of allocating in pieces
  uint64_t head_bytes = 0;
  uint64_t mtp_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t activation_bytes = 0;
  uint64_t workspace_bytes = 0;        // the queue's: partial results of attention, counters
  LayerPlan layers = {};               // those that stream are copied from host memory in every pass
  uint64_t expert_bytes = 0;           // all experts that it holds, and a window for those that pass through
  std::optional<uint64_t> slots = {};  // for experts that it keeps; unset: it keeps all
  [[nodiscard]] bool holds_all() const { return !slots; }
  [[nodiscard]] uint64_t total_bytes() const;

  PassRows rows = {};  // tokens of a prompt at once
};

/// All of the model; if it has no experts, layers may stream.
[[nodiscard]] Result<VramPlan> make_vram_plan(const MemoryNeeds& needs, const VramLimits& limits);
/// All but some experts: keeps `experts`, or if unset as many as fit. If none fits, layers may stream.
[[nodiscard]] Result<VramPlan> make_tiered_vram_plan(const MemoryNeeds& needs, const VramLimits& limits,
                                                     const std::optional<Amount>& experts);

/// Experts of further GPUs beside that of `first`, whose rows they take. Each GPU, including the first, keeps the
/// number of experts requested, or if unset as many as fit, but all together no more than exist; then their shares are
/// made as equal as their room allows (`first` is changed). Errors: budget, also a GPU without room for its
/// activations.
[[nodiscard]] Result<std::vector<VramPlan>> make_further_vram_plans(const MemoryNeeds& needs, VramPlan& first,
                                                                    std::span<const VramLimits> further,
                                                                    const std::optional<Amount>& experts);

/// "limit": null if there is none; "slots": null if all experts are there; "streamed_layers", "streamed_bytes": as for
/// host memory (memory_plan.h).
[[nodiscard]] format::Json to_json(const VramPlan& plan);

}  // namespace dspack::runtime
