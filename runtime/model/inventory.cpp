#include "runtime/model/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "format/part/completion.h"
#include "format/weights/find_tensor.h"
#include "format/weights/refused_forms.h"
#include "format/weights/weight_format.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kTopLinears[] = {"lm_head"};
constexpr std::string_view kTopVectors[] = {"model.embed_tokens.weight", "model.norm.weight",
                                            "model.rotary_emb.inv_freq"};
constexpr std::string_view kPictureParts[] = {"vision_tower.", "mm_projector.", "multi_modal_projector."};

constexpr std::string_view kLayerTemplate = "model.layers.{layer}.";
// The names below follow this prefix.
constexpr std::string_view kVectors[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                         "self_attn.kv_a_layernorm.weight", "self_attn.rotary_emb.inv_freq"};
// Scales of keys, values, queries and probabilities, which other programs use to round the cache and attention to FP8;
// this program ignores them. By modelopt: self_attn.k_proj.k_scale, v_proj.v_scale; by compressed-tensors:
// self_attn.k_scale, v_scale; by Quark: self_attn.k_proj.output_scale and its like, prob_output_scale; by vLLM's and
// SGLang's own: self_attn.attn.k_scale, kv_scale.
constexpr std::string_view kCacheScales[] = {"k_scale",    "v_scale",      "q_scale",          "kv_scale",
                                             "prob_scale", "output_scale", "prob_output_scale"};
constexpr std::string_view kAttention = "self_attn.";
constexpr std::string_view kLinears[] = {"self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"};
constexpr std::string_view kQuery[] = {"self_attn.q_proj"};
constexpr std::string_view kLatentQuery[] = {"self_attn.q_a_proj", "self_attn.q_b_proj"};
constexpr std::string_view kQueryNorm = "self_attn.q_a_layernorm.weight";
constexpr std::string_view kIndexerLinears[] = {"self_attn.indexer.wq_b", "self_attn.indexer.wk",
                                                "self_attn.indexer.weights_proj"};
constexpr std::string_view kIndexerVectors[] = {"self_attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.bias"};
constexpr std::string_view kDense[] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
constexpr std::string_view kShared[] = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj",
                                        "mlp.shared_experts.down_proj"};
constexpr std::string_view kRouter[] = {"mlp.gate"};
constexpr std::string_view kRouterBias = "mlp.gate.e_score_correction_bias";
constexpr std::string_view kExpert[] = {"mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj",
                                        "mlp.experts.{expert}.down_proj"};
constexpr std::string_view kExperts = "mlp.experts.{expert}.";
constexpr std::string_view kFusedScales[] = {
    "mlp.experts.gate_up_proj_activation_scale", "mlp.experts.down_proj_activation_scale",
    "mlp.experts.gate_up_proj_input_scale", "mlp.experts.down_proj_input_scale"};  // shared by all experts
constexpr std::string_view kFusedProjections[] = {"gate_up_proj", "down_proj"};
// Activation scales are not used, as with FP8 matrices.
constexpr std::string_view kFusedSuffixes[] = {"", "_scale_inv", "_scale", "_activation_scale", "_input_scale"};

// DeepSeek-V4's names.
constexpr std::string_view kWindowTop[] = {"embed.weight", "norm.weight", "hc_head_fn", "hc_head_base",
                                           "hc_head_scale"};
constexpr std::string_view kWindowTopLinears[] = {"head"};
constexpr std::string_view kWindowLayerTemplate = "layers.{layer}.";
constexpr std::string_view kWindowVectors[] = {
    "attn_norm.weight", "ffn_norm.weight", "hc_attn_fn",         "hc_attn_base",        "hc_attn_scale", "hc_ffn_fn",
    "hc_ffn_base",      "hc_ffn_scale",    "attn.q_norm.weight", "attn.kv_norm.weight", "attn.attn_sink"};
constexpr std::string_view kWindowLinears[] = {"attn.wq_a", "attn.wq_b", "attn.wkv",
                                               "attn.wo_a", "attn.wo_b", "ffn.gate"};
