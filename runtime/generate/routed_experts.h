// The routed experts of a run: where they lie and who computes them. Streamed: within slots, read as routers pick them.
// Resident: all of them in device memory, read before the run. Tiered: some in device memory, others in the host's,
// read as routers pick them. Threads: single-thread. Lifetime: borrows device, queue and storage. Errors: those of
// StreamedStore::make or of ResidentExperts::load; budget (scratch).
#pragma once

#include <memory>
#include <optional>
#include <stop_token>

#include "runtime/experts/grouped_executor.h"
#include "runtime/experts/resident_executor.h"
#include "runtime/experts/streamed_store.h"
#include "runtime/experts/vram/tiered_executor.h"

namespace dspack::runtime {

enum class ExpertPlacement { streamed, resident, tiered };

class RoutedExperts {
 public:
  struct Parts {
    kernels::Device& device;
    kernels::Queue& queue;
    WeightStorage& storage;
    kernels::Device* host = nullptr;       // the CPU's; for tiered ones
    format::Progress* progress = nullptr;  // of loading resident experts; nullptr: nobody looks
  };
  /// Of `store`, resident experts have the shape and the layers; none without a layer.
  struct Options {
    ExpertPlacement placement = ExpertPlacement::streamed;
    StreamedStoreOptions store;
    ExecutorShape shape;
    uint64_t vram_slots = 0;  // of tiered ones
    MissOptions miss = {};    // likewise
  };
  [[nodiscard]] static Result<RoutedExperts> make(const Parts& parts, const Options& options,
                                                  const std::stop_token& stop);

  [[nodiscard]] ExpertExecutor& executor();
  /// nullptr: they are resident.
  [[nodiscard]] StreamedStore* store() { return store_.get(); }
  /// See GroupedExecutor.
  void set_recorder(RouteRecorder* recorder);

  [[nodiscard]] ExpertStoreStats stats() const;
  /// Of resident experts nothing: no transfer bounds them.
  [[nodiscard]] DecodeBound decode_bound() const;
  [[nodiscard]] uint64_t scratch_bytes() const;

 private:
  RoutedExperts() = default;

  std::unique_ptr<StreamedStore> store_;
  std::unique_ptr<GroupedExecutor> grouped_;
  std::unique_ptr<ResidentExperts> resident_;
  std::unique_ptr<ResidentExecutor> executor_;
  std::unique_ptr<TieredExecutor> tiered_;
};

}  // namespace dspack::runtime
