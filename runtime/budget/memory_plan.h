// What lies in memory while a model runs, decided before anything is loaded: which always-needed layers stay, how many
// experts have a slot, how long a chunk of a prompt may be.
//
//   limit = process + reserve + decompression + head + MTP + KV cache + activations + layers (or buffers to stream
//   them) + slots
//
// Where a GPU computes (vram_plan.h) and holds all of the model, this process's memory holds what reads it:
//
//   limit = process + reserve + decompression + staging
//
// and where it holds some of the experts, others:
//
//   limit = process + reserve + decompression + activations of experts that the CPU computes + slots
//     + layers that the GPU has no room for (or buffers to read them)
//
// Layers come before slots: a layer's bytes are used in every pass, an expert's in some. Threads: pure functions on
// plain values. Errors: budget, with the number that would do and the remedy.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/json.h"
#include "runtime/budget/layer_plan.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/pass_rows.h"
#include "runtime/budget/vram_plan.h"
#include "runtime/experts/slot_layouts.h"

namespace dspack::runtime {

/// What a model needs, bytes unless it says otherwise.
struct MemoryNeeds {
  std::vector<LayerNeed> layers;           // each physical layer of the pass once, ascending
  uint32_t least_buffers = 1;              // for layers that stream
  uint64_t process_bytes = 0;              // resident before anything of the plan is allocated
  /// What is allocated besides: tokenizer, logits, buffers of transfers; of a server its prefix cache and its requests.
  uint64_t reserve_bytes = 0;
  uint64_t decompression_bytes = 0;        // what threads hold that read compressed files
  uint64_t head_bytes = 0;                 // output head and final norm
  uint64_t mtp_bytes = 0;                  // all of the MTP module's
  uint64_t kv_bytes = 0;                   // KV cache
  uint64_t resident_expert_bytes = 0;      // all experts, on a device that holds them; only if `may_be_resident`
  bool may_be_resident = true;             // false: some are missing, which matters when a router picks them
  uint64_t staging_bytes = 0;              // of those that are on their way to it
  uint64_t host_scratch_bytes = 0;         // of the CPU, where it computes experts for a device that holds some
  std::vector<SlotLayout> device_layouts;  // of slots in a device's memory
  PassRows longest;                        // that are worth going through the model at once
  std::vector<SlotLayout> layouts;         // of the experts' slots; empty: a dense model
  uint32_t top_k = 0;
  uint64_t experts_per_token = 0;  // in one pass
  /// Activations of so many rows; grows with them.
  std::function<uint64_t(PassRows rows)> activation_bytes;
  /// The same on a device that holds some of the experts.
  std::function<uint64_t(PassRows rows)> tiered_activation_bytes;
  /// The same on a further device, which computes some of the experts and nothing else.
  std::function<uint64_t(PassRows rows)> further_activation_bytes;
  uint64_t further_workspace_bytes = 0;  // of its queue
  /// What the device's queue takes for itself with such waves; grows with them. Empty: nothing.
  std::function<uint64_t(uint32_t wave)> workspace_bytes;
};

/// What a plan may take.
struct MemoryLimits {
  std::optional<uint64_t> bytes;  // of the whole process; unset: no limit
  std::string source;             // where that comes from, for the error: "--ram 24GB"
  /// Slots in all; unset: as many as fit.
  std::optional<Amount> experts;
};

struct MemoryPlan {
  std::optional<uint64_t> limit_bytes;
  uint64_t process_bytes = 0;
  uint64_t reserve_bytes = 0;
  uint64_t decompression_bytes = 0;
  uint64_t head_bytes = 0;
  uint64_t mtp_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t activation_bytes = 0;
  LayerPlan layers;         // beside a GPU: of those that stream there. Its buffers are read in every pass
  uint64_t slot_bytes = 0;  // of all slots
  uint64_t staging_bytes = 0;
  [[nodiscard]] uint64_t total_bytes() const;

  PassRows rows = {};           // of a prompt at once
  std::vector<uint64_t> slots;  // of each of MemoryNeeds::layouts, as share_slots gives them
  uint64_t slot_count = 0;      // their sum
  uint64_t experts = 0;         // of the checkpoint
  uint64_t experts_per_token = 0;
  uint64_t token_bytes = 0;            // of experts_per_token
  std::optional<VramPlan> vram;        // a GPU computes: layers and experts are there as it says
  std::vector<VramPlan> further = {};  // of further GPUs, with experts alone
  bool fills_gpus = false;             // several have room for all experts, and read them before the first token
  /// Experts that GPUs keep.
  [[nodiscard]] uint64_t vram_slots() const;
};

/// Slots that each layout has at least: one row's experts of one layer, and two that are on their way.
[[nodiscard]] uint64_t least_slots(uint32_t top_k);

[[nodiscard]] Result<MemoryPlan> make_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits);

/// What the user should know of a plan that is tight: nothing, or a line. `policy`: the name of the one in use.
[[nodiscard]] std::string memory_note(const MemoryPlan& plan, std::string_view policy);

/// The limit that holds without --ram: what is available now, less a reserve for others.
[[nodiscard]] uint64_t default_limit(uint64_t physical_bytes, uint64_t available_bytes, uint64_t resident_bytes);

/// Bytes of every part, slots, streamed layers and the length of a chunk. "limit": null where there is none. "vram":
/// only where a GPU holds the model. "further_vram": of further ones, if there are any.
[[nodiscard]] format::Json to_json(const MemoryPlan& plan);

}  // namespace dspack::runtime
