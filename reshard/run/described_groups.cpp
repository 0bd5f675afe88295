#include "reshard/run/described_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>

#include "format/base/size.h"
#include "kernels/quantise_groups.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {
namespace {

using OrderedJson = nlohmann::ordered_json;  // preserves the order of the fields

constexpr char kFp8Format[] = "float-quantized";

/// A form of codes in groups as compressed-tensors describes it.
struct DescribedForm {
  const char* name = "";  // for messages
  const char* format = "";
  Dtype packed = Dtype::i32;  // type of weight_packed
  uint64_t in_element = 0;    // codes per element
  uint64_t group = 0;         // columns that share a scale
  OrderedJson weights;
  std::vector<std::string> modules{};  // whose matrix the result has in this form
};

std::vector<DescribedForm> group_forms() {
  OrderedJson int4 = {{"num_bits", 4},
                      {"type", "int"},
                      {"symmetric", true},
                      {"strategy", "group"},
                      {"group_size", kernels::kIntegerGroup},
                      {"dynamic", false},
                      {"actorder", nullptr},
                      {"block_structure", nullptr},
                      {"observer", "minmax"},
                      {"observer_kwargs", OrderedJson::object()}};
  OrderedJson int8 = int4;
  int8["num_bits"] = 8;
  OrderedJson nvfp4 = int4;
  nvfp4["type"] = "float";
  nvfp4["strategy"] = "tensor_group";
  nvfp4["group_size"] = kernels::kNvfp4Group;
  return {{"int4", "pack-quantized", Dtype::i32, 8, kernels::kIntegerGroup, int4},
          {"int8", "pack-quantized", Dtype::i32, 4, kernels::kIntegerGroup, int8},
          {"NVFP4", "nvfp4-pack-quantized", Dtype::u8, 2, kernels::kNvfp4Group, nvfp4}};
}

bool makes_groups(const Plan& plan) {
  constexpr std::array kMade{Conversion::int4_codes, Conversion::int8_codes, Conversion::nvfp4_codes};
  return std::ranges::any_of(plan.shards, [&](const std::vector<Copy>& copies) {
    return std::ranges::any_of(
        copies, [&](const Copy& copy) { return std::ranges::find(kMade, copy.conversion) != kMade.end(); });
  });
}

/// The forms in which the result stores matrices, by their tensors.
std::vector<DescribedForm> stored_forms(const format::Checkpoint& result) {
  constexpr std::string_view kPacked = ".weight_packed";
  std::vector<DescribedForm> forms = group_forms();
  for (const format::TensorEntry& tensor : result.tensors()) {
    if (!tensor.name.ends_with(kPacked) || tensor.shape.size() != 2) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kPacked.size());
    const format::TensorEntry* scales = result.find(module + ".weight_scale");
    if (scales == nullptr || scales->shape.size() != 2) continue;
    const auto form = std::ranges::find_if(forms, [&](const DescribedForm& one) {
      return one.packed == tensor.dtype &&
             checked_mul(tensor.shape[1], one.in_element) == checked_mul(scales->shape[1], one.group).value_or(0);
    });
    if (form != forms.end()) form->modules.push_back(module);
  }
  std::erase_if(forms, [](const DescribedForm& form) { return form.modules.empty(); });
  return forms;
}

/// A regular expression for the end of a module's name that tells its kind: ".*\.self_attn\.q_a_proj",
/// ".*\.experts\.[0-9]+\.up_proj", ".*lm_head".
std::string kind_of(const std::string& module) {
  const auto escaped = [](std::string_view part) {
    std::string text;
    for (const char c : part) {
      const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      text += is_plain ? std::string(1, c) : std::string{'\\', c};
    }
    return text;
  };
  std::string kind;
  std::string_view left = module;
  while (true) {
    const size_t dot = left.rfind('.');
    const std::string_view part = left.substr(dot + 1);  // npos + 1 is 0
    const bool is_number = part.find_first_not_of("0123456789") == std::string_view::npos;
    const bool is_last = kind.empty();
    kind = fmt::format("{}{}{}", is_number ? "[0-9]+" : escaped(part), is_last ? "" : R"(\.)", kind);
    if (dot == std::string_view::npos) return ".*" + kind;
    if (!is_last && !is_number) return R"(.*\.)" + kind;
    left = left.substr(0, dot);
  }
}

/// The targets of a form's group: a pattern where all coded modules of a kind have this form, else each module's name.
OrderedJson targets_of(const DescribedForm& form, const std::map<std::string, std::set<const char*>>& forms_of_kind) {
  std::set<std::string> targets;
  for (const std::string& module : form.modules) {
    const std::string kind = kind_of(module);
    targets.insert(forms_of_kind.at(kind).size() == 1 ? "re:" + kind + "$" : module);
  }
  return targets;
}

OrderedJson group_of(const OrderedJson& targets, const char* format, const OrderedJson& weights) {
  return OrderedJson{{"targets", targets},
                     {"format", format},
                     {"weights", weights},
                     {"input_activations", nullptr},
                     {"output_activations", nullptr}};
}

OrderedJson fp8_weights() {
  return {{"num_bits", 8},         {"type", "float"},
          {"symmetric", true},     {"strategy", "block"},
          {"group_size", nullptr}, {"dynamic", false},
          {"actorder", nullptr},   {"block_structure", {kBlock, kBlock}},
          {"observer", "minmax"},  {"observer_kwargs", OrderedJson::object()}};
}

}  // namespace

std::optional<DescribedGroups> describe_groups(const Plan& plan, const OtherModules& others) {
  if (!makes_groups(plan)) return std::nullopt;
  const std::vector<DescribedForm> forms = stored_forms(plan.result);
  std::map<std::string, std::set<const char*>> forms_of_kind;
  for (const DescribedForm& form : forms) {
    for (const std::string& module : form.modules)
      forms_of_kind[kind_of(module)].insert(form.name);
  }
  for (const std::string& module : others.fp8)
    forms_of_kind[kind_of(module)].insert(kFp8Format);
  std::set<std::string> formats;
  OrderedJson groups;
  const auto add = [&](const OrderedJson& targets, const char* format, const OrderedJson& weights) {
    groups[fmt::format("group_{}", groups.size())] = group_of(targets, format, weights);
    formats.insert(format);
  };
  for (const DescribedForm& form : forms)
    add(targets_of(form, forms_of_kind), form.format, form.weights);
  if (!others.fp8.empty()) add({"Linear"}, kFp8Format, fp8_weights());
  std::vector<std::string> ignored = others.linear;
  if (others.fp8.empty()) {
    ignored = others.values;
    std::erase_if(ignored, [&](const std::string& module) { return !forms_of_kind.contains(kind_of(module)); });
  }
  return DescribedGroups{.form = forms.front().name,
                         .description = {{"quant_method", "compressed-tensors"},
                                         {"format", formats.size() > 1 ? "mixed-precision" : *formats.begin()},
                                         {"quantization_status", "compressed"},
                                         {"kv_cache_scheme", nullptr},
                                         {"global_compression_ratio", nullptr},
                                         {"ignore", ignored},
                                         {"config_groups", groups}}};
}

}  // namespace dspack::reshard
