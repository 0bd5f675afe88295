// The options of every verb that loads a model: context, layers, memory, source and device.
// Threads: main. Lifetime: `load` must live until the command line has been parsed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "format/cli/option_table.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// All of them, under their headings, and the --dev keys that go with them. `about_context`: of --ctx, where it means
/// something else than room for a conversation.
void add_model_options(format::OptionTable& table, LoadOptions& load, const std::string& about_context = {});

/// To be called when all were read. Errors: invalid, options that contradict each other.
[[nodiscard]] Result<void> check_model_options(const LoadOptions& load);

/// --trace, and the --dev key that chooses a policy of eviction: of runs whose routes are of interest.
void add_route_options(format::OptionTable& table, LoadOptions& load);

/// The name of one of these policies. Errors: invalid.
[[nodiscard]] Result<std::string> parse_policy(std::string_view name, std::span<const NamedPolicy> policies);

}  // namespace dspack::runtime
