// A device as a GPU is, made of the CPU's: nothing has run when an operation returns, the host cannot address its
// memory, and operations can be recorded. What works on it does not lean on a device that runs everything at once.
//
// What it makes visible:
//   - a missing synchronise: what is downloaded is poison until then (0xFF: NaN, and ids that no table has);
//   - a host span that is changed before the synchronise after its upload: refused when the upload runs; likewise the
//     host's memory that the device reads itself; what it writes there is poison until then;
//   - a buffer that goes while an operation on it has not run: refused;
//   - a place in the memory of another device: refused, but for the host's;
//   - memory that was never written: fresh buffers are poisoned;
//   - a recording that uploads, downloads or waits, or that is nested: refused;
//   - what one queue does before another, where no event says so: queues run in random order (stream_order.h).
// Refused: DSPACK_CHECK. Threads, lifetime: as kernels/ops.h. A queue that goes drops what has not run.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/stream_order.h"

namespace dspack::test {

/// What the queues of a device were asked to do.
struct DeferredCounts {
  /// One upload, and the bytes of others that had been enqueued and not run when it was enqueued.
  struct Upload {
    uint64_t bytes = 0;
    uint64_t under_way = 0;
  };
  uint64_t synchronisations = 0;  // the host waited, for a queue or an event
  uint64_t operations = 0;        // enqueued one by one: not recorded, not in a step
  uint64_t held = 0;              // of these: run_held_experts
  uint64_t held_at_wait = 0;      // of these, those before the host waited last
  uint64_t parts = 0;             // of these: run_expert_parts
  uint64_t recordings = 0;
  uint64_t steps = 0;  // runs of what was recorded
  uint64_t uploaded_bytes = 0;
  uint64_t arrived_bytes = 0;  // of these, those that have been run
  std::vector<Upload> uploads;
  uint64_t downloaded_bytes = 0;
};

class DeferredDevice final : public kernels::Device {
 public:
  /// `inner` must be a host's. Of more than `most_bytes` in all, allocation refuses the rest.
  /// Equal seeds give equal orders of its queues.
  explicit DeferredDevice(std::unique_ptr<kernels::Device> inner, uint64_t most_bytes = UINT64_MAX, uint64_t seed = 1);
  /// A further one of the same machine: queues of both run in one random order, and wait for each other's events.
  DeferredDevice(std::unique_ptr<kernels::Device> inner, const DeferredDevice& beside);

  [[nodiscard]] std::string_view description() const override { return "deferred"; }
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate(uint64_t bytes) override;
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> allocate_host(uint64_t bytes) override;
  [[nodiscard]] std::unique_ptr<kernels::Queue> make_queue() override;
  [[nodiscard]] bool is_host() const override { return false; }
  [[nodiscard]] uint32_t max_window_dim() const override { return inner_->max_window_dim(); }
  [[nodiscard]] kernels::DeviceMemory memory() const override { return {}; }
  [[nodiscard]] Result<std::unique_ptr<kernels::ExpertTable>> make_expert_table(
      std::span<const kernels::ExpertMatrices> experts) override;
  [[nodiscard]] uint64_t experts_scratch_bytes(const kernels::ExpertsShape& shape) const override;

  /// Sum of all buffers ever made.
  [[nodiscard]] uint64_t allocated_bytes() const { return allocated_bytes_; }
  /// allocate_host refuses more than that in all. Before it is used.
  void limit_host(uint64_t most_bytes) { host_bytes_left_ = most_bytes; }
  /// Of all of its queues; it outlives the device.
  [[nodiscard]] std::shared_ptr<const DeferredCounts> counts() const { return counts_; }

 private:
  std::unique_ptr<kernels::Device> inner_;
  uint64_t bytes_left_;
  uint64_t allocated_bytes_ = 0;
  std::atomic<uint64_t> host_bytes_left_{UINT64_MAX};
  std::shared_ptr<StreamOrder> order_;
  std::shared_ptr<DeferredCounts> counts_ = std::make_shared<DeferredCounts>();
};

}  // namespace dspack::test
