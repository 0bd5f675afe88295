#include "kernels/device_facts.h"

#include <string_view>

#include "kernels/cpu/ops_table.h"
#include "kernels/load_cuda.h"

namespace dspack::kernels {

std::string device_facts() {
  const CpuFeatures have = detect_cpu_features();
  std::string text = "instruction sets ";
  std::string_view used;
  for (const InstructionSet& set : instruction_sets()) {  // widest first
    text.append(" ").append(set.ops->name);
    if (used.empty() && set.runs_on(have)) used = set.ops->name;
  }
  text.append("; this machine uses ").append(used);
  text.append("\nCUDA library      ").append(cuda_library_fact()).append("\n");
  return text;
}

}  // namespace dspack::kernels
