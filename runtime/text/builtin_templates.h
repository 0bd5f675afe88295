// The chat templates that dsrun brings along, for repositories that have none: our own sources (templates/*.jinja), one
// for each family of releases. A release is its family's source and what differs, in the variable `release`.
// Threads: thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// What a template takes that the repositories' own ones do not.
struct TemplateTraits {
  bool has_developer = false;     // the role; for others, a developer is the system
  bool parses_arguments = false;  // calls' arguments are objects, also where they came as JSON text
  /// DeepSeek-V4's, for which DeepSeek's own service sets the rules: there is the role latest_reminder; parts of a
  /// content have an empty line between; arguments that are no object are one argument of this name; an effort also
  /// says whether to reason; and tokens alone are marks, in prompts and in answers, not what someone spells like them.
  bool is_v4 = false;
  bool continues_prefix = false;  // a last message with `prefix` ends where the answer goes on with it
};

struct BuiltinTemplate {
  std::string source;  // Jinja
  TemplateTraits traits;
};

/// As "deepseek-v3".
[[nodiscard]] std::vector<std::string> builtin_template_names();
/// nullopt: there is no such name.
[[nodiscard]] std::optional<BuiltinTemplate> builtin_template(std::string_view name);
/// The one for models whose repositories have a program in its place, by config.json's `model_type`, and whether it has
/// keys of DSpark, `dspark_*`, which DeepSeek-V4 has since its releases of 31 July; nullopt: they have a template of
/// their own.
[[nodiscard]] std::optional<std::string_view> builtin_template_of(std::string_view model_type, bool has_dspark = false);

// The files of templates/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kDeepseekV2Source;
extern const std::string_view kDeepseekV3Source;
extern const std::string_view kDeepseekV30324Source;
extern const std::string_view kDeepseekR1Source;
extern const std::string_view kDeepseekV31Source;
extern const std::string_view kDeepseekV32Source;
extern const std::string_view kDeepseekV4Source;
extern const std::string_view kKimiK2Source;

}  // namespace dspack::runtime
