#include "format/tensor_name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

#include "format/name_families.h"

namespace dspack::format {
namespace {

constexpr std::array<std::pair<Role, std::string_view>, 11> kRoles{{
    {Role::embed, "embed"},
    {Role::head, "head"},
    {Role::attention, "attention"},
    {Role::norm, "norm"},
    {Role::router, "router"},
    {Role::shared_expert, "shared_expert"},
    {Role::routed_expert, "routed_expert"},
    {Role::dense_mlp, "dense_mlp"},
    {Role::mtp, "mtp"},
    {Role::residual, "residual"},
    {Role::other, "other"},
}};

/// Released tensors have no longer names, and a slice repeats the name for every expert.
constexpr size_t kMaxFusedNameBytes = 512;

// Parts of names that older readers know.
constexpr std::array<std::string_view, 2> kFirstStacks{"model.layers.", "language_model.model.layers."};
constexpr std::string_view kFirstExperts = "mlp.experts.";

// For a weight whose name ends in `ending`: the scale's name is the weight's with its last `replaced` characters
// replaced by `suffix`.
struct ScaleRule {
  std::string_view ending;
  size_t replaced = 0;
  std::string_view suffix;
};
constexpr std::array<ScaleRule, 6> kScaleRules{{
    {.ending = "", .replaced = 0, .suffix = "_scale_inv"},
    {.ending = "", .replaced = 0, .suffix = "_scale"},
    {.ending = ".weight", .replaced = 6, .suffix = "scale"},
    {.ending = ".weight", .replaced = 6, .suffix = "qscale_weight"},  // Mistral
    {.ending = ".weight_packed", .replaced = 7, .suffix = "_scale"},  // compressed-tensors
    {.ending = "_blocks", .replaced = 7, .suffix = "_scales"},        // gpt-oss
}};

constexpr std::string_view kLayerPlaceholder = "{layer}.";

/// Takes "<number>." (at most `most`) from the front of `text`. A number with a leading zero is not accepted.
std::optional<uint32_t> take_number(std::string_view& text, uint32_t most) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || (dot > 1 && text.front() == '0')) return std::nullopt;
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + dot, number);
  if (error != std::errc() || end != text.data() + dot || number > most) return std::nullopt;
  text.remove_prefix(dot + 1);
  return number;
}

/// The part of a name before the layer's number, with the prefix.
struct Stack {
  std::string_view text;  // "model.layers."; empty: no such name
  bool mtp = false;
};

Stack find_stack(std::string_view name) {
  for (const std::string_view prefix : name_prefixes()) {
    if (!name.starts_with(prefix)) continue;
    for (const NameStack& stack : name_stacks()) {
      if (name.substr(prefix.size()).starts_with(stack.begin))
        return {name.substr(0, prefix.size() + stack.begin.size()), stack.mtp};
    }
  }
  return {};
}

/// The part between a layer's and an expert's number, if it begins `part`; empty: it does not.
std::string_view find_experts(std::string_view part) {
  for (const NameFamily& family : name_families()) {
    if (part.starts_with(family.experts)) return part.substr(0, family.experts.size());
  }
  return {};
}

std::optional<LayerId> take_layer(std::string_view& text, bool mtp) {
  const uint32_t most = mtp ? kMaxId - kFirstMtpLayer : kFirstMtpLayer - 1;
  const std::optional<uint32_t> number = take_number(text, most);
  if (!number) return std::nullopt;
  return LayerId(mtp ? kFirstMtpLayer + *number : *number);
}

struct Split {
  Stack stack;
  std::optional<LayerId> layer;  // nullopt: the following members are empty
  std::string_view part;         // after the layer's number
  std::string_view experts;      // the beginning of `part`, up to where an expert's number may follow
  std::optional<ExpertId> expert;
  std::string_view rest;  // after `experts` and the number
};

Split split_name(std::string_view name) {
  Split split{.stack = find_stack(name), .layer = {}, .part = {}, .experts = {}, .expert = {}, .rest = {}};
  if (split.stack.text.empty()) return split;
  std::string_view part = name.substr(split.stack.text.size());
  split.layer = take_layer(part, split.stack.mtp);
  if (!split.layer) return split;
  split.part = part;
  split.experts = find_experts(part);
  split.rest = part.substr(split.experts.size());
  if (split.experts.empty()) return split;
  if (const std::optional<uint32_t> expert = take_number(split.rest, kMaxId)) split.expert = ExpertId(*expert);
  return split;
}

