#include "runtime/budget/trial_expert.h"

#include <algorithm>

namespace dspack::runtime {

Result<TrialExpert> find_trial_expert(const format::Checkpoint& checkpoint, const DeviceExperts& experts) {
  const auto first = std::ranges::find_if(
      checkpoint.experts(), [&](const auto& expert) { return experts.layers.contains(expert.first.layer); });
  if (first == checkpoint.experts().end()) return Error{ErrorKind::not_found, "the checkpoint holds no routed expert"};
  TrialExpert found;
  found.key = first->first;
  TRY_ASSIGN(found.slot, plan_slot(checkpoint, found.key, experts.shape));
  DeviceExperts of_layer = experts;
  of_layer.layers = {found.key.layer};
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, of_layer, ExpertPresence::some));
  found.layout = layouts.at(found.key.layer);
  return found;
}

}  // namespace dspack::runtime
