#include "format/tensor_name.h"

#include <array>
#include <charconv>
#include <utility>

namespace dspack::format {
namespace {

constexpr std::array<std::pair<Role, std::string_view>, 10> kRoles{{
    {Role::embed, "embed"},
    {Role::head, "head"},
    {Role::attention, "attention"},
    {Role::norm, "norm"},
    {Role::router, "router"},
    {Role::shared_expert, "shared_expert"},
    {Role::routed_expert, "routed_expert"},
    {Role::dense_mlp, "dense_mlp"},
    {Role::mtp, "mtp"},
    {Role::other, "other"},
}};

// What stands behind "model.layers.<n>." and what it means. Longest match is not needed: no prefix begins another.
constexpr std::array<std::pair<std::string_view, Role>, 14> kLayerParts{{
    {"self_attn.", Role::attention},
    {"input_layernorm.", Role::norm},
    {"post_attention_layernorm.", Role::norm},
    {"mlp.gate.", Role::router},
    {"mlp.shared_experts.", Role::shared_expert},
    {"mlp.experts.", Role::routed_expert},
    {"mlp.gate_proj.", Role::dense_mlp},
    {"mlp.up_proj.", Role::dense_mlp},
    {"mlp.down_proj.", Role::dense_mlp},
    {"enorm.", Role::mtp},
    {"hnorm.", Role::mtp},
    {"eh_proj.", Role::mtp},
    {"shared_head.", Role::mtp},
    {"embed_tokens.", Role::mtp},
}};

constexpr std::string_view kLayersPrefix = "model.layers.";
constexpr std::string_view kExpertsPart = "mlp.experts.";

/// Takes "<number>." (at most kMaxId) from the front of `text`. Numbers with a leading zero are not numbers of ours.
std::optional<uint32_t> take_number(std::string_view& text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || (dot > 1 && text.front() == '0')) return std::nullopt;
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + dot, number);
  if (error != std::errc() || end != text.data() + dot || number > kMaxId) return std::nullopt;
  text.remove_prefix(dot + 1);
  return number;
}

struct Split {
  std::optional<LayerId> layer;
  std::optional<ExpertId> expert;
  std::string_view part;  // behind the layer number
  std::string_view rest;  // behind the expert number
};

Split split_name(std::string_view name) {
  if (!name.starts_with(kLayersPrefix)) return {};
  std::string_view part = name.substr(kLayersPrefix.size());
  const std::optional<uint32_t> layer = take_number(part);
  if (!layer) return {};
  Split split{.layer = LayerId(*layer), .expert = {}, .part = part, .rest = {}};
  if (part.starts_with(kExpertsPart)) {
    std::string_view rest = part.substr(kExpertsPart.size());
    if (const std::optional<uint32_t> expert = take_number(rest)) {
      split.expert = ExpertId(*expert);
      split.rest = rest;
    }
  }
  return split;
}

void replace_once(std::string& text, std::string_view what, const std::string& with) {
  if (const size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), with);
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

TensorName parse_tensor_name(std::string_view name) {
  if (name.starts_with("model.embed_tokens.")) return {.role = Role::embed, .layer = {}, .expert = {}};
  if (name.starts_with("model.norm.") || name.starts_with("lm_head."))
    return {.role = Role::head, .layer = {}, .expert = {}};
  const Split split = split_name(name);
  TensorName parsed{.role = Role::other, .layer = split.layer, .expert = split.expert};
  for (const auto& [part, role] : kLayerParts) {
    if (split.part.starts_with(part)) parsed.role = role;
  }
  if (parsed.role == Role::routed_expert && !parsed.expert) parsed.role = Role::other;  // "mlp.experts.gate_up_proj"
  return parsed;
}

std::string name_template(std::string_view name) {
  const Split split = split_name(name);
  if (!split.layer) return std::string(name);
  std::string text = std::string(kLayersPrefix) + "{layer}.";
  if (!split.expert) return text.append(split.part);
  return text.append(kExpertsPart).append("{expert}.").append(split.rest);
}

std::string expand_template(std::string_view text, std::optional<LayerId> layer, std::optional<ExpertId> expert) {
  std::string name(text);
  if (layer) replace_once(name, "{layer}", std::to_string(layer->value));
  if (expert) replace_once(name, "{expert}", std::to_string(expert->value));
  return name;
}

std::vector<std::string> scale_names(std::string_view weight_name) {
  const std::string name(weight_name);
  std::vector<std::string> names{name + "_scale_inv", name + "_scale"};
  if (name.ends_with(".weight")) names.push_back(name.substr(0, name.size() - 6) + "scale");
  return names;
}

}  // namespace dspack::format
