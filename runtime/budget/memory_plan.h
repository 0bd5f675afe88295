// Plans the memory of a running model before anything is loaded: which always-needed layers stay, how many experts have
// a slot, how long a chunk of a prompt may be.
//
//   limit = process + reserve + decompression + head + MTP + KV cache + activations + layers (or buffers to stream
//   them) + slots
//
// If a GPU computes (vram_plan.h) and holds all of the model, this process only needs memory to read it:
//
//   limit = process + reserve + decompression + staging
//
// If the GPU holds some of the experts, this process holds others:
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
#include <span>
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

/// The needs of a model, in bytes unless stated otherwise.
struct MemoryNeeds {
  std::vector<LayerNeed> layers;  // each physical layer of the pass once, ascending
  uint32_t least_buffers = 1;     // minimum, if layers stream
  uint64_t process_bytes = 0;     // resident before anything of the plan is allocated
  /// Other allocations: tokenizer, logits, transfer buffers; a server also has its prefix cache and its requests.
  uint64_t reserve_bytes = 0;
  uint64_t decompression_bytes = 0;    // held by threads that read compressed files
  uint64_t head_bytes = 0;             // output head, final norm; on a device the choice of tokens, experts by token
  uint64_t mtp_bytes = 0;              // the whole MTP module
  uint64_t kv_bytes = 0;               // KV cache
  uint64_t resident_expert_bytes = 0;  // all experts, on a device that holds them; valid only if `may_be_resident`
  bool may_be_resident = true;         // false: some are missing, which is an error only when a router picks them
  uint64_t staging_bytes = 0;          // experts on their way to that device
  uint64_t host_scratch_bytes = 0;     // the CPU's, if it computes experts for a device that holds some
  std::vector<SlotLayout> device_layouts;  // slots in a device's memory
  PassRows longest;                        // the most that pay off in the model at once
  std::vector<SlotLayout> layouts;         // slots of experts; empty: a dense model
  uint32_t top_k = 0;
  uint64_t experts_per_token = 0;  // in one pass
  /// Activations of `rows`; grows with them.
  std::function<uint64_t(PassRows rows)> activation_bytes;
  /// The same on a device that holds some of the experts.
  std::function<uint64_t(PassRows rows)> tiered_activation_bytes;
  /// The same on a further device, which computes some of the experts and nothing else.
  std::function<uint64_t(PassRows rows)> further_activation_bytes;
  uint64_t further_workspace_bytes = 0;  // workspace of its queue
  /// Workspace of the device's queue for such waves; grows with them. Empty: none.
  std::function<uint64_t(uint32_t wave)> workspace_bytes;
};

/// The limits of a plan.
struct MemoryLimits {
  std::optional<uint64_t> bytes;  // for the whole process; unset: no limit
  std::string source;             // the limit's origin, for errors: "--ram 24GB"
  /// Total slots; unset: as many as fit.
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
  LayerPlan layers;         // beside a GPU: only layers that stream to it; its buffers are read in every pass
  uint64_t slot_bytes = 0;  // all slots
  uint64_t staging_bytes = 0;
  [[nodiscard]] uint64_t total_bytes() const;

  PassRows rows = {};           // tokens of a prompt at once
  std::vector<uint64_t> slots;  // by MemoryNeeds::layouts, from share_slots
  uint64_t slot_count = 0;      // their sum
  uint64_t experts = 0;         // in the checkpoint
  uint64_t experts_per_token = 0;
  uint64_t token_bytes = 0;            // size of experts_per_token experts
  std::optional<VramPlan> vram;        // set if a GPU computes: the plan of its layers and experts
  std::vector<VramPlan> further = {};  // further GPUs, which hold experts alone
  bool fills_gpus = false;             // several have room for all experts, and read them before the first token
  /// The number of experts that GPUs keep.
  [[nodiscard]] uint64_t vram_slots() const;
};

/// The minimum of slots per layout: one row's experts of one layer, and two that are being read.
[[nodiscard]] uint64_t least_slots(uint32_t top_k);

[[nodiscard]] Result<MemoryPlan> make_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits);

/// The user's settings for a GPU's experts.
struct GpuExperts {
  std::optional<Amount> vram;  // kept by each GPU; unset: all if they fit, else as many as fit
  bool as_they_come = false;   // do not read all of them before the first token, even if they fit
};

/// For a model that a GPU computes: its memory holds all of it, or all but experts that do not fit, some of which are
/// held by `further` GPUs. If the first has room for all, the others stay unused. Errors: also a GPU without room for
/// the rest of the model; a further one without room for its share of a wave.
[[nodiscard]] Result<MemoryPlan> make_gpu_memory_plan(const MemoryNeeds& needs, const MemoryLimits& limits,
                                                      const VramLimits& vram, const GpuExperts& experts = {},
                                                      std::span<const VramLimits> further = {});

/// A warning about a tight plan: empty, or one line. `policy`: the name of the one in use.
[[nodiscard]] std::string memory_note(const MemoryPlan& plan, std::string_view policy);

/// The limit without --ram: the available memory, less a reserve for other programs.
[[nodiscard]] uint64_t default_limit(uint64_t physical_bytes, uint64_t available_bytes, uint64_t resident_bytes);

/// Bytes of every part, slots, streamed layers and the length of a chunk. "limit": null if there is none. "vram": only
/// if a GPU computes. "further_vram": further GPUs, if any.
[[nodiscard]] format::Json to_json(const MemoryPlan& plan);

}  // namespace dspack::runtime
