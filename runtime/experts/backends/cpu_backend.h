// Computes experts on the CPU, in the slots of host memory: all of them if the CPU runs the model, or, beside a device,
// those that it would finish before the device. Then the wave's input is copied along with the routes, and the device
// fetches results row by row. The CPU sums in another order than the device.
// Threads: single-thread. Lifetime: borrows host and queue; work given to the queue is borrowed until that is
// synchronised for the next layer. Errors: budget.
#pragma once

#include <deque>
#include <memory>

#include "runtime/experts/backend.h"
#include "runtime/experts/executor.h"

namespace dspack::runtime {

class CpuBackend final : public ExpertBackend {
 public:
  /// Computes all experts: `queue` and `scratch` (kernels::ExpertPartsArgs) are the host's.
  CpuBackend(kernels::Queue& queue, kernels::Slice scratch) : queue_(queue), scratch_(scratch) {}
  /// Beside `device`, whose queue is `queue`.
  [[nodiscard]] static Result<std::unique_ptr<CpuBackend>> beside(kernels::Device& device, kernels::Queue& queue,
                                                                  kernels::Device& host, const ExecutorShape& shape,
                                                                  const MissOptions& miss);
  /// Host memory needed beside a device.
  [[nodiscard]] static uint64_t bytes_beside(const kernels::Device& host, const ExecutorShape& shape);

  void begin_pass(const ExpertPass& pass) override { pass_ = pass; }
  void before_routes(const kernels::Rows& x) override;
  void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) override;
  [[nodiscard]] Eta eta(const ExpertWave& wave, size_t group) override;
  void take(const ExpertWave& wave, size_t group, ExpertLease lease) override;
  void enqueue_taken(const ExpertWave& wave) override;
  [[nodiscard]] std::optional<Computed> compute_next(const ExpertWave& wave) override;
  void add_to(ExpertStoreStats& stats) const override;

 private:
  [[nodiscard]] bool is_beside() const { return own_queue_ != nullptr; }
  /// Whether experts of this pass may be computed beside the device.
  [[nodiscard]] bool may_share() const;
  [[nodiscard]] kernels::Rows staged_rows(uint64_t offset, uint32_t rows) const;
  /// Computes one expert by itself.
  void compute(const ExpertWave& wave, const RoutedGroup& group, const ExpertWeights& weights);
  /// Computes all waiting experts in one call.
  void compute_waiting(const ExpertWave& wave);

  kernels::Queue& queue_;   // the executor's
  kernels::Slice scratch_;  // the CPU's
  ExpertPass pass_;
  // Beside a device:
  MissOptions miss_;
  uint32_t hidden_ = 0, top_k_ = 0, max_rows_ = 0;
  std::unique_ptr<kernels::Queue> own_queue_;  // the CPU's; null: queue_ is
  std::unique_ptr<kernels::Buffer> staging_;   // pinned: input, then parts
  std::unique_ptr<kernels::Buffer> own_scratch_;
  uint32_t input_rows_ = 0;  // rows of the present wave
  WorkRate rate_;
  std::deque<Computed> waiting_;  // taken, not computed yet; without a device: found in memory, computed together
  double backlog_ = 0;            // seconds that these are expected to take
};

}  // namespace dspack::runtime
