// An expert store that loads an expert when the router first picks it and keeps it for good.
// Threads: single-thread. Lifetime: borrows what the LoadContext borrows. Errors: see expert_store.h.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/experts/expert_store.h"
#include "runtime/weights/weight_group.h"

namespace dspack::runtime {

/// What the store has done since it was made.
struct ExpertStoreStats {
  uint64_t hits = 0;    // leases of experts that were there
  uint64_t misses = 0;  // leases that had to load
  uint64_t resident_experts = 0;
  uint64_t resident_bytes = 0;
  std::set<ExpertKey> read_experts;                       // each once, however often it was read
  std::map<LayerId, std::set<std::string>> opened_files;  // by layer, relative to the repository
};

class ResidentStore final : public ExpertStore {
 public:
  ResidentStore(const LoadContext& context, uint32_t hidden, uint32_t expert_inner)
      : context_(context), hidden_(hidden), inner_(expert_inner) {}

  [[nodiscard]] Result<std::vector<ExpertLease>> acquire(LayerId layer, std::span<const ExpertId> experts,
                                                         const std::stop_token& stop) override;

  [[nodiscard]] const ExpertStoreStats& stats() const { return stats_; }

 private:
  Result<ExpertLease> load(ExpertKey key, const std::stop_token& stop);

  LoadContext context_;
  uint32_t hidden_;
  uint32_t inner_;
  std::map<ExpertKey, ExpertLease> resident_;
  ExpertStoreStats stats_;
};

}  // namespace dspack::runtime
