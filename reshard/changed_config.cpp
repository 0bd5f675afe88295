#include "reshard/changed_config.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "reshard/transform/rules.h"

namespace dspack::reshard {
namespace {

using OrderedJson = nlohmann::ordered_json;  // fields that stay keep their place

constexpr char kQuantisation[] = "quantization_config";
constexpr char kKeptModules[] = "modules_to_not_convert";

/// Where loaders look for the language model's fields: the object itself, or that of a model with more parts.
OrderedJson& language_model(OrderedJson& config) {
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? *text : config;
}

/// The modules, of those that DeepSeek-V3 quantises, whose weights are not FP8; the experts of a layer as one.
std::set<std::string> modules_not_fp8(const format::Checkpoint& result) {
  std::set<std::string> modules;
  for (const format::TensorEntry& tensor : result.tensors()) {
    if (!is_quantised_role(tensor) || tensor.shape.size() != 2 || tensor.dtype == Dtype::f8_e4m3) continue;
    if (!tensor.name.ends_with(".weight")) continue;
    std::string module = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size());
    if (tensor.place.expert) module.resize(module.find(".experts.") + std::string_view(".experts").size());
    modules.insert(std::move(module));
  }
  return modules;
}

bool holds_fp8(const format::Checkpoint& result) {
  return std::ranges::any_of(result.tensors(), [](const auto& tensor) { return tensor.dtype == Dtype::f8_e4m3; });
}

/// The result's own description of its FP8 weights.
void describe_quantisation(OrderedJson& config, const Plan& plan) {
  if (!holds_fp8(plan.result)) {
    config.erase(kQuantisation);
    return;
  }
  OrderedJson& quantisation = config[kQuantisation];
  if (!quantisation.is_object()) {
    quantisation = {{"activation_scheme", "dynamic"},
                    {"fmt", "e4m3"},
                    {"quant_method", "fp8"},
                    {"weight_block_size", {kBlock, kBlock}}};
  }
  const bool narrow =
      std::ranges::any_of(plan.result.tensors(), [](const auto& t) { return t.dtype == Dtype::f8_e8m0; });
  if (narrow) quantisation["scale_fmt"] = "ue8m0";
  const std::set<std::string> modules = modules_not_fp8(plan.result);
  if (!modules.empty()) quantisation[kKeptModules] = modules;
}

}  // namespace

Result<std::optional<std::string>> changed_config(const Plan& plan, format::Repository& source,
                                                  const std::stop_token& stop) {
  if (!plan.recipe.drop_mtp && plan.recipe.transforms.empty()) return std::optional<std::string>();
  const std::string place = source.locate(kConfigPath);
  const auto text = source.read_text(kConfigPath, kMaxConfigBytes, stop);
  if (!text) return text.error().in("the recipe changes what config.json says");
  if (const auto strict = format::parse_json(*text); !strict) return strict.error().in(place);
  OrderedJson config = OrderedJson::parse(*text);
  if (!config.is_object()) return Error{ErrorKind::invalid, place + ": is no JSON object"};
  if (plan.recipe.drop_mtp) language_model(config)["num_nextn_predict_layers"] = 0;
  if (!plan.recipe.transforms.empty()) {
    OrderedJson& nested = language_model(config);
    describe_quantisation(nested.contains(kQuantisation) ? nested : config, plan);
  }
  return std::optional(config.dump(2) + "\n");
}

Result<void> set_aside_config(std::vector<Companion>& companions, const format::Repository& source) {
  for (const Companion& companion : companions) {
    if (companion.path != kSourceConfig) continue;
    return Error{ErrorKind::conflict,
                 fmt::format("{}: the source's config.json would get this name; move the file away",
                             source.locate(companion.source_path))};
  }
  for (Companion& companion : companions) {
    if (companion.path == kConfigPath) companion.path = kSourceConfig;
  }
  return {};
}

}  // namespace dspack::reshard
