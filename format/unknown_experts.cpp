#include "format/unknown_experts.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dspack::format {
namespace {

constexpr size_t kShownPatterns = 3;

bool is_number(std::string_view component) {
  return !component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The name with N for each number: what its likes have in common.
std::string pattern_of(std::string_view name) {
  std::string pattern;
  while (true) {
    const std::string_view component = name.substr(0, name.find('.'));
    pattern += is_number(component) ? "N" : component;
    if (component.size() == name.size()) return pattern;
    pattern += '.';
    name.remove_prefix(component.size() + 1);
  }
}

}  // namespace

std::optional<std::string> unknown_experts(std::span<const TensorEntry> tensors) {
  uint64_t count = 0;
  std::map<std::string, std::string_view> examples;  // by pattern
  for (const TensorEntry& tensor : tensors) {
    if (tensor.place.role != Role::other || tensor.name.find("expert") == std::string::npos) continue;
    if (const auto fused = parse_fused_name(tensor.name); fused && fused->projection) continue;
    ++count;
    examples.emplace(pattern_of(tensor.name), tensor.name);
  }
  if (count == 0) return std::nullopt;
  std::vector<std::string> shown;
  for (const auto& [pattern, example] : examples) {
    if (shown.size() == kShownPatterns) break;
    shown.push_back(pattern == example ? fmt::format("\"{}\"", example)
                                       : fmt::format("\"{}\" (such as \"{}\")", pattern, example));
  }
  const size_t more = examples.size() - shown.size();
  return fmt::format("{} tensor{} of experts and {} of no known family: {}{}", count,
                     count == 1 ? " speaks" : "s speak", count == 1 ? "has a name" : "have names",
                     fmt::join(shown, ", "), more == 0 ? "" : fmt::format(" and {} more kinds", more));
}

}  // namespace dspack::format
