#include "runtime/experts/expert_returns.h"

#include "format/base/check.h"
#include "runtime/experts/device_cache.h"

namespace dspack::runtime {

bool ExpertReturns::begin(DeviceSlot& slot, const ExpertLayout& layout) {
  DSPACK_CHECK(!present_, "two experts at once on their way back");
  auto host = host_.take_back(slot.key);
  if (!host) return false;
  auto pieces = pieces_of(layout, host->weights(), slot.weights, piece_bytes_);
  if (slot.arrival != nullptr) queue_->wait(*slot.arrival);
  ++slot.pins;
  present_.emplace(Present{.slot = &slot, .host = *std::move(host), .pieces = std::move(pieces), .under_way = {}});
  return true;
}

DeviceSlot* ExpertReturns::advance() {
  if (!present_) return nullptr;
  Present& present = *present_;
  while (true) {
    while (!present.under_way.empty() && present.under_way.front()->is_reached())
      present.under_way.pop_front();
    if (present.next == present.pieces.size() || present.under_way.size() >= kPiecesAhead) break;
    const ExpertPiece& piece = present.pieces[present.next++];
    queue_->download(piece.host, piece.device);
    present.under_way.push_back(queue_->mark());
  }
  if (!present.under_way.empty()) return nullptr;
  DeviceSlot* const slot = present.slot;
  host_.settle_return(slot->key, !queue_->failure().has_value());
  --slot->pins;
  present_.reset();
  return slot;
}

DeviceSlot* ExpertReturns::finish() {
  while (present_) {
    if (!present_->under_way.empty()) present_->under_way.back()->wait();
    if (DeviceSlot* const slot = advance(); slot != nullptr) return slot;
  }
  return nullptr;
}

}  // namespace dspack::runtime
