// Chat templates that dsrun includes for repositories without one: our own sources (templates/*.jinja), one for each
// family of releases. A release is its family's source and its differences, in the variable `release`.
// Threads: thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// Properties of a template that the repositories' own ones lack.
struct TemplateTraits {
  bool has_developer = false;     // knows the role; for others, a developer is the system
  bool parses_arguments = false;  // calls' arguments are objects, also if they were given as JSON text
  /// Follows DeepSeek-V4's rules as DeepSeek's own service has them: the role latest_reminder exists; content parts are
  /// joined by an empty line; arguments that are not an object become one argument named "arguments"; an effort also
  /// switches reasoning; and only tokens are marks, in prompts and in answers, never text that spells them.
  bool is_v4 = false;
  bool continues_prefix = false;  // a last message with `prefix` is left open, so that the answer continues it
};

struct BuiltinTemplate {
  std::string source;  // Jinja
  TemplateTraits traits;
};

/// Names such as "deepseek-v3".
[[nodiscard]] std::vector<std::string> builtin_template_names();
/// nullopt: no such name.
[[nodiscard]] std::optional<BuiltinTemplate> builtin_template(std::string_view name);
/// The template for models whose repositories have a program instead, by config.json's `model_type` and whether it has
/// keys of DSpark, `dspark_*`, which DeepSeek-V4 has since its releases of 31 July; nullopt: the repository has a
/// template.
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
