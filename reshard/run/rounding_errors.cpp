#include "reshard/run/rounding_errors.h"

#include <cmath>
#include <map>

namespace dspack::reshard {
namespace {

double relative_rms(const kernels::Loss& loss) {
  if (loss.squared_error == 0) return 0;
  if (loss.squared_value == 0) return 1;
  return std::sqrt(loss.squared_error / loss.squared_value);
}

struct RoleLoss {
  uint64_t tensors = 0;
  kernels::Loss all;
  double worst = -1;
  std::string worst_name;
};

}  // namespace

format::Json rounding_errors(const Plan& plan, const std::vector<FileDigests>& digests) {
  std::map<format::Role, RoleLoss> roles;
  for (size_t file = 0; file < digests.size(); ++file) {
    for (size_t slot = 0; slot < digests[file].tensors.size(); ++slot) {
      const auto& loss = digests[file].tensors[slot].loss;
      if (!loss) continue;
      const format::TensorEntry& tensor = plan.result.tensors()[plan.files[file].tensors[slot]];
      RoleLoss& role = roles[tensor.place.role];
      ++role.tensors;
      role.all += *loss;
      if (relative_rms(*loss) <= role.worst) continue;
      role.worst = relative_rms(*loss);
      role.worst_name = tensor.name;
    }
  }
  format::Json json;
  for (const auto& [role, loss] : roles) {
    json[std::string(to_string(role))] = {{"tensors", loss.tensors},
                                          {"relative_rms", relative_rms(loss.all)},
                                          {"worst", {{"name", loss.worst_name}, {"relative_rms", loss.worst}}}};
  }
  return json;
}

}  // namespace dspack::reshard
