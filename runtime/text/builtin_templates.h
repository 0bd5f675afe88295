// The chat templates that dsrun brings along, for repositories that have none: our own sources (templates/*.jinja), one
// for each family of releases. A release is its family's source and what differs, in the variable `release`.
// Threads: thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// As "deepseek-v3".
[[nodiscard]] std::vector<std::string> builtin_template_names();
/// The Jinja source; nullopt: there is no such name.
[[nodiscard]] std::optional<std::string> builtin_template(std::string_view name);

// The files of templates/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kDeepseekV2Source;
extern const std::string_view kDeepseekV3Source;
extern const std::string_view kDeepseekV30324Source;
extern const std::string_view kDeepseekR1Source;
extern const std::string_view kDeepseekV31Source;
extern const std::string_view kKimiK2Source;

}  // namespace dspack::runtime
