// Experts in device memory as a store that hands them out one by one: for who runs them so. What is missing is copied
// when it is taken; the queue that computes waits for it on the device.
// Threads: single-thread. Lifetime: borrows tier, host store and queue. Precondition: a lease ends when the queue has
// run what was enqueued with it. Errors: those of the host store.
#pragma once

#include <memory>
#include <vector>

#include "runtime/experts/vram/vram_tier.h"

namespace dspack::runtime {

class TieredStore final : public ExpertStore, private ExpertLease::Pin {
 public:
  TieredStore(VramTier& tier, StreamedStore& host, kernels::Queue& queue) : tier_(tier), host_(host), queue_(queue) {}

  // Passes begin and drafts stand where the tier and the host's store are told of it.
  void begin_pass(const ExpertPass& /*pass*/) override {}
  void accept_drafts(uint32_t /*rows*/) override {}
  [[nodiscard]] const ExpertPass& pass() const override { return host_.pass(); }
  [[nodiscard]] Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                               std::vector<ExpertDemand> demands) override;
  void expect(LayerId /*layer*/, std::span<const ExpertId> /*experts*/) override {}

 private:
  class Request;
  void release(uint64_t /*slot*/) override {}

  VramTier& tier_;
  StreamedStore& host_;
  kernels::Queue& queue_;
};

}  // namespace dspack::runtime
