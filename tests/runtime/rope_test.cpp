#include "runtime/model/rope.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace dspack::runtime::rope_test {
namespace {

RopeConfig v3_rope() {
  RopeConfig rope;
  rope.theta = 10000;
  rope.yarn = RopeConfig::Yarn{};
  rope.yarn->factor = 40;
  rope.yarn->original_positions = 4096;
  rope.yarn->mscale = 1;
  rope.yarn->mscale_all_dim = 1;
  return rope;
}

TEST_CASE("rope: V3's frequencies are kept up to dimension 10 and stretched 40 times from 23 on") {
  const std::vector<float> frequencies = rope_frequencies(v3_rope(), 64);
  REQUIRE(frequencies.size() == 32);
  for (uint32_t k = 0; k < 32; ++k) {
    CAPTURE(k);
    const double plain = std::pow(10000.0, -2.0 * k / 64);
    const double ramp = std::clamp((k - 10.0) / 13.0, 0.0, 1.0);
    const double wanted = plain / 40 * ramp + plain * (1 - ramp);
    CHECK(frequencies[k] == doctest::Approx(wanted).epsilon(1e-6));
  }
}

TEST_CASE("rope: a correction range of one point is a step") {
  RopeConfig rope = v3_rope();  // Kimi-K2's betas and theta: dimensions 19 and 20
  rope.theta = 50000;
  rope.yarn->factor = 32;
  rope.yarn->beta_fast = 1;
  rope.yarn->beta_slow = 1;
  const std::vector<float> frequencies = rope_frequencies(rope, 64);
  CHECK(frequencies[19] == doctest::Approx(std::pow(50000.0, -38.0 / 64)).epsilon(1e-6));
  CHECK(frequencies[20] == doctest::Approx(std::pow(50000.0, -40.0 / 64) / 32).epsilon(1e-6));
}

TEST_CASE("rope: the attention scales of the released models") {
  CHECK(attention_scale(v3_rope(), 192) == doctest::Approx(0.135234).epsilon(1e-5));
  RopeConfig lite = v3_rope();
  lite.yarn->mscale = lite.yarn->mscale_all_dim = 0.707;
  CHECK(attention_scale(lite, 192) == doctest::Approx(0.114721).epsilon(1e-5));
  RopeConfig kimi = v3_rope();
  kimi.yarn->factor = 32;
  CHECK(attention_scale(kimi, 192) == doctest::Approx(0.130861).epsilon(1e-5));
  CHECK(attention_scale(RopeConfig{}, 192) == doctest::Approx(0.0721688).epsilon(1e-5));
}

TEST_CASE("rope: the table holds cosine and sine, and pieces of it are the same numbers") {
  const std::vector<float> table = rope_table(v3_rope(), 64, 0, 100);
  REQUIRE(table.size() == 100 * 64);
  CHECK(table[0] == 1.0F);
  CHECK(table[1] == 0.0F);
  CHECK(table[7 * 64] == doctest::Approx(std::cos(7.0)));
  CHECK(table[7 * 64 + 1] == doctest::Approx(std::sin(7.0)));
  const std::vector<float> piece = rope_table(v3_rope(), 64, 40, 10);
  CHECK(std::equal(piece.begin(), piece.end(), table.begin() + 40 * 64));
}

TEST_CASE("rope: unequal mscale and mscale_all_dim scale the table, as in transformers") {
  RopeConfig rope = v3_rope();
  rope.yarn->mscale_all_dim = 0;
  CHECK(rope_table(rope, 64, 0, 1)[0] == doctest::Approx(0.1 * std::log(40.0) + 1));
  rope.yarn->attention_factor = 0.5;
  CHECK(rope_table(rope, 64, 0, 1)[0] == 0.5F);
}

TEST_CASE("query scale: grows by the logarithm of how often the original context was passed") {
  RopeConfig rope = v3_rope();
  rope.query_beta = 0.1;
  rope.yarn->original_positions = 16;
  const std::vector<float> table = query_scale_table(rope, 0, 64);
  REQUIRE(table.size() == 128);
  for (const size_t position : {size_t{0}, size_t{15}})
    CHECK(table[2 * position] == 1.0F);
  CHECK(table[2 * 16] == static_cast<float>(1 + 0.1 * std::log(2.0)));
  CHECK(table[2 * 63] == static_cast<float>(1 + 0.1 * std::log(4.0)));
  for (size_t position = 0; position < 64; ++position)
    CHECK(table[2 * position + 1] == 0.0F);
  const std::vector<float> piece = query_scale_table(rope, 16, 4);
  CHECK(std::ranges::equal(piece, std::span(table).subspan(32, 8)));
}

}  // namespace
}  // namespace dspack::runtime::rope_test
