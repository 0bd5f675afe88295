#include "runtime/config/config_rope.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime {

namespace {

constexpr uint32_t kMaxRopePositions = 1U << 26;
constexpr double kDefaultTheta = 10000;

RopeConfig::Yarn read_yarn(format::ConfigFields& fields, uint32_t max_positions) {
  RopeConfig::Yarn yarn;
  yarn.original_positions = fields.integer("original_max_position_embeddings", 1, kMaxRopePositions);
  const double by_positions = double{static_cast<double>(max_positions)} / std::max(yarn.original_positions, 1U);
  yarn.factor = fields.number("factor", 1e-3, 1e6, by_positions);
  yarn.beta_fast = fields.number("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = fields.number("beta_slow", 1e-3, 1e6, 1);
  yarn.mscale = fields.number("mscale", 0, 1e3, 0);
  yarn.mscale_all_dim = fields.number("mscale_all_dim", 0, 1e3, 0);
  if ((yarn.mscale == 0) != (yarn.mscale_all_dim == 0)) {
    fields.fail(
        ErrorKind::unsupported, yarn.mscale == 0 ? "mscale_all_dim" : "mscale",
        "mscale and mscale_all_dim must be given together: DeepSeek's code and transformers use different defaults");
  }
  if (fields.find("attention_factor") != nullptr) {
    yarn.attention_factor = fields.number("attention_factor", 1e-3, 1e3);
  }
  yarn.truncate = fields.flag("truncate", true);
  return yarn;
}

std::string read_type(format::ConfigFields& fields) {
  const std::string old_name = fields.text("type", "");
  std::string type = fields.text("rope_type", old_name.empty() ? "default" : old_name);
  if (!old_name.empty() && old_name != type) {
    fields.fail(ErrorKind::invalid, "type", fmt::format("but \"rope_type\" is \"{}\"", type));
  }
  if (type != "yarn" && type != "default") {
    fields.fail(ErrorKind::unsupported, fields.find("rope_type") != nullptr ? "rope_type" : "type",
                R"(only "yarn" and "default" can be run)");
  }
  return type;
}

// Keys that transformers' Mistral4Config adds to YaRN's.
void read_mistral_keys(format::ConfigFields& fields, uint32_t max_positions, RopeConfig& rope) {
  rope.query_beta = fields.number("llama_4_scaling_beta", 0, 1e3, 0);
  if (rope.query_beta != 0 && !rope.yarn) {
    fields.fail(ErrorKind::unsupported, "llama_4_scaling_beta",
                R"(only with "yarn", whose original context it counts)");
  }
  if (fields.integer("max_position_embeddings", 1, kMaxRopePositions, max_positions) != max_positions) {
    fields.fail(ErrorKind::invalid, "max_position_embeddings", fmt::format("but {} outside", max_positions));
  }
}

}  // namespace

Result<RopeConfig> read_rope(format::ConfigFields& fields, uint32_t max_positions, double rotated_share) {
  RopeConfig rope;
  const bool has_theta = fields.find("rope_theta") != nullptr;
  rope.theta = fields.number("rope_theta", 1.001, 1e12, kDefaultTheta);
  const format::Json* parameters = fields.object("rope_parameters");
  const format::Json* scaling = fields.object("rope_scaling");
  if (parameters != nullptr && scaling != nullptr) {
    fields.fail(ErrorKind::invalid, "rope_parameters", "\"rope_scaling\" is given as well; keep one of them");
  }
  if (fields.error()) return *fields.error();
  if (parameters == nullptr && scaling == nullptr) return rope;
  const std::string_view key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  format::ConfigFields inner(parameters != nullptr ? *parameters : *scaling,
                             fmt::format("{}: in \"{}\"", fields.place(), key));
  const double theta = inner.number("rope_theta", 1.001, 1e12, rope.theta);
  if (has_theta && theta != rope.theta) {
    inner.fail(ErrorKind::invalid, "rope_theta", fmt::format("but {} outside of \"{}\"", rope.theta, key));
  }
  rope.theta = theta;
  if (inner.number("partial_rotary_factor", 0, 1, rotated_share) != rotated_share) {
    inner.fail(ErrorKind::unsupported, "partial_rotary_factor", "qk_rope_head_dim must be rotated in full");
  }
  if (read_type(inner) == "yarn" && !inner.error()) rope.yarn = read_yarn(inner, max_positions);
  if (rotated_share != 1) read_mistral_keys(inner, max_positions, rope);
  inner.refuse_others({});
  if (inner.error()) return *inner.error();
  return rope;
}

}  // namespace dspack::runtime