/// A template: as Split, with placeholders for numbers.
struct TemplateSplit {
  std::string_view begin;       // up to the layer's number; for an MTP module that is numbered apart, including it
  bool has_layer = false;       // "{layer}." follows
  std::string_view part;        // after that
  std::string_view experts;     // the beginning of `part`, up to where an expert's placeholder may follow
  std::optional<size_t> entry;  // K of "{expert[K]}", 0 of "{expert}"; nullopt: no placeholder
  std::string_view rest;        // after the placeholder and its dot
};

/// Takes "{expert}." or "{expert[K]}." from the front of `text`; returns K, or 0.
std::optional<size_t> take_expert_placeholder(std::string_view& text) {
  constexpr std::string_view kBegin = "{expert";
  if (!text.starts_with(kBegin)) return std::nullopt;
  std::string_view rest = text.substr(kBegin.size());
  size_t entry = 0;
  if (rest.starts_with('[')) {
    const char* const digits = rest.data() + 1;
    const auto [stop, error] = std::from_chars(digits, rest.data() + rest.size(), entry);
    const bool canonical = error == std::errc() && (*digits != '0' || stop == digits + 1);
    if (!canonical) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
    if (!rest.starts_with(']')) return std::nullopt;
    rest.remove_prefix(1);
  }
  if (!rest.starts_with("}.")) return std::nullopt;
  text = rest.substr(2);
  return entry;
}

/// nullopt: the text has no placeholder for a layer.
std::optional<TemplateSplit> split_template(std::string_view text) {
  const Stack stack = find_stack(text);
  if (stack.text.empty()) return std::nullopt;
  std::string_view part = text.substr(stack.text.size());
  TemplateSplit split;
  if (stack.mtp) {
    if (!take_layer(part, true)) return std::nullopt;
    split.begin = text.substr(0, text.size() - part.size());
  } else {
    if (!part.starts_with(kLayerPlaceholder)) return std::nullopt;
    split.begin = stack.text;
    split.has_layer = true;
    part.remove_prefix(kLayerPlaceholder.size());
  }
  split.part = part;
  split.experts = find_experts(part);
  split.rest = part.substr(split.experts.size());
  if (!split.experts.empty()) split.entry = take_expert_placeholder(split.rest);
  return split;
}

std::optional<Role> find_role(std::span<const NamePart> parts, std::string_view text) {
  const auto found = std::ranges::find_if(parts, [text](const NamePart& part) { return text.starts_with(part.begin); });
  return found == parts.end() ? std::nullopt : std::optional(found->role);
}

Role role_in_layer(std::string_view part) {
  for (const NameFamily& family : name_families()) {
    if (const std::optional<Role> role = find_role(family.layer, part)) return *role;
  }
  return Role::other;
}

Role role_outside_of_layers(std::string_view name) {
  for (const std::string_view prefix : name_prefixes()) {
    if (!name.starts_with(prefix)) continue;
    for (const NameFamily& family : name_families()) {
      if (const std::optional<Role> role = find_role(family.global, name.substr(prefix.size()))) return *role;
    }
  }
  return Role::other;
}

