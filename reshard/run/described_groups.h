// The "quantization_config" of a packed repository whose recipe makes integers or NVFP4: compressed-tensors', with a
// group for each form. Threads: pure. Errors: none. Source: compressed-tensors, quantization/quant_config.py and
// quant_scheme.py; its targets are names of modules, regular expressions after "re:" that match from a name's
// beginning, or names of classes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "reshard/plan/plan.h"

namespace dspack::reshard {

/// Modules of the result that the plan has not made integers or NVFP4.
struct OtherModules {
  std::vector<std::string> fp8;     // their matrix is FP8
  std::vector<std::string> values;  // it holds values
  std::vector<std::string> linear;  // entries for those of `values` that a group of all linear layers would mean
};

struct DescribedGroups {
  const char* form = "";  // the first one, for messages
  nlohmann::ordered_json description;
};

/// nullopt: the plan makes neither integers nor NVFP4.
[[nodiscard]] std::optional<DescribedGroups> describe_groups(const Plan& plan, const OtherModules& others);

}  // namespace dspack::reshard
