// What a queue takes of the GPU's memory for itself: as plans count it, and as its operations share it, one after the
// other. It grows; what it was before stays, since a recorded step
// may still use it. Threads: its queue's. Errors: plans leave room for it; a GPU that has none left has failed
// (gpu::fail), and nothing that is launched from then on uses the address.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/experts_fused.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace dspack::kernels::cuda {

class Workspace {
 public:
  Workspace() = default;
  ~Workspace() {
    for (void* memory : memory_)
      gpu::release(memory);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// 256-byte aligned.
  [[nodiscard]] std::byte* at_least(uint64_t bytes) {
    if (bytes > size_bytes_) {
      auto memory = gpu::allocate(bytes);
      if (memory) {
        memory_.push_back(*memory);
        size_bytes_ = bytes;
      } else {
        gpu::fail({ErrorKind::budget, std::string(gpu::kNoMemoryLeft) + ": " + memory.error().message});
      }
    }
    return memory_.empty() ? nullptr : static_cast<std::byte*>(memory_.back());
  }
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }

 private:
  std::vector<void*> memory_;
  uint64_t size_bytes_ = 0;
};

/// Row numbers of gather_rows and scatter_rows on their way, until the next synchronize.
inline constexpr uint64_t kIndexSpaceBytes = 1 << 20;
/// Counters of experts in one launch.
inline constexpr uint64_t kExpertCounterBytes = kFusedCounters * sizeof(uint32_t);

/// Partial results of attention.
[[nodiscard]] inline uint64_t attention_workspace_bytes(const WorkspaceShape& largest) {
  if (largest.rows == 0 || largest.heads == 0) return 0;
  return attend_scratch_bytes({.rows = largest.rows,
                               .heads = largest.heads,
                               .latent_dim = largest.latent_dim,
                               .rope_dim = largest.rope_dim,
                               .position_limit = std::max(largest.positions, 1U)});
}

[[nodiscard]] inline uint64_t queue_workspace_bytes(const WorkspaceShape& largest) {
  return attention_workspace_bytes(largest) + kIndexSpaceBytes + kExpertCounterBytes;
}

}  // namespace dspack::kernels::cuda