constexpr std::string_view kCompressorLinears[] = {"attn.compressor.wkv", "attn.compressor.wgate"};
constexpr std::string_view kCompressorVectors[] = {"attn.compressor.norm.weight", "attn.compressor.ape"};
constexpr std::string_view kEntryIndexerLinears[] = {"attn.indexer.wq_b", "attn.indexer.weights_proj",
                                                     "attn.indexer.compressor.wkv", "attn.indexer.compressor.wgate"};
constexpr std::string_view kEntryIndexerVectors[] = {"attn.indexer.compressor.norm.weight",
                                                     "attn.indexer.compressor.ape"};
constexpr std::string_view kRouterTable = "ffn.gate.tid2eid";
constexpr std::string_view kWindowRouterBias = "ffn.gate.bias";
constexpr std::string_view kWindowShared[] = {"ffn.shared_experts.w1", "ffn.shared_experts.w3",
                                              "ffn.shared_experts.w2"};
constexpr std::string_view kWindowExpert[] = {"ffn.experts.{expert}.w1", "ffn.experts.{expert}.w3",
                                              "ffn.experts.{expert}.w2"};

bool has(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// A tensor's name: all of it, and the part after the layer.
struct Named {
  const format::Checkpoint& checkpoint;
  std::string_view whole;
  std::string_view part;
};

// Whether it is a tensor of one of these linear layers, in the format that stores the layer. If none does, any format's
// suffix is accepted: the missing weight is reported when it is looked up.
bool of_linear(Names layers, const Named& name) {
  const auto begins = [&](std::string_view layer) {
    return name.part.starts_with(layer) && name.part.substr(layer.size()).starts_with('.');
  };
  const auto layer = std::ranges::find_if(layers, begins);
  if (layer == layers.end()) return false;
  const std::string_view suffix = name.part.substr(layer->size() + 1);
  const std::string weight = std::string(name.whole.substr(0, name.whole.size() - suffix.size())) + "weight";
  const auto knows = [&](const format::WeightFormat& format) { return has(format.suffixes, suffix); };
  const format::WeightFormat* storing = format::storing_format(name.checkpoint, weight);
  return storing != nullptr ? knows(*storing) : std::ranges::any_of(format::weight_formats(), knows);
}

bool is_cache_scale(std::string_view part) {
  return part.starts_with(kAttention) && has(kCacheScales, part.substr(part.rfind('.') + 1));
}

bool known_attention(const ModelConfig& config, const Named& name, LayerId layer) {
  if (has(kVectors, name.part) || is_cache_scale(name.part) || of_linear(kLinears, name)) return true;
  if (config.has_indexer(layer) && (has(kIndexerVectors, name.part) || of_linear(kIndexerLinears, name))) return true;
  return config.q_rank == 0 ? of_linear(kQuery, name) : name.part == kQueryNorm || of_linear(kLatentQuery, name);
}

// Whether it is a fused tensor that contains an expert's matrices (format/checkpoint_builder.h), or one of its scales.
bool holds_matrices(const Named& name) {
  if (!name.part.starts_with(kExperts)) return false;
  const std::string_view word = name.part.substr(kExperts.size());
  const auto projection = std::ranges::find_if(kFusedProjections, [&](auto each) { return word.starts_with(each); });
  if (projection == std::end(kFusedProjections) || !has(kFusedSuffixes, word.substr(projection->size()))) return false;
  const std::string gate = std::string(name.whole.substr(0, name.whole.size() - word.size())) + "gate_proj.weight";
  return format::storing_format(name.checkpoint, gate) != nullptr;
}

bool known_moe(const ModelConfig& config, const Named& name, const std::optional<ExpertId>& expert) {
  if (expert) return expert->value < config.experts && (of_linear(kExpert, name) || holds_matrices(name));
  if ((config.shared_experts > 0 && of_linear(kShared, name)) || has(kFusedScales, name.part)) return true;
  return of_linear(kRouter, name) || (config.selection_bias && name.part == kRouterBias);
}

// A layer after the last is an MTP module if config.json counts it, or if it has an eh_proj: some repositories have
// lost the count.
bool is_mtp(const format::Checkpoint& checkpoint, const ModelConfig& config, LayerId layer) {
  return layer.value < config.layers + config.mtp_layers ||
         format::find_tensor(checkpoint, kTransformersNames.layer(layer) + ".eh_proj.weight").has_value();
}

bool known_window_layer(const ModelConfig& config, const Named& name, const format::TensorEntry& tensor) {
  const LayerId layer = *tensor.place.layer;
  if (tensor.place.expert) return tensor.place.expert->value < config.experts && of_linear(kWindowExpert, name);
  if (has(kWindowVectors, name.part) || of_linear(kWindowLinears, name)) return true;
  if (name.part == (config.is_by_token(layer) ? kRouterTable : kWindowRouterBias)) return true;
  if (config.shared_experts > 0 && of_linear(kWindowShared, name)) return true;
  if (config.entry_positions(layer) > 0 && (has(kCompressorVectors, name.part) || of_linear(kCompressorLinears, name)))
    return true;
  return config.has_indexer(layer) && (has(kEntryIndexerVectors, name.part) || of_linear(kEntryIndexerLinears, name));
}

// All tensors of modules for drafts (mtp.*) are known: they cannot change an answer.
bool known_of_window(const format::Checkpoint& checkpoint, const ModelConfig& config,
                     const format::TensorEntry& tensor) {
  const std::string_view name = tensor.name;
  if (!tensor.place.layer) return has(kWindowTop, name) || of_linear(kWindowTopLinears, {checkpoint, name, name});
  if (tensor.place.layer->value >= config.layers) return name.starts_with("mtp.");
  const std::string text = format::name_template(name);
  if (!text.starts_with(kWindowLayerTemplate)) return false;
  const Named part{
      .checkpoint = checkpoint, .whole = name, .part = std::string_view(text).substr(kWindowLayerTemplate.size())};
  return known_window_layer(config, part, tensor);
}

bool known(const format::Checkpoint& checkpoint, const ModelConfig& config, const format::TensorEntry& tensor) {
  if (config.window) return known_of_window(checkpoint, config, tensor);
  const std::string_view name = format::without_wrapper(tensor.name);
  if (!tensor.place.layer) {
    return has(kTopVectors, name) || of_linear(kTopLinears, {checkpoint, name, name}) ||
           std::ranges::any_of(kPictureParts, [&](std::string_view part) { return name.starts_with(part); });
  }
  const LayerId layer = *tensor.place.layer;
  if (layer.value >= config.layers) return is_mtp(checkpoint, config, layer);
  const std::string text = format::name_template(name);
  if (!text.starts_with(kLayerTemplate)) return false;  // another family's names
  const Named part{
      .checkpoint = checkpoint, .whole = name, .part = std::string_view(text).substr(kLayerTemplate.size())};
  if (known_attention(config, part, layer)) return true;
  return config.is_moe(layer) ? known_moe(config, part, tensor.place.expert) : of_linear(kDense, part);
}

// Whether it is one of an expert's two fused projections, left with its own name because the other is missing.
bool is_half_of_fused(const format::TensorEntry& tensor) {
  constexpr std::array kHalves = {"gate_up_proj", "down_proj"};
  constexpr std::array kSuffixes = {"", "_scale_inv", "_scale"};
  if (!tensor.place.expert) return false;
  const std::string_view word = std::string_view(tensor.name).substr(tensor.name.rfind('.') + 1);
  return std::ranges::any_of(kHalves, [&](std::string_view half) {
    return word.starts_with(half) && std::ranges::find(kSuffixes, word.substr(half.size())) != kSuffixes.end();
  });
}

// Tensors that an MTP module has in addition to a layer's.
constexpr std::string_view kModuleTensors[] = {"eh_proj.weight", "enorm.weight", "hnorm.weight"};
constexpr std::string_view kWindowModuleTensors[] = {"e_proj.weight", "h_proj.weight", "enorm.weight", "hnorm.weight",
                                                     "norm.weight",   "hc_head_fn",    "hc_head_base", "hc_head_scale"};
// The same of DSpark's first and last stage.
constexpr std::string_view kFirstStageTensors[] = {"main_proj.weight", "main_norm.weight"};
constexpr std::string_view kLastStageTensors[] = {"norm.weight",
                                                  "hc_head_fn",
                                                  "hc_head_base",
                                                  "hc_head_scale",
                                                  "markov_head.markov_w1.weight",
                                                  "markov_head.markov_w2.weight",
                                                  "confidence_head.proj.weight"};

std::vector<std::string_view> module_tensors(const ModelConfig& config, LayerId layer) {
  std::vector<std::string_view> parts;
  const auto add = [&](Names names) { parts.insert(parts.end(), names.begin(), names.end()); };
  if (!config.dspark) {
    add(config.window ? Names(kWindowModuleTensors) : Names(kModuleTensors));
    return parts;
  }
  if (layer.value == config.layers) add(kFirstStageTensors);
  if (layer.value + 1 == config.layers + config.mtp_layers) add(kLastStageTensors);
  return parts;
}

// Errors: not_found if the MTP module lacks a tensor.
Result<void> require_whole_module(const format::Checkpoint& checkpoint, const ModelConfig& config, LayerId layer) {
  const std::string prefix = config.names->layer(layer) + ".";
  const auto has_weight = [&](std::string_view linear) {
    return format::storing_format(checkpoint, prefix + std::string(linear) + ".weight") != nullptr;
  };
  const bool has_window = config.window.has_value();
  for (const std::string_view part : module_tensors(config, layer))
    TRY(format::find_tensor(checkpoint, prefix + std::string(part)));
  const Names queries = config.q_rank == 0 ? Names(kQuery) : Names(kLatentQuery);
  const Names shared = config.shared_experts > 0 ? (has_window ? Names(kWindowShared) : Names(kShared)) : Names();
  const std::vector<Names> all =
      has_window ? std::vector<Names>{kWindowLinears, shared} : std::vector<Names>{kLinears, queries, shared, kRouter};
  for (const Names linears : all) {
    const auto missing = std::ranges::find_if_not(linears, has_weight);
    if (missing != linears.end()) return format::missing_tensor(checkpoint, prefix + std::string(*missing) + ".weight");
  }
  return {};
}

}  // namespace