/// The projection word that a component equals, or begins with before an underscore.
const ProjectionWord* find_projection(std::string_view component) {
  for (const ProjectionWord& projection : projection_words()) {
    if (!component.starts_with(projection.word)) continue;
    if (component.size() == projection.word.size() || component[projection.word.size()] == '_') return &projection;
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(Role role) {
  for (const auto& [known, name] : kRoles) {
    if (known == role) return name;
  }
  return "other";
}

std::optional<Role> parse_role(std::string_view name) {
  for (const auto& [role, known] : kRoles) {
    if (known == name) return role;
  }
  return std::nullopt;
}

std::string name_behind(std::string_view name, uint32_t layers) {
  const Split split = split_name(name);
  if (!split.layer || !is_numbered_apart(*split.layer)) return {};
  return "model.layers." + std::to_string(layer_behind(*split.layer, layers).value) + "." + std::string(split.part);
}

std::string_view without_wrapper(std::string_view name) {
  return name.starts_with(kWrapperPrefix) ? name.substr(kWrapperPrefix.size()) : name;
}

TensorName parse_tensor_name(std::string_view name) {
  const Split split = split_name(name);
  TensorName parsed{.role = Role::routed_expert, .layer = split.layer, .expert = split.expert};
  if (split.expert) return parsed;
  if (split.layer) {
    parsed.role = role_in_layer(split.part);
  } else {
    parsed.role = split.stack.mtp ? Role::mtp : role_outside_of_layers(name);  // "mtp.fc.weight"
  }
  return parsed;
}

std::string layer_text(LayerId layer) {
  if (is_numbered_apart(layer)) return "mtp." + std::to_string(layer.value - kFirstMtpLayer);
  return std::to_string(layer.value);
}

std::optional<FusedName> parse_fused_name(std::string_view name) {
  if (name.size() > kMaxFusedNameBytes) return std::nullopt;
  const Split split = split_name(name);
  if (!split.layer || split.experts.empty() || split.expert || split.rest.empty()) return std::nullopt;
  const size_t dot = split.rest.find('.');
  if (dot != std::string_view::npos && split.rest.find('.', dot + 1) != std::string_view::npos) return std::nullopt;
  return FusedName{.layer = *split.layer,
                   .number_at = name.size() - split.rest.size(),
                   .projection = find_projection(split.rest.substr(0, dot)) != nullptr};
}

std::string slice_name(std::string_view name, const FusedName& fused, ExpertId expert) {
  std::string slice(name.substr(0, fused.number_at));
  return slice.append(std::to_string(expert.value)).append(".").append(name.substr(fused.number_at));
}

uint32_t order_of_use(std::string_view name) {
  while (!name.empty()) {
    const std::string_view component = name.substr(0, name.find('.'));
    if (const ProjectionWord* projection = find_projection(component)) return projection->use;
    name.remove_prefix(std::min(name.size(), component.size() + 1));
  }
  return 0;
}

std::string name_template(std::string_view name, std::optional<size_t> entry) {
  const Split split = split_name(name);
  if (!split.layer) return std::string(name);
  std::string text(name.substr(0, name.size() - split.part.size()));
  if (!split.stack.mtp) text.assign(split.stack.text).append(kLayerPlaceholder);
  if (!split.expert) return text.append(split.part);
  text.append(split.experts).append("{expert");
  if (entry) text.append("[").append(std::to_string(*entry)).append("]");
  return text.append("}.").append(split.rest);
}

std::optional<size_t> template_entry(std::string_view text) {
  const std::optional<TemplateSplit> split = split_template(text);
  return split ? split->entry : std::nullopt;
}

std::string expand_template(std::string_view text, std::optional<LayerId> layer, std::optional<ExpertId> expert) {
  const std::optional<TemplateSplit> split = split_template(text);
  if (!layer || !split) return std::string(text);
  std::string name(split->begin);
  if (split->has_layer) name.append(std::to_string(layer->value)).append(".");
  if (!expert || !split->entry) return name.append(split->part);
  return name.append(split->experts).append(std::to_string(expert->value)).append(".").append(split->rest);
}

bool needs_name_families(std::string_view name) {
  const Split split = split_name(name);
  if (!split.layer) return false;
  if (std::ranges::find(kFirstStacks, split.stack.text) == kFirstStacks.end()) return true;
  return split.expert && split.experts != kFirstExperts;
}

std::optional<NameAuthor> name_author(std::string_view name) {
  const Split split = split_name(name);
  if (!split.expert) return std::nullopt;
  const auto family = std::ranges::find(name_families(), split.experts, &NameFamily::experts);
  return family->author;
}

std::optional<std::string> scale_name(std::string_view weight_name, size_t index) {
  for (const ScaleRule& rule : kScaleRules) {
    if (!weight_name.ends_with(rule.ending)) continue;
    if (index-- != 0) continue;
    std::string name;
    name.reserve(weight_name.size() + rule.suffix.size());
    return name.append(weight_name.substr(0, weight_name.size() - rule.replaced)).append(rule.suffix);
  }
  return std::nullopt;
}

std::vector<std::string> scale_names(std::string_view weight_name) {
  std::vector<std::string> names;
  while (auto name = scale_name(weight_name, names.size()))
    names.push_back(*std::move(name));
  return names;
}

}  // namespace dspack::format
