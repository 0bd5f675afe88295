// Determines the memory needs of a checkpoint's model from its catalogue: no weights are read.
// Threads: single-thread. Lifetime: borrows what the LoadContext borrows for the call; the result's functions copy
// their inputs, but borrow the device. Errors: those of finding weights (linear.h); budget (a KV cache beyond 2^64
// bytes).
#pragma once

#include "runtime/budget/memory_plan.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

struct NeedsOptions {
  ModelOptions model;                     // context, KV cache's type and layer map; its rows are the maximum
  std::set<LayerId> expert_layers;        // layers whose experts a run may want
  bool with_mtp = false;                  // the module will be loaded
  uint32_t sequences = 1;                 // conversations kept at once
  unsigned threads = 1;                   // threads that compute or read
  unsigned readers = 1;                   // threads among these that read
  uint64_t text_bytes = 0;                // size of the tokenizer's file
  uint64_t process_bytes = 0;             // resident now
  const kernels::Device* host = nullptr;  // the CPU, if another device computes
  size_t further = 0;                     // number of devices beside that one, for experts
};

/// The most rows of a pass that pay off on a device, if memory allows. `context`: positions of a sequence.
[[nodiscard]] PassRows longest_pass(const kernels::Device& device, uint32_t context);

/// The largest calls of a model's attention in waves of options.wave_rows.
[[nodiscard]] kernels::WorkspaceShape workspace_shape(const ModelConfig& config, const ModelOptions& options);

[[nodiscard]] Result<MemoryNeeds> find_needs(const LoadContext& context, const ModelConfig& config,
                                             const NeedsOptions& options);

}  // namespace dspack::runtime