Result<void> require_whole_model(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  if (format::is_part(checkpoint)) return {};
  TRY(format::find_tensor(checkpoint, config.names->embedding));
  std::set<LayerId> layers;
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    if (config.is_moe(LayerId(layer))) layers.insert(LayerId(layer));
  }
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    const auto& layer = tensor.place.layer;
    if (!layer || layer->value < config.layers || layer->value >= config.layers + config.mtp_layers) continue;
    if (layers.insert(*layer).second) TRY(require_whole_module(checkpoint, config, *layer));
  }
  for (const LayerId layer : layers) {
    for (uint32_t expert = 0; expert < config.experts; ++expert) {
      if (!checkpoint.expert({layer, ExpertId(expert)}).empty()) continue;
      const std::string name = config.names->expert({layer, ExpertId(expert)});
      return format::missing_tensor(checkpoint, fmt::format("{}.{}.weight", name, config.names->projections.front()))
          .in(fmt::format("layer {}, expert {}", layer.value, expert));
    }
  }
  return {};
}

Result<void> refuse_unknown_tensors(const format::Checkpoint& checkpoint, const ModelConfig& config) {
  // First, because these forms replace weights and scales with other tensors, which would be reported as missing.
  for (const format::TensorEntry& tensor : checkpoint.tensors())
    TRY(format::refuse_form(checkpoint, tensor));
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    const std::string_view bare = format::without_wrapper(tensor.name);
    if (bare.size() != tensor.name.size() && checkpoint.find(bare) != nullptr) {
      return Error{ErrorKind::invalid, fmt::format("{}: the checkpoint has {} as well; remove one of them",
                                                   place_of(checkpoint, tensor), bare)};
    }
    TRY(format::check_scales(checkpoint, tensor));  // otherwise it would fail in the middle of an answer
    if (known(checkpoint, config, tensor)) continue;
    if (is_half_of_fused(tensor)) return format::missing_tensor(checkpoint, tensor.name);
    return Error{ErrorKind::unsupported,
                 fmt::format("{} is a tensor that this program does not know for this config.json, and leaving it out "
                             "might change the result",
                             place_of(checkpoint, tensor))};
  }
  return {};
}

}  // namespace dspack::runtime
