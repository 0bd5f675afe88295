#include "reshard/run/changed_config.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "format/json.h"
#include "format/weights/weight_format.h"
#include "reshard/plan/transform.h"
#include "reshard/run/described_groups.h"

namespace dspack::reshard {
namespace {

using OrderedJson = nlohmann::ordered_json;  // preserves the order of the fields

constexpr char kQuantisation[] = "quantization_config";
constexpr char kKeptModules[] = "modules_to_not_convert";
constexpr std::string_view kWeight = ".weight";

/// The object that holds the language model's fields: "text_config" in a model with several parts, else the config.
OrderedJson& language_model(OrderedJson& config) {
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? *text : config;
}

bool converts(const Plan& plan, const std::function<bool(Conversion)>& wanted) {
  return std::ranges::any_of(plan.shards, [&](const std::vector<Copy>& copies) {
    return std::ranges::any_of(copies, [&](const Copy& copy) { return wanted(copy.conversion); });
  });
}

// Each entry is compared with every module; models list a few hundred.
constexpr size_t kMaxKeptModules = 10'000;

/// An existing description must be one that the transforms know: any other would be wrong after the change.
Result<void> check_quantisation(const OrderedJson& described, const Plan& plan) {
  if (described.is_null()) return {};
  const auto is = [&](const char* key, const OrderedJson& value) {
    const auto found = described.find(key);
    return found != described.end() && *found == value;
  };
  if (!described.is_object() || !is("quant_method", "fp8")) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("its \"{}\" is not of \"quant_method\" \"fp8\", the one that transforms know", kQuantisation)};
  }
  const auto kept = described.find(kKeptModules);
  if (kept != described.end() && kept->size() > kMaxKeptModules) {
    return Error{ErrorKind::unsupported, fmt::format("its \"{}\" has {} entries, more than the {} that are looked at",
                                                     kKeptModules, kept->size(), kMaxKeptModules)};
  }
  constexpr char kBlockSize[] = "weight_block_size";
  const bool uses_blocks =
      converts(plan, [](Conversion c) { return c != Conversion::none && c != Conversion::f32_to_e8m0; });
  if (!uses_blocks || !described.contains(kBlockSize) || is(kBlockSize, {kBlock, kBlock})) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("its \"{}\" is not [{}, {}], the one that transforms know", kBlockSize, kBlock, kBlock)};
}

/// Whether the plan decodes codes of any form into values.
bool decodes_codes(const Plan& plan) {
  return converts(plan, [](Conversion conversion) { return decodes(conversion); });
}

/// The first tensor of the result that holds codes; nullptr: none.
const format::TensorEntry* first_codes(const format::Checkpoint& result) {
  for (const format::TensorEntry& tensor : result.tensors()) {
    const std::string matrix = format::matrix_of_codes(tensor.name);
    if (matrix.empty()) continue;
    const format::WeightFormat* format = format::storing_format(result, matrix);
    if (format != nullptr && format->shape != nullptr) return &tensor;
  }
  return nullptr;
}

bool is_fp8(const format::TensorEntry& tensor) {
  return tensor.dtype == Dtype::f8_e4m3 && tensor.name.ends_with(kWeight);  // not the scales of NVFP4
}

/// Whether it holds values, not codes of a form (I8 and U8 are FP4's).
bool holds_values(const format::TensorEntry& tensor) {
  return tensor.dtype == Dtype::bf16 || tensor.dtype == Dtype::f16 || tensor.dtype == Dtype::f32;
}

/// Modules whose matrix is FP8; if not `fp8`, those whose matrix is not quantised although DeepSeek-V3 quantises its
/// kind.
std::vector<std::string> modules(const format::Checkpoint& result, bool fp8) {
  std::vector<std::string> found;
  for (const format::TensorEntry& tensor : result.tensors()) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight)) continue;
    if (fp8 ? is_fp8(tensor) : holds_values(tensor) && is_quantised_role(tensor))
      found.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  }
  return found;
}

/// "model.layers.3.mlp.experts" for any module of these experts, other names unchanged.
std::string with_siblings(const std::string& module) {
  constexpr std::string_view kExpertModules = ".experts.";
  const size_t at = module.find(kExpertModules);
  return at == std::string::npos ? module : module.substr(0, at + kExpertModules.size() - 1);
}

/// Whether a loader applies `entry` to `module`: `entry` is the whole name, or its beginning, middle or end, cut at
/// dots.
bool means(std::string_view entry, std::string_view module) {
  if (entry.empty()) return false;
  for (size_t at = module.find(entry); at != std::string_view::npos; at = module.find(entry, at + 1)) {
    const size_t end = at + entry.size();
    if ((at == 0 || module[at - 1] == '.') && (end == module.size() || module[end] == '.')) return true;
  }
  return false;
}

