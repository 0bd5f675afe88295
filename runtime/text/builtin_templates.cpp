#include "runtime/text/builtin_templates.h"

#include <fmt/format.h>

namespace dspack::runtime {
namespace {

struct Release {
  std::string_view name;
  const std::string_view* family;
  std::string_view differences;  // members of a dict in Jinja
  TemplateTraits traits = {};
};

// docs/chat.md lists the repositories of each.
const Release kReleases[] = {
    {"deepseek-v2", &kDeepseekV2Source, ""},
    {"deepseek-v2.5", &kDeepseekV3Source, "'last_system_only': true, 'litter': '        '"},
    {"deepseek-v3", &kDeepseekV3Source, ""},
    {"deepseek-v3-0324", &kDeepseekV30324Source, ""},
    {"deepseek-r1-first", &kDeepseekV3Source, "'last_system_only': true, 'strips_reasoning': true"},
    {"deepseek-r1-closed", &kDeepseekR1Source, ""},
    {"deepseek-r1", &kDeepseekR1Source, "'opens_reasoning': true"},
    {"deepseek-r1-0528", &kDeepseekV30324Source, "'strips_reasoning': true"},
    {"deepseek-v3.1", &kDeepseekV31Source, ""},
    {"deepseek-v3.1-terminus", &kDeepseekV31Source, "'terminus': true"},
    {"deepseek-v3.2", &kDeepseekV32Source, "", {.has_developer = true, .parses_arguments = true}},
    {"deepseek-v4-april",
     &kDeepseekV4Source,
     "'april': true",
     {.has_developer = true, .parses_arguments = true, .is_v4 = true}},
    {"deepseek-v4", &kDeepseekV4Source, "", {.parses_arguments = true, .is_v4 = true, .continues_prefix = true}},
    // As first published in July 2025. Prints a backslash and an n before a result: in the original template they are
    // outside of any string.
    {"kimi-k2-first", &kKimiK2Source,
     R"('default_system': 'You are a helpful assistant<|im_end|>', 'numbers_calls': true,
        'quotes_text_arguments': true, 'before_result': '\\n', 'none_is_text': true)"},
    {"kimi-k2-0905", &kKimiK2Source,
     R"('tools_heading': '\n  # Tools\n  ', 'names': true, 'before_result': '\n    ', 'none_is_text': true,
        'default_system': 'You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>')"},
    {"kimi-k2-0905-open", &kKimiK2Source,
     R"('tools_heading': '\n  # Tools\n  ', 'names': true, 'before_result': '\n    ', 'none_is_text': true,
        'default_system': 'You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>',
        'leaves_last_open': true)"},
    // A line feed follows the default: the tag after it strips only its own indentation, not the end of the line.
    {"kimi-k2", &kKimiK2Source,
     R"('compact_tools': true, 'names': true, 'before_result': '\n',
        'default_system': 'You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>\n')"},
};

}  // namespace

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const Release& release : kReleases)
    names.emplace_back(release.name);
  return names;
}

std::optional<BuiltinTemplate> builtin_template(std::string_view name) {
  for (const Release& release : kReleases) {
    if (release.name == name) {
      return BuiltinTemplate{
          .source = fmt::format("{{%- set release = {{{}}} -%}}{}", release.differences, *release.family),
          .traits = release.traits};
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> builtin_template_of(std::string_view model_type, bool has_dspark) {
  if (model_type == "deepseek_v32") return "deepseek-v3.2";  // V3.2-Exp, of the same type, has a template
  if (model_type == "deepseek_v4") return has_dspark ? "deepseek-v4" : "deepseek-v4-april";
  return std::nullopt;
}

}  // namespace dspack::runtime
