// config.json. Input: its text.
#include <algorithm>
#include <cmath>

#include "runtime/config/config.h"
#include "runtime/model/rope.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::ModelConfig;

namespace {

constexpr uint32_t kTableDim = 4096;  // larger rotary sizes are accepted, but take long

void check_rope(const ModelConfig& config) {
  DSPACK_CHECK(std::isfinite(attention_scale(config.rope, config.query_dim())), "no scale of attention");
  if (config.rope_dim > kTableDim) return;
  const std::vector<float> frequencies = rope_frequencies(config.rope, config.rope_dim);
  DSPACK_CHECK(frequencies.size() == config.rope_dim / 2, "a frequency for each pair");
  for (const float value : frequencies)
    DSPACK_CHECK(std::isfinite(value) && value >= 0, "a frequency that is none");
  for (const float value : rope_table(config.rope, config.rope_dim, config.max_positions - 1, 1))
    DSPACK_CHECK(std::isfinite(value), "a rotation that is none");
}

void check_sizes(const ModelConfig& config) {
  for (const uint32_t size : {config.vocab, config.hidden, config.layers, config.max_positions, config.heads,
                              config.kv_rank, config.nope_dim, config.value_dim, config.dense_inner, config.experts,
                              config.expert_inner, config.top_k, config.moe_layer_step, config.groups}) {
    DSPACK_CHECK(size > 0, "a size of nothing");
  }
  DSPACK_CHECK(config.rope_dim >= 2 && config.rope_dim % 2 == 0, "rotary pairs");
  DSPACK_CHECK(uint64_t{config.heads} * std::max(config.query_dim(), config.value_dim) <= UINT32_MAX, "a row of heads");
  DSPACK_CHECK(uint64_t{config.shared_experts} * config.expert_inner <= UINT32_MAX, "a row of shared experts");
  DSPACK_CHECK(config.experts % config.groups == 0 && config.groups_kept <= config.groups, "groups");
  DSPACK_CHECK(config.top_k <= config.groups_kept * (config.experts / config.groups), "more experts than are kept");
  DSPACK_CHECK(std::isfinite(config.norm_epsilon) && config.norm_epsilon >= 0, "epsilon");
  DSPACK_CHECK(std::isfinite(config.routed_scale), "routed_scale");
  DSPACK_CHECK(!config.quantization.block || (config.quantization.block->in > 0 && config.quantization.block->out > 0),
               "a block of nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::as_text(data, size);
  const auto config = runtime::parse_model_config(text);
  const auto tokens = runtime::parse_eos_tokens(text, "config.json");
  if (!config) {
    fuzz::check_refusal(config.error());
    DSPACK_CHECK(config.error().message.starts_with("config.json"), config.error().message);
    return 0;
  }
  DSPACK_CHECK(tokens.has_value() && *tokens == config->eos_tokens, "two readings of eos_token_id");
  check_sizes(*config);
  check_rope(*config);
  for (uint32_t layer = 0; layer < std::min(config->layers, 64U); ++layer)
    DSPACK_CHECK(!config->is_moe(LayerId(layer)) || layer >= config->first_moe_layer, "a dense layer with experts");
  return 0;
}
