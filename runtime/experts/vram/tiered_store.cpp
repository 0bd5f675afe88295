#include "runtime/experts/vram/tiered_store.h"

#include "format/base/check.h"

namespace dspack::runtime {

// One expert at a time: a slot is found, or filled, when its expert is taken, so that no two of them meet in one.
class TieredStore::Request final : public ExpertRequest {
 public:
  Request(TieredStore& store, LayerId layer, std::vector<ExpertDemand> demands)
      : store_(store), layer_(layer), demands_(std::move(demands)) {
    store_.tier_.begin_layer(layer_, demands_);
  }

  Result<ExpertLease> next(const std::stop_token& stop) override {
    DSPACK_CHECK(taken_ < demands_.size(), "every demand was taken");
    const size_t index = taken_++;
    const ExpertDemand& demand = demands_[index];
    VramSlot* slot = store_.tier_.use(layer_, demand);
    const bool was_missing = slot == nullptr;
    if (was_missing) {
      TRY_ASSIGN(const auto request, store_.host_.request(layer_, {demand}));
      TRY_ASSIGN(ExpertLease lease, request->next(stop));
      slot = &store_.tier_.move(layer_, demand, std::move(lease));
    }
    if (slot->arrival != nullptr) store_.queue_.wait(*slot->arrival);
    if (was_missing) store_.tier_.reap_oldest();  // its place in the host's memory is free again
    return ExpertLease(index, slot->weights, &store_, slot->entry, was_missing);
  }
  bool is_ready() override { return true; }

 private:
  TieredStore& store_;
  LayerId layer_;
  std::vector<ExpertDemand> demands_;
  size_t taken_ = 0;
};

Result<std::unique_ptr<ExpertRequest>> TieredStore::request(LayerId layer, std::vector<ExpertDemand> demands) {
  return std::unique_ptr<ExpertRequest>(std::make_unique<Request>(*this, layer, std::move(demands)));
}

}  // namespace dspack::runtime
