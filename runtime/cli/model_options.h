// The options of every verb that loads a model: context, layers, memory, source and device.
// Threads: main. Lifetime: `load` must live until the command line has been parsed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "format/cli/option_table.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// Adds them all, under their headings, with the --dev keys that belong to them. `about_context`: help for --ctx, for
/// verbs in which it is not the room for a conversation.
void add_model_options(format::OptionTable& table, LoadOptions& load, const std::string& about_context = {});

/// Call when all options are parsed. Errors: invalid, options that contradict each other.
[[nodiscard]] Result<void> check_model_options(const LoadOptions& load);

/// --trace, and the --dev key for the eviction policy: for runs whose routes are of interest.
void add_route_options(format::OptionTable& table, LoadOptions& load);

/// Checks the name of a policy. Errors: invalid.
[[nodiscard]] Result<std::string> parse_policy(std::string_view name, std::span<const NamedPolicy> policies);

}  // namespace dspack::runtime