/// Modules that loaders must not take for FP8: entries of the source's list that still are not FP8, then all others.
/// The experts of a layer are one entry if none of them is FP8.
std::vector<std::string> kept_modules(const OrderedJson& before, const format::Checkpoint& result) {
  const std::vector<std::string> fp8 = modules(result, true);
  std::vector<std::string> kept;
  if (before.is_array()) {
    for (const OrderedJson& entry : before) {
      if (!entry.is_string()) continue;
      const auto& name = entry.get_ref<const std::string&>();
      if (std::ranges::none_of(fp8, [&](const std::string& module) { return means(name, module); }))
        kept.push_back(name);
    }
  }
  std::set<std::string> partly_fp8;
  for (const std::string& module : fp8)
    partly_fp8.insert(with_siblings(module));
  std::set<std::string> others;
  for (const std::string& module : modules(result, false)) {
    const std::string siblings = with_siblings(module);
    others.insert(partly_fp8.contains(siblings) ? module : siblings);
  }
  for (const std::string& module : others) {
    if (std::ranges::none_of(kept, [&](const std::string& name) { return means(name, module); }))
      kept.push_back(module);
  }
  return kept;
}

/// Whether the scales of all FP8 matrices of the result are stored as E8M0.
bool all_scales_e8m0(const format::Checkpoint& result) {
  const std::vector<std::string> fp8 = modules(result, true);
  return !fp8.empty() && std::ranges::all_of(fp8, [&](const std::string& module) {
    return std::ranges::any_of(format::scale_names(module + std::string(kWeight)), [&](const std::string& name) {
      const format::TensorEntry* scales = result.find(name);
      return scales != nullptr && scales->dtype == Dtype::f8_e8m0;
    });
  });
}

/// Turns the source's description into that of the result's FP8 weights.
void describe_quantisation(OrderedJson& quantisation, const Plan& plan) {
  if (!quantisation.is_object()) {
    quantisation = {{"activation_scheme", "dynamic"},
                    {"fmt", "e4m3"},
                    {"quant_method", "fp8"},
                    {"weight_block_size", {kBlock, kBlock}}};
  }
  if (all_scales_e8m0(plan.result)) quantisation["scale_fmt"] = "ue8m0";
  const auto before = quantisation.find(kKeptModules);
  const std::vector<std::string> kept =
      kept_modules(before == quantisation.end() ? OrderedJson() : *before, plan.result);
  if (!kept.empty()) {
    quantisation[kKeptModules] = kept;
  } else if (before != quantisation.end()) {
    quantisation.erase(before);
  }
}

/// The first routed expert of the result that is still in DeepSeek-V4's FP4; nullptr: none.
const format::TensorEntry* first_trained_fp4(const format::Checkpoint& result) {
  const auto found = std::ranges::find_if(result.tensors(), [&](const format::TensorEntry& tensor) {
    return tensor.place.role == format::Role::routed_expert && trained_fp4_scales(tensor, result) != nullptr;
  });
  return found == result.tensors().end() ? nullptr : &*found;
}

OtherModules other_modules(const format::Checkpoint& result) {
  OtherModules others{.fp8 = modules(result, true), .values = {}, .linear = kept_modules({}, result)};
  for (const format::TensorEntry& tensor : result.tensors()) {
    if (!holds_values(tensor) || tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight)) continue;
    others.values.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
    if (tensor.place.role == format::Role::head) others.linear.push_back(others.values.back());
  }
  return others;
}

