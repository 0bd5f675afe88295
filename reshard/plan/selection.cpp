#include "reshard/plan/selection.h"

#include <fnmatch.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/near_word.h"
#include "format/base/size.h"

namespace dspack::reshard {
namespace {

using format::Json;

constexpr char kLayers[] = "layers";
constexpr char kExperts[] = "experts";
constexpr char kRole[] = "role";
constexpr char kName[] = "name";

Result<uint32_t> parse_number(std::string_view text) {
  const std::optional<uint64_t> number = parse_decimal(text);
  if (number && *number <= kMaxId) return static_cast<uint32_t>(*number);
  return invalid(fmt::format("\"{}\" is no number from 0 to {}", text, kMaxId));
}

/// The same numbers in ascending order and the fewest ranges.
NumberSet tidied(NumberSet ranges) {
  std::sort(ranges.begin(), ranges.end());
  NumberSet tidy;
  for (const auto& [first, last] : ranges) {
    if (!tidy.empty() && first <= tidy.back().second + 1) {
      tidy.back().second = std::max(tidy.back().second, last);
    } else {
      tidy.emplace_back(first, last);
    }
  }
  return tidy;
}

bool contains(const NumberSet& numbers, uint32_t number) {
  return std::any_of(numbers.begin(), numbers.end(),
                     [&](const auto& range) { return range.first <= number && number <= range.second; });
}

Result<void> set_field(Selector& selector, std::string_view key, const std::string& value) {
  if (key == kLayers || key == kExperts) {
    auto& field = key == kLayers ? selector.layers : selector.experts;
    if (field) return invalid(fmt::format("\"{}\" comes twice; write \"0-2,5\" for several numbers", key));
    auto numbers = parse_numbers(value);
    if (!numbers) return numbers.error().in(fmt::format("\"{}\"", key));
    field = std::move(*numbers);
    return {};
  }
  if (key == kRole) {
    static const std::vector<std::string> kRoles{"embed",  "head",          "attention",     "norm",
                                                 "router", "shared_expert", "routed_expert", "dense_mlp",
                                                 "mtp",    "residual",      "other"};
    const std::optional<format::Role> role = format::parse_role(value);
    if (!role) {
      return invalid(fmt::format("\"{}\" is no role; there are {}{}", value, fmt::join(kRoles, ", "),
                                 format::did_you_mean(value, kRoles)));
    }
    selector.roles.push_back(*role);
    return {};
  }
  if (key == kName) {
    if (value.empty()) return invalid("an empty name matches nothing");
    selector.names.push_back(value);
    return {};
  }
  static const std::vector<std::string> kFields{kLayers, kExperts, kRole, kName};
  return invalid(fmt::format("unknown key \"{}\"; there are {}, {}, {} and {}{}", key, kLayers, kExperts, kRole, kName,
                             format::did_you_mean(key, kFields)));
}

/// The text of a JSON string or unsigned number: a number set may be a plain number.
Result<std::string> text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned()) return std::to_string(value.get<uint64_t>());
  return invalid("is neither a text nor a number");
}

}  // namespace

Result<NumberSet> parse_numbers(std::string_view text) {
  NumberSet ranges;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, comma - begin);
    const size_t dash = part.find('-');
    TRY_ASSIGN(const uint32_t first, parse_number(part.substr(0, dash)));
    uint32_t last = first;
    if (dash != std::string_view::npos) {
      TRY_ASSIGN(last, parse_number(part.substr(dash + 1)));
    }
    if (last < first) return invalid(fmt::format("\"{}\" runs downwards", part));
    ranges.emplace_back(first, last);
    begin = comma + 1;
  }
  return tidied(std::move(ranges));
}

std::string to_string(const NumberSet& numbers) {
  std::string text;
  for (const auto& [first, last] : numbers) {
    if (!text.empty()) text += ',';
    text += first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

bool fits(const Selector& selector, const format::TensorEntry& tensor) {
  const format::TensorName& place = tensor.place;
  if (selector.layers && !(place.layer && contains(*selector.layers, place.layer->value))) return false;
  if (selector.experts && !(place.expert && contains(*selector.experts, place.expert->value))) return false;
  if (!selector.roles.empty() && std::ranges::find(selector.roles, place.role) == selector.roles.end()) return false;
  return selector.names.empty() || std::ranges::any_of(selector.names, [&](const std::string& pattern) {
           return ::fnmatch(pattern.c_str(), tensor.name.c_str(), 0) == 0;
         });
}

Result<Selector> selector_of(const Json& value) {
  if (!value.is_object() || value.empty()) {
    return invalid(R"(a selector is an object such as {"layers":"3-5","role":"routed_expert"})");
  }
  Selector selector;
  for (const auto& [key, field] : value.items()) {
    const bool list = field.is_array() && (key == kRole || key == kName);
    if (list && field.empty()) return invalid(fmt::format("\"{}\": an empty list matches nothing", key));
    for (const Json& entry : list ? field : Json::array({field})) {
      const auto text = text_of(entry);
      if (!text) return text.error().in(fmt::format("\"{}\"", key));
      TRY(set_field(selector, key, *text));
    }
  }
  return selector;
}

Json selector_json(const Selector& selector) {
  Json json = Json::object();
  if (selector.layers) json[kLayers] = to_string(*selector.layers);
  if (selector.experts) json[kExperts] = to_string(*selector.experts);
  for (const format::Role role : selector.roles)
    json[kRole].push_back(to_string(role));
  for (const std::string& name : selector.names)
    json[kName].push_back(name);
  return json;
}

Result<Selector> parse_selector(std::string_view text) {
  Selector selector;
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view field = text.substr(at, end - at);
    at = end + 1;
    if (field.empty()) continue;
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) {
      return invalid(
          fmt::format("\"{}\" is not of the form key=value, as in \"layers=3-5 role=routed_expert\"", field));
    }
    TRY(set_field(selector, field.substr(0, equals), std::string(field.substr(equals + 1))));
    any = true;
  }
  if (!any) return invalid("is empty; say \"layers=3-5\", \"experts=0-127\", \"role=router\" or \"name=PATTERN\"");
  return selector;
}

bool takes(const Selection& selection, const format::TensorEntry& tensor) {
  const auto fitting = [&](const Selector& selector) { return fits(selector, tensor); };
  if (!selection.include.empty() && std::ranges::none_of(selection.include, fitting)) return false;
  return std::ranges::none_of(selection.exclude, fitting);
}

Result<std::vector<Selector>> selectors_of(const Json& value) {
  std::vector<Selector> selectors;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& entry : list) {
    TRY_ASSIGN(Selector selector, selector_of(entry));
    selectors.push_back(std::move(selector));
  }
  if (selectors.empty()) return invalid("an empty list says nothing; leave it out");
  return selectors;
}

Json selectors_json(const std::vector<Selector>& selectors) {
  Json json = Json::array();
  for (const Selector& selector : selectors)
    json.push_back(selector_json(selector));
  return json;
}

}  // namespace dspack::reshard
