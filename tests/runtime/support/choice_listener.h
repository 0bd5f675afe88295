// A device that passes everything on to another one and keeps which positions indexers choose. It listens to
// Queue::choose, below all that decides when choices are made, so that a test sees those that attention reads.
// Threads: those of the device below; `HeardChoices` is for one thread. Lifetime: the choices outlive the device.
// Errors: those of the device below; a choice that breaks the rules of kernels::Choice fails the test.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "kernels/ops.h"

namespace dspack::test {

/// What was chosen, of one sequence.
struct HeardChoices {
  /// By position of the query: the chosen positions, ascending, of each layer that chose, in the order of the layers.
  std::map<uint32_t, std::vector<std::vector<uint32_t>>> at;

  void clear() { at.clear(); }
};

class ChoiceListener final : public kernels::Device {
 public:
  ChoiceListener(std::unique_ptr<kernels::Device> inner, std::shared_ptr<HeardChoices> heard)
      : inner_(std::move(inner)), heard_(std::move(heard)) {}

  [[nodiscard]] std::string_view description() const override { return inner_->description(); }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate(uint64_t bytes) override {
    return inner_->allocate(bytes);
  }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate_host(uint64_t bytes) override {
    return inner_->allocate_host(bytes);
  }
  [[nodiscard]] std::unique_ptr<kernels::Queue> make_queue() override;
  [[nodiscard]] bool is_host() const override { return inner_->is_host(); }
  [[nodiscard]] kernels::DeviceMemory memory() const override { return inner_->memory(); }
  [[nodiscard]] Result<std::unique_ptr<kernels::ExpertTable>> make_expert_table(
      std::span<const kernels::ExpertMatrices> experts) override {
    return inner_->make_expert_table(experts);
  }
  [[nodiscard]] uint64_t experts_scratch_bytes(const kernels::ExpertsShape& shape) const override {
    return inner_->experts_scratch_bytes(shape);
  }
  [[nodiscard]] uint64_t workspace_bytes(const kernels::WorkspaceShape& largest) const override {
    return inner_->workspace_bytes(largest);
  }

 private:
  std::unique_ptr<kernels::Device> inner_;
  std::shared_ptr<HeardChoices> heard_;
};

}  // namespace dspack::test
