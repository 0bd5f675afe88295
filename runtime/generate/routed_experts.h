// The routed experts of a run: where they lie and who computes them. Streamed: within slots, read as routers pick them.
// Resident: all of them in device memory, read before the run.
// Threads: single-thread. Lifetime: borrows device, queue and storage. Errors: those of StreamedStore::make or of
// ResidentExperts::load; budget (scratch).
#pragma once

#include <memory>
#include <optional>
#include <stop_token>

#include "runtime/experts/grouped_executor.h"
#include "runtime/experts/resident_executor.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

enum class ExpertPlacement { streamed, resident };

class RoutedExperts {
 public:
  struct Parts {
    kernels::Device& device;
    kernels::Queue& queue;
    WeightStorage& storage;
    format::Progress* progress = nullptr;  // of loading resident experts; nullptr: nobody looks
  };
  /// Of `store`, resident experts have the shape and the layers; none without a layer.
  [[nodiscard]] static Result<RoutedExperts> make(const Parts& parts, ExpertPlacement placement,
                                                  const StreamedStoreOptions& store, const ExecutorShape& shape,
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
};

}  // namespace dspack::runtime
