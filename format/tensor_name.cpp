#include "format/tensor_name.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <utility>

namespace dspack::format {
namespace {

// The known families of tensor names: the prefixes of layer and expert numbers, and the meaning of the parts after
// them.

/// The beginning of a name, or of its remaining part, and the role of such tensors.
struct NamePart {
  std::string_view begin;
  Role role = Role::other;
};

struct NameFamily {
  NameAuthor author = NameAuthor::transformers;
  std::string_view experts;          // between the layer's number and the expert's: "mlp.experts."
  std::span<const NamePart> layer;   // after a layer's number; in all families, none is a prefix of another
  std::span<const NamePart> global;  // outside of layers, after the prefix
};

/// The part between such a prefix and the number of a layer.
struct NameStack {
  std::string_view begin;
  bool mtp = false;              // multi-token-prediction modules, counted from 0
  std::string_view layers = {};  // beginning of the names of the layers that such modules come after
};

/// First words of the names of an expert's matrices and of tensors that belong to them: "gate_up_proj" of
/// "gate_up_proj_blocks".
struct ProjectionWord {
  std::string_view word;
  uint32_t use = 0;  // as order_of_use
};

// Hugging Face transformers: DeepSeek-V2 and V3, Kimi-K2, Qwen's mixtures of experts, GLM, gpt-oss.
constexpr NamePart kTransformersLayer[] = {
    {"self_attn.", Role::attention},
    {"linear_attn.", Role::attention},
    {"input_layernorm.", Role::norm},
    {"post_attention_layernorm.", Role::norm},
    {"mlp.gate.", Role::router},
    {"mlp.router.", Role::router},
    {"mlp.expert_bias", Role::router},
    {"mlp.shared_experts.", Role::shared_expert},
    {"mlp.shared_expert.", Role::shared_expert},
    {"mlp.shared_expert_gate.", Role::shared_expert},
    {"mlp.gate_proj.", Role::dense_mlp},
    {"mlp.up_proj.", Role::dense_mlp},
    {"mlp.down_proj.", Role::dense_mlp},
    {"enorm.", Role::mtp},
    {"hnorm.", Role::mtp},
    {"eh_proj.", Role::mtp},
    {"shared_head.", Role::mtp},
    {"embed_tokens.", Role::mtp},
};
constexpr NamePart kTransformersGlobal[] = {
    {"embed_tokens.", Role::embed},
    {"norm.", Role::head},
    {"lm_head.", Role::head},
};

// Also transformers, for models whose authors named the matrices: Mixtral, Phi-MoE, MiniMax, Kimi-K3.
constexpr NamePart kMixtralLayer[] = {
    {"block_sparse_moe.gate.", Role::router},
    {"block_sparse_moe.e_score_correction_bias", Role::router},
    {"block_sparse_moe.shared_experts.", Role::shared_expert},
};

// Llama-4, Jamba, LFM2.
constexpr NamePart kLlamaLayer[] = {
    {"feed_forward.router.", Role::router},       {"feed_forward.gate.", Role::router},
    {"feed_forward.expert_bias", Role::router},   {"feed_forward.shared_expert.", Role::shared_expert},
    {"feed_forward.gate_proj.", Role::dense_mlp}, {"feed_forward.up_proj.", Role::dense_mlp},
    {"feed_forward.down_proj.", Role::dense_mlp},
};

// DeepSeek's own: what its inference code reads, and DeepSeek-V4 as released.
constexpr NamePart kDeepSeekLayer[] = {
    {"attn.", Role::attention},
    {"attn_norm.", Role::norm},
    {"ffn_norm.", Role::norm},
    {"hc_attn_", Role::residual},  // DeepSeek-V4
    {"hc_ffn_", Role::residual},
    {"ffn.gate.", Role::router},
    {"ffn.shared_experts.", Role::shared_expert},
    {"ffn.w1.", Role::dense_mlp},
    {"ffn.w2.", Role::dense_mlp},
    {"ffn.w3.", Role::dense_mlp},
    {"e_proj.", Role::mtp},
    {"h_proj.", Role::mtp},
    {"main_proj.", Role::mtp},  // drafting stages of DeepSeek-V4
    {"main_norm.", Role::mtp},
    {"markov_head.", Role::mtp},
    {"confidence_head.", Role::mtp},
    {"norm.", Role::mtp},
    {"head.", Role::mtp},
    {"emb.", Role::mtp},
    {"hc_head_", Role::mtp},
};
constexpr NamePart kDeepSeekGlobal[] = {
    {"embed.", Role::embed},
    {"head.", Role::head},
    {"hc_head_", Role::head},
};

// Mistral's own: Mistral-Large-3.
constexpr NamePart kMistralLayer[] = {
    {"attention.", Role::attention},
    {"attention_norm.", Role::norm},
    {"gate.", Role::router},
    {"shared_experts.", Role::shared_expert},
    {"feed_forward.w1.", Role::dense_mlp},
    {"feed_forward.w2.", Role::dense_mlp},
    {"feed_forward.w3.", Role::dense_mlp},
};
constexpr NamePart kMistralGlobal[] = {
    {"tok_embeddings.", Role::embed},
    {"output.", Role::head},
};

constexpr NameFamily kFamilies[] = {
    {.author = NameAuthor::transformers,
     .experts = "mlp.experts.",
     .layer = kTransformersLayer,
     .global = kTransformersGlobal},
    {.author = NameAuthor::transformers, .experts = "block_sparse_moe.experts.", .layer = kMixtralLayer, .global = {}},
    {.author = NameAuthor::transformers, .experts = "feed_forward.experts.", .layer = kLlamaLayer, .global = {}},
    {.author = NameAuthor::deepseek, .experts = "ffn.experts.", .layer = kDeepSeekLayer, .global = kDeepSeekGlobal},
    {.author = NameAuthor::mistral, .experts = "experts.", .layer = kMistralLayer, .global = kMistralGlobal},
};

constexpr std::string_view kPrefixes[] = {
    "model.language_model.",  // Qwen3-VL, Qwen3.5, GLM-4.5V
    "model.",
    "language_model.model.",  // Kimi-K2.5, Llama-4, InternVL
    "language_model.",
    "thinker.model.",  // Qwen3-Omni; its "talker." is another model with experts of the same numbers
    "thinker.",
    "",
};

constexpr NameStack kStacks[] = {
    {.begin = "layers."},
    {.begin = "mtp.layers.", .mtp = true, .layers = "model.layers."},  // Qwen3-Next, Qwen3.5
    {.begin = "mtp.", .mtp = true, .layers = "layers."},               // DeepSeek-V4
};

constexpr ProjectionWord kProjections[] = {
    {"gate_up_proj", 0}, {"gate_proj", 0}, {"up_proj", 1}, {"down_proj", 2},
    {"w13", 0},          {"w1", 0},        {"w3", 1},      {"w2", 2},
};

/// The family of most models first.
std::span<const NameFamily> name_families() {
  return kFamilies;
}

/// Prefixes of all names of a language model, longer ones before their own prefixes; the last is empty. Names of any
/// family may follow.
std::span<const std::string_view> name_prefixes() {
  return kPrefixes;
}

std::span<const NameStack> name_stacks() {
  return kStacks;
}

std::span<const ProjectionWord> projection_words() {
  return kProjections;
}

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
  std::string_view layers;  // NameStack
};

Stack find_stack(std::string_view name) {
  for (const std::string_view prefix : name_prefixes()) {
    if (!name.starts_with(prefix)) continue;
    for (const NameStack& stack : name_stacks()) {
      if (name.substr(prefix.size()).starts_with(stack.begin))
        return {name.substr(0, prefix.size() + stack.begin.size()), stack.mtp, stack.layers};
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
  return std::string(split.stack.layers) + std::to_string(layer_behind(*split.layer, layers).value) + "." +
         std::string(split.part);
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