/// Changes the description of the quantisation, whether it is in the language model's part, at the top, or in both.
Result<void> change_quantisation(OrderedJson& config, const Plan& plan) {
  std::vector<OrderedJson*> holders;
  for (OrderedJson* holder : {&language_model(config), &config}) {
    if (holder->contains(kQuantisation) && std::ranges::find(holders, holder) == holders.end())
      holders.push_back(holder);
  }
  if (decodes_codes(plan)) {
    // Without remaining codes, a description is removed whatever its form.
    const format::TensorEntry* left = first_codes(plan.result);
    if (left != nullptr) {
      return Error{ErrorKind::unsupported,
                   fmt::format("its \"{}\" would have to leave out what is decoded, while \"{}\" still holds codes; "
                               "decode all weights of the model",
                               kQuantisation, left->name)};
    }
    for (OrderedJson* holder : holders)
      holder->erase(kQuantisation);
    return {};
  }
  const bool are_values = first_codes(plan.result) == nullptr;
  for (OrderedJson* holder : holders) {
    // A description by an unknown method need not be checked if no codes are left: it is removed below.
    const OrderedJson& described = (*holder)[kQuantisation];
    const bool is_known = !described.is_object() || described.value("quant_method", OrderedJson()) == "fp8";
    if (is_known || !are_values) TRY(check_quantisation(described, plan));
  }
  if (const auto groups = describe_groups(plan, other_modules(plan.result))) {
    if (const format::TensorEntry* left = first_trained_fp4(plan.result)) {
      return Error{ErrorKind::unsupported,
                   fmt::format("no \"{}\" describes \"{}\", which stays FP4 with E8M0 scales, beside matrices in {}; "
                               "convert all routed experts that the recipe takes",
                               kQuantisation, left->name, groups->form)};
    }
    if (holders.empty()) holders.push_back(&config);
    for (OrderedJson* holder : holders)
      (*holder)[kQuantisation] = groups->description;
    return {};
  }
  if (std::ranges::none_of(plan.result.tensors(), is_fp8)) {
    for (OrderedJson* holder : holders)
      holder->erase(kQuantisation);
    return {};
  }
  if (holders.empty()) holders.push_back(&config);
  for (OrderedJson* holder : holders)
    describe_quantisation((*holder)[kQuantisation], plan);
  return {};
}

/// Removes DeepSeek-V4's "expert_dtype": "fp4", beside the quantisation, if the recipe has converted these experts.
void forget_expert_type(OrderedJson& model, const format::Checkpoint& result) {
  constexpr char kExpertType[] = "expert_dtype";
  const bool has_experts = std::ranges::any_of(result.tensors(), [](const format::TensorEntry& tensor) {
    return tensor.place.role == format::Role::routed_expert;
  });
  const auto said = model.find(kExpertType);
  if (said != model.end() && *said == "fp4" && has_experts && first_trained_fp4(result) == nullptr) model.erase(said);
}

/// Removes the MTP module: its count, the keys of DeepSeek-V4's draft stages, and their entries in the list of ratios.
void forget_mtp(OrderedJson& model) {
  model["num_nextn_predict_layers"] = 0;
  std::vector<std::string> stages;
  for (const auto& [key, value] : model.items())
    if (key.starts_with("dspark_")) stages.push_back(key);
  for (const std::string& key : stages)
    model.erase(key);
  const auto ratios = model.find("compress_ratios");
  const auto layers = model.find("num_hidden_layers");
  if (ratios == model.end() || !ratios->is_array() || layers == model.end() || !layers->is_number_unsigned()) return;
  while (ratios->size() > layers->get<uint64_t>())
    ratios->erase(ratios->size() - 1);
}

}  // namespace

Result<std::optional<std::string>> changed_config(const Plan& plan, format::Repository& source,
                                                  const std::stop_token& stop) {
  const bool converted = converts(plan, [](Conversion conversion) { return conversion != Conversion::none; });
  if (!plan.recipe.drop_mtp && !converted) return std::optional<std::string>();
  const std::string place = source.locate(kConfigPath);
  const auto text = source.read_text(kConfigPath, format::kConfigDocument.bytes, stop);
  if (!text) return text.error().in("the recipe changes what config.json says");
  if (const auto strict = format::parse_json(*text, format::kConfigDocument); !strict) return strict.error().in(place);
  OrderedJson config = OrderedJson::parse(*text);
  if (!config.is_object()) return Error{ErrorKind::invalid, place + ": is no JSON object"};
  if (plan.recipe.drop_mtp) forget_mtp(language_model(config));
  if (converted) {
    if (const auto changed = change_quantisation(config, plan); !changed) return changed.error().in(place);
    forget_expert_type(language_model(config), plan.result);
  }
  return std::optional(config.dump(2) + "\n");
}

Result<void> set_aside_config(std::vector<Companion>& companions, const Plan& plan, const format::Repository& source) {
  for (const SetAside& name : kSetAside) {
    if (name.source == kQuantConfigPath && !decodes_codes(plan)) continue;
    for (const Companion& companion : companions) {
      if (companion.path != name.packed) continue;
      return Error{ErrorKind::conflict, fmt::format("{}: the source's {} would get this name; move the file away",
                                                    source.locate(companion.source_path), name.source)};
    }
    for (Companion& companion : companions) {
      if (companion.path == name.source) companion.path = name.packed;
    }
  }
  return {};
}

}  // namespace dspack::reshard
