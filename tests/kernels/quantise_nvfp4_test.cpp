#include "kernels/quantise_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"

namespace dspack::test::quantise_nvfp4_test {
namespace {

using kernels::kNvfp4Group;

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

struct Quantised {
  explicit Quantised(const std::vector<float>& values)
      : codes(values.size() / 2),
        scales(values.size() / kNvfp4Group),
        loss(kernels::quantise_nvfp4(values, codes, scales)) {}
  [[nodiscard]] uint32_t code(size_t index) const { return codes[index / 2] >> (index % 2 * 4) & 0xf; }
  [[nodiscard]] double scale(size_t index) const {
    return decode_e4m3(scales[index / kNvfp4Group]) / static_cast<double>(kernels::kNvfp4Global);
  }
  [[nodiscard]] double value(size_t index) const {
    const double size = kE2m1[code(index) & 7] * scale(index);
    return code(index) >= 8 ? -size : size;
  }

  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  kernels::Loss loss;
};

double relative_rms(const kernels::Loss& loss) {
  return std::sqrt(loss.squared_error / loss.squared_value);
}

double distance_to_nearest(double value, double scale) {
  double least = std::numeric_limits<double>::infinity();
  for (const double size : kE2m1)
    least = std::min(least, std::abs(std::abs(value) - size * scale));
  return least;
}

/// The least squared error of a group under any of the 126 scales above 0, and under the one for its largest value.
struct Bounds {
  double least = std::numeric_limits<double>::infinity();
  double plain = 0;
};
Bounds bounds_of(const float* values) {
  Bounds bounds;
  double largest = 0;
  for (uint32_t i = 0; i < kNvfp4Group; ++i)
    largest = std::max(largest, std::abs(static_cast<double>(values[i])));
  double nearest = std::numeric_limits<double>::infinity();
  for (uint32_t code = 1; code < 0x7f; ++code) {
    const double scale = decode_e4m3(static_cast<uint8_t>(code)) / static_cast<double>(kernels::kNvfp4Global);
    double error = 0;
    for (uint32_t i = 0; i < kNvfp4Group; ++i) {
      const double apart = distance_to_nearest(values[i], scale);
      error += apart * apart;
    }
    bounds.least = std::min(bounds.least, error);
    if (std::abs(scale - largest / 6) < nearest) {
      nearest = std::abs(scale - largest / 6);
      bounds.plain = error;
    }
  }
  return bounds;
}

}  // namespace

TEST_CASE("nvfp4: codes are the nearest, ties to even, and the scale is close to the best of all") {
  Random random;
  CAPTURE(random.seed());
  std::vector<float> values = random.normals(600 * kNvfp4Group);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] *= std::exp2(static_cast<float>(i / kNvfp4Group % 10) - 11);  // largest values from 1e-3 to 2
  const Quantised got(values);
  double chosen = 0;
  double least = 0;
  double plain = 0;
  for (size_t group = 0; group < got.scales.size(); ++group) {
    const float* from = values.data() + group * kNvfp4Group;
    const double scale = got.scale(group * kNvfp4Group);
    double error = 0;
    for (uint32_t i = 0; i < kNvfp4Group; ++i) {
      const double value = got.value(group * kNvfp4Group + i);
      const auto meant = static_cast<double>(from[i]);
      CHECK((meant == 0 || value == 0 || (value < 0) == (meant < 0)));
      // The quotient is a product with the rounded reciprocal.
      CHECK(std::abs(value - meant) <= distance_to_nearest(meant, scale) + 1e-6 * std::abs(meant));
      error += (value - meant) * (value - meant);
    }
    const Bounds bounds = bounds_of(from);
    CHECK(error >= bounds.least * 0.99999);
    CHECK(error <= bounds.plain * 1.00001);
    chosen += error / (scale * scale);
    least += bounds.least / (scale * scale);
    plain += bounds.plain / (scale * scale);
  }
  CHECK(chosen < 1.06 * least);
  CHECK(chosen < 0.85 * plain);
}

TEST_CASE("nvfp4: the relative error of known distributions, whatever their size") {
  std::mt19937 engine(20);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(5);
  std::vector<float> gaussian(1U << 19U);
  std::vector<float> heavy(1U << 19U);
  for (float& value : gaussian)
    value = normal(engine);
  for (float& value : heavy)
    value = student(engine);
  for (const float size : {0.5F, 0.02F, 1e-3F}) {
    CAPTURE(size);
    std::vector<float> scaled(gaussian.size());
    std::ranges::transform(gaussian, scaled.begin(), [&](float value) { return value * size; });
    CHECK(relative_rms(Quantised(scaled).loss) == doctest::Approx(0.083).epsilon(0.015));
    std::ranges::transform(heavy, scaled.begin(), [&](float value) { return std::clamp(value * size, -10.5F, 10.5F); });
    CHECK(relative_rms(Quantised(scaled).loss) == doctest::Approx(0.083).epsilon(0.03));
  }
}

