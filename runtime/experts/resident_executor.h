// Runs routed experts that all lie in device memory: one operation a layer, in which the device looks up what its own
// router has picked. Nothing is read back and nothing is waited for, so a pass can be recorded.
// Who listens to single experts (a trace) is served by a grouped executor on the same matrices; who only wants to know
// the routes (a recorder) has them read back.
// Threads: single-thread. Lifetime: borrows device, queue and experts. Errors: budget (scratch); those of the recorder;
// cancelled.
#pragma once

#include <array>
#include <memory>

#include "runtime/experts/grouped_executor.h"
#include "runtime/experts/resident_store.h"

namespace dspack::runtime {

class ResidentExecutor final : public ExpertExecutor {
 public:
  /// `shape.tile_tokens` is the device's own affair.
  [[nodiscard]] static Result<std::unique_ptr<ResidentExecutor>> make(kernels::Device& device, kernels::Queue& queue,
                                                                      const ResidentExperts& experts,
                                                                      const ExecutorShape& shape);

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] bool can_record() const override { return recorder_ == nullptr; }
  [[nodiscard]] Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                 const std::stop_token& stop) override;

  /// See GroupedExecutor.
  void set_recorder(RouteRecorder* recorder) { recorder_ = recorder; }

  [[nodiscard]] uint64_t scratch_bytes() const;
  /// What an executor of this shape would take on the device, unless somebody listens to single experts.
  [[nodiscard]] static uint64_t scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape);
  /// Of loading, and how many passes there were. Routes are not read back, so hits are not counted.
  [[nodiscard]] ExpertStoreStats stats() const;

 private:
  ResidentExecutor(kernels::Device& device, kernels::Queue& queue, const ResidentExperts& experts,
                   const ExecutorShape& shape, std::unique_ptr<kernels::Buffer> scratch);
  [[nodiscard]] Result<GroupedExecutor*> one_by_one();
  [[nodiscard]] Result<void> record_routes(const RoutedTokens& tokens);

  kernels::Device& device_;
  kernels::Queue& queue_;
  const ResidentExperts& experts_;
  ExecutorShape shape_;
  std::unique_ptr<kernels::Buffer> scratch_;
  RouteRecorder* recorder_ = nullptr;
  std::array<uint64_t, kPhases> passes_{};  // by Phase
  ResidentStore store_;
  std::unique_ptr<GroupedExecutor> grouped_;  // made when it is first wanted
};

}  // namespace dspack::runtime
