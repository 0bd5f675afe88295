// Resident experts as a store, from which every expert can be had at once: for who runs them one by one.
// Threads: single-thread. Lifetime: borrows the experts. Errors: none.
#pragma once

#include "runtime/experts/resident_experts.h"

namespace dspack::runtime {

class ResidentStore final : public ExpertStore {
 public:
  explicit ResidentStore(const ResidentExperts& experts) : experts_(experts) {}

  void begin_pass(const ExpertPass& pass) override { pass_ = pass; }
  [[nodiscard]] const ExpertPass& pass() const override { return pass_; }
  void accept_drafts(uint32_t /*rows*/) override {}
  [[nodiscard]] Result<std::unique_ptr<ExpertRequest>> request(LayerId layer,
                                                               std::vector<ExpertDemand> demands) override {
    return std::unique_ptr<ExpertRequest>(std::make_unique<Request>(experts_, layer, std::move(demands)));
  }
  void expect(LayerId /*layer*/, std::span<const ExpertId> /*experts*/) override {}

 private:
  class Request final : public ExpertRequest {
   public:
    Request(const ResidentExperts& experts, LayerId layer, std::vector<ExpertDemand> demands)
        : experts_(experts), layer_(layer), demands_(std::move(demands)) {}
    Result<ExpertLease> next(const std::stop_token& /*stop*/) override {
      DSPACK_CHECK(taken_ < demands_.size(), "every demand was taken");
      const size_t index = taken_++;
      return ExpertLease(index, experts_.weights(layer_, demands_[index].expert));
    }
    bool is_ready() override { return true; }

   private:
    const ResidentExperts& experts_;
    LayerId layer_;
    std::vector<ExpertDemand> demands_;
    size_t taken_ = 0;
  };

  const ResidentExperts& experts_;
  ExpertPass pass_;
};

}  // namespace dspack::runtime