TEST_CASE("nvfp4: of two codes as near the even one is taken") {
  for (const auto& [tie, wanted] :
       {std::pair{0.25F, 0.0}, std::pair{0.75F, 1.0}, std::pair{1.25F, 1.0}, std::pair{1.75F, 2.0},
        std::pair{2.5F, 2.0}, std::pair{3.5F, 4.0}, std::pair{5.0F, 4.0}}) {
    for (const float sign : {1.0F, -1.0F}) {
      CAPTURE(tie * sign);
      // All others have codes at scale 1, so no scale is better.
      const Quantised got({6, -6, 6, -6, 4, -4, 3, -3, 2, -2, 1.5F, -1.5F, 1, -1, 0.5F, tie * sign});
      CHECK(got.scale(0) == 1);
      CHECK(got.value(15) == wanted * static_cast<double>(sign));
    }
  }
}

TEST_CASE("nvfp4: zeros, values too small for a scale, and the largest") {
  std::vector<float> values(3 * kNvfp4Group, 0.0F);
  values[kNvfp4Group + 3] = 1e-20F;
  for (uint32_t i = 0; i < kNvfp4Group; ++i)
    values[2 * kNvfp4Group + i] = i % 2 == 0 ? kernels::kNvfp4Largest : -kernels::kNvfp4Largest;
  const Quantised got(values);
  for (size_t i = 0; i < 2 * kNvfp4Group; ++i)
    CHECK((got.value(i) == 0 && got.scale(i) > 0));
  for (size_t i = 2 * kNvfp4Group; i < values.size(); ++i)
    CHECK(got.value(i) == static_cast<double>(values[i]));
}

namespace {

/// Every byte of two codes, under each power of two that E8M0 has.
struct AllMxfp4 {
  explicit AllMxfp4(int exponent) : scales(stored.size() / 16, std::ldexp(1.0F, exponent)) {
    for (size_t i = 0; i < stored.size(); ++i) {
      stored[i] = static_cast<uint8_t>(i);
      for (const size_t code : {i & 15U, i >> 4U}) {
        const double size = kE2m1[code & 7] * std::exp2(exponent);
        values.push_back(static_cast<float>(code >= 8 ? -size : size));
      }
    }
  }
  std::vector<uint8_t> stored = std::vector<uint8_t>(256);
  std::vector<float> scales;
  std::vector<float> values;
};

}  // namespace

TEST_CASE("nvfp4: MXFP4 keeps its codes under every scale that E4M3 holds, and loses nothing by that") {
  for (int exponent = -127; exponent <= 0; ++exponent) {
    CAPTURE(exponent);
    const AllMxfp4 source(exponent);
    std::vector<uint8_t> codes(source.stored.size());
    std::vector<uint8_t> scales(source.values.size() / kNvfp4Group);
    const kernels::Loss loss = kernels::mxfp4_to_nvfp4(source.stored, source.scales, source.values, codes, scales);
    double squares = 0;
    for (const float value : source.values)
      squares += static_cast<double>(value) * static_cast<double>(value);
    CHECK(loss.squared_value == doctest::Approx(squares).epsilon(1e-12));
    CHECK(kernels::nvfp4_holds(source.scales) == (exponent >= -17));
    if (exponent < -17) {  // E4M3's least is 2^-9, over 256
      CHECK(loss.squared_error > 0);
      const Quantised anew(source.values);
      CHECK(codes == anew.codes);
      CHECK(scales == anew.scales);
      continue;
    }
    CHECK(loss.squared_error == 0);
    CHECK(codes == source.stored);
    for (const uint8_t scale : scales)
      CHECK(decode_e4m3(scale) == std::exp2(exponent + 8));
    std::vector<uint8_t> kept(codes.size());
    std::vector<uint8_t> kept_scales(scales.size());
    const kernels::Loss again = kernels::mxfp4_to_nvfp4(source.stored, source.scales, {}, kept, kept_scales);
    CHECK(kept == codes);
    CHECK(kept_scales == scales);
    CHECK(again.squared_value == loss.squared_value);
  }
}

TEST_CASE("nvfp4: MXFP4 under a scale above E4M3's is quantised anew, without loss where the codes are small") {
  const std::vector<uint8_t> small(16, 0x5d);  // -3 and 3, under the scale 2: 6 under 1
  const std::vector<uint8_t> large(16, 0x66);  // 4, and so 8
  for (const auto& [stored, value, odd] : {std::tuple{small, 6.0F, -6.0F}, {large, 8.0F, 8.0F}}) {
    std::vector<float> values;
    for (size_t i = 0; i < stored.size(); ++i)
      values.insert(values.end(), {odd, value});
    std::vector<uint8_t> codes(16);
    std::vector<uint8_t> scales(2);
    const std::vector<float> two{2.0F};
    CHECK_FALSE(kernels::nvfp4_holds(two));
    const kernels::Loss loss = kernels::mxfp4_to_nvfp4(stored, two, values, codes, scales);
    CHECK(loss.squared_error / loss.squared_value < 1e-2);
    CHECK((value == 8.0F || loss.squared_error == 0));
    CHECK(codes != stored);
  }
}

}  // namespace dspack::test::quantise_nvfp4_test
