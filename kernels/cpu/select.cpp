#include <string>

#include "kernels/cpu/ops_table.h"

namespace dspack::kernels {
namespace {

std::string known_names() {
  std::string names;
  for (const InstructionSet& set : instruction_sets()) {
    names += (names.empty() ? "" : ", ") + std::string(set.ops->name);
  }
  return names;
}

}  // namespace

Result<const CpuOps*> select_cpu_ops(CpuFeatures have, std::string_view forced) {
  for (const InstructionSet& set : instruction_sets()) {
    if (!forced.empty() && set.ops->name != forced) continue;
    if (set.runs_on(have)) return set.ops;
    if (forced.empty()) continue;
    return Error{ErrorKind::unsupported, "this processor lacks the instruction set " + std::string(forced)};
  }
  return Error{ErrorKind::unsupported,
               "no instruction set is called '" + std::string(forced) + "'; this program has " + known_names()};
}

}  // namespace dspack::kernels
