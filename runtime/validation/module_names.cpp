#include "runtime/validation/module_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/config/config.h"
#include "runtime/model/attention_block.h"

namespace dspack::runtime {

namespace {

using Names = std::vector<std::string>;

void add_mlp(Names& names, const std::string& module) {
  for (const char* part : {"gate_proj", "up_proj", "down_proj"})
    names.push_back(fmt::format("{}.{}", module, part));
  names.push_back(module);
}

void add_attention(Names& names, const ModelConfig& config, LayerId layer, const std::string& module) {
  for (const std::string& part : make_attention(config, {}, layer)->modules())
    names.push_back(fmt::format("{}.{}", module, part));
  names.push_back(module);
}

void add_moe(Names& names, const ModelConfig& config, const std::string& module) {
  names.push_back(module + ".gate");
  for (uint32_t expert = 0; expert < config.experts; ++expert)
    add_mlp(names, fmt::format("{}.experts.{}", module, expert));
  names.push_back(module + ".experts");
  if (config.shared_experts > 0) add_mlp(names, module + ".shared_experts");
  names.push_back(module);
}

}  // namespace

Names module_names(const ModelConfig& config, std::span<const LayerId> layer_map) {
  Names names = {"model.embed_tokens"};
  for (uint32_t index = 0; index < layer_map.size(); ++index) {
    const std::string layer = layer_module(LayerId(index));
    names.push_back(layer + ".input_layernorm");
    add_attention(names, config, layer_map[index], layer + ".self_attn");
    names.push_back(layer + ".post_attention_layernorm");
    if (config.is_moe(layer_map[index])) {
      add_moe(names, config, layer + ".mlp");
    } else {
      add_mlp(names, layer + ".mlp");
    }
    names.push_back(layer);
  }
  names.emplace_back("model.norm");
  names.emplace_back("lm_head");
  return names;
}

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // After a mismatch the last star matches one character more: no recursion; at worst the product of both lengths.
  size_t at = 0;
  size_t in_pattern = 0;
  size_t star = std::string_view::npos;
  size_t star_at = 0;
  while (at < name.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      star_at = at;
    } else if (in_pattern < pattern.size() && (pattern[in_pattern] == '?' || pattern[in_pattern] == name[at])) {
      ++in_pattern;
      ++at;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1;
      at = ++star_at;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string_view::npos;
}

bool is_router(std::string_view module) {
  return module.ends_with(".mlp.gate");
}

bool is_routed(std::string_view module) {
  constexpr std::string_view kPart = ".mlp.experts.";
  const size_t number = module.find(kPart);
  return number != std::string_view::npos && module.find_first_of("0123456789", number) == number + kPart.size();
}

std::string enclosing_module(std::string_view module) {
  const size_t dot = module.rfind('.');
  const std::string_view around = module.substr(0, dot == std::string_view::npos ? 0 : dot);
  return std::string(around == "model.layers" ? "model" : around);
}

std::string input_tensor(std::string_view module) {
  return fmt::format("{}.input.0", module);
}

std::string output_tensor(std::string_view module) {
  const bool is_tuple = is_router(module) || module.ends_with(".self_attn");
  return fmt::format("{}.output{}", module, is_tuple ? ".0" : "");
}

}  // namespace dspack::runtime
