#include "runtime/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dspack::runtime {

namespace {

// YaRN's magnitude correction for a context stretched by `factor`.
double magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Dimension whose wavelength makes `rotations` turns within the original context.
double correction_dim(const RopeConfig& rope, uint32_t dim, double rotations) {
  const double turns = rope.yarn->original_positions / (rotations * 2 * std::numbers::pi);
  return dim * std::log(turns) / (2 * std::log(rope.theta));
}

// Share of each frequency that is kept unstretched: 1 for fast ones, 0 for slow ones, a ramp between.
std::vector<float> kept_share(const RopeConfig& rope, uint32_t dim) {
  double low = correction_dim(rope, dim, rope.yarn->beta_fast);
  double high = correction_dim(rope, dim, rope.yarn->beta_slow);
  if (rope.yarn->truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;  // no ramp; avoids 0/0
  std::vector<float> share(dim / 2);
  for (uint32_t k = 0; k < share.size(); ++k) {
    const float ramp = (static_cast<float>(k) - static_cast<float>(low)) / static_cast<float>(high - low);
    share[k] = 1.0F - std::clamp(ramp, 0.0F, 1.0F);
  }
  return share;
}

float table_factor(const RopeConfig& rope) {
  if (!rope.yarn) return 1.0F;
  const RopeConfig::Yarn& yarn = *rope.yarn;
  if (yarn.attention_factor) return static_cast<float>(*yarn.attention_factor);
  if (yarn.mscale != 0 && yarn.mscale_all_dim != 0) {
    return static_cast<float>(magnitude(yarn.factor, yarn.mscale) / magnitude(yarn.factor, yarn.mscale_all_dim));
  }
  return static_cast<float>(magnitude(yarn.factor, 1));
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& rope, uint32_t rope_dim) {
  std::vector<float> frequencies(rope_dim / 2);
  const std::vector<float> share = rope.yarn ? kept_share(rope, rope_dim) : std::vector<float>();
  for (uint32_t k = 0; k < frequencies.size(); ++k) {
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(rope_dim);
    const auto period = static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    const float plain = 1.0F / period;
    if (!rope.yarn) {
      frequencies[k] = plain;
      continue;
    }
    const float stretched = 1.0F / (static_cast<float>(rope.yarn->factor) * period);
    frequencies[k] = stretched * (1.0F - share[k]) + plain * share[k];
  }
  return frequencies;
}

std::vector<float> rope_table(const RopeConfig& rope, uint32_t rope_dim, uint32_t first, uint32_t count) {
  const std::vector<float> frequencies = rope_frequencies(rope, rope_dim);
  const float factor = table_factor(rope);
  std::vector<float> table;
  table.reserve(size_t{count} * rope_dim);
  for (uint32_t position = first; position < first + count; ++position) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;  // rounded to FP32 like the reference
      table.push_back(static_cast<float>(std::cos(angle)) * factor);
      table.push_back(static_cast<float>(std::sin(angle)) * factor);
    }
  }
  return table;
}

std::vector<float> query_scale_table(const RopeConfig& rope, uint32_t first, uint32_t count) {
  DSPACK_CHECK(rope.yarn.has_value(), "queries are scaled by how often the original context was passed");
  std::vector<float> table;
  table.reserve(size_t{count} * 2);
  for (uint32_t position = first; position < first + count; ++position) {
    const uint32_t passed = position / rope.yarn->original_positions;
    table.push_back(static_cast<float>(1 + rope.query_beta * std::log1p(static_cast<double>(passed))));
    table.push_back(0);
  }
  return table;
}

uint64_t position_table_values(const ModelConfig& config, uint32_t positions) {
  const uint64_t tables = config.window ? 2 : 1;
  return uint64_t{positions} * (tables * config.rope_dim + (config.rope.query_beta == 0 ? 0 : 2));
}

PositionTables position_tables(const ModelConfig& config, kernels::Slice memory, uint32_t positions) {
  PositionTables tables{.cos_sin = memory, .query_scale = {}, .entry_cos_sin = {}};
  const kernels::Slice second = memory.at(uint64_t{positions} * config.rope_dim * sizeof(float));
  if (config.rope.query_beta != 0) tables.query_scale = second;
  if (config.window) tables.entry_cos_sin = second;
  return tables;
}

float attention_scale(const RopeConfig& rope, uint32_t query_dim) {
  double scale = 1.0 / std::sqrt(static_cast<double>(query_dim));
  if (rope.yarn && rope.yarn->mscale_all_dim != 0) {
    const double mscale = magnitude(rope.yarn->factor, rope.yarn->mscale_all_dim);
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

}  // namespace dspack::runtime
