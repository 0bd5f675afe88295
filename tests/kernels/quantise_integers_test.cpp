#include "kernels/quantise_groups.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/ops_table.h"
#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"

namespace dspack::test::quantise_integers_test {
namespace {

using kernels::kIntegerGroup;

struct Quantised {
  explicit Quantised(const std::vector<float>& values)
      : codes(values.size() / 2),
        scales(values.size() / kIntegerGroup),
        loss(kernels::quantise_int4(values, codes, scales)) {}
  [[nodiscard]] double code(size_t index) const { return (codes[index / 2] >> (index % 2 * 4) & 0xf) - 8.0; }
  [[nodiscard]] double scale(size_t index) const { return decode_bfloat(scales[index / kIntegerGroup]); }

  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  kernels::Loss loss;
};

double relative_rms(const kernels::Loss& loss) {
  return std::sqrt(loss.squared_error / loss.squared_value);
}

/// The squared error of a group with one scale and the nearest codes.
double error_with(const float* values, double scale) {
  double error = 0;
  for (uint32_t i = 0; i < kIntegerGroup; ++i) {
    const double code = std::clamp(std::nearbyint(values[i] / scale), -8.0, 7.0);
    error += (code * scale - values[i]) * (code * scale - values[i]);
  }
  return error;
}

/// 7 of 8 significant bits stay: what rounding a scale to BF16 can change.
double bfloat_of(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

}  // namespace

TEST_CASE("int4: codes are the nearest, and no scale of the known ways is better than the one that is chosen") {
  Random random;
  CAPTURE(random.seed());
  std::vector<float> values = random.normals(400 * kIntegerGroup);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] *= std::exp2(static_cast<float>(static_cast<int>(i / kIntegerGroup % 40) - 20));
  const Quantised got(values);
  double chosen = 0;
  double symmetric = 0;
  for (size_t group = 0; group < got.scales.size(); ++group) {
    const float* from = values.data() + group * kIntegerGroup;
    const double scale = got.scale(group * kIntegerGroup);
    double error = 0;
    for (uint32_t i = 0; i < kIntegerGroup; ++i) {
      const double code = got.code(group * kIntegerGroup + i);
      error += (code * scale - from[i]) * (code * scale - from[i]);
      const double exact = std::clamp(from[i] / scale, -8.0, 7.0);
      CHECK(std::abs(code - exact) <= 0.5 + 1e-5);  // the quotient is a product with the rounded reciprocal
    }
    float outer = 0;
    for (uint32_t i = 0; i < kIntegerGroup; ++i)
      outer = std::abs(from[i]) > std::abs(outer) ? from[i] : outer;
    // Q4_0 of llama.cpp has this one alone.
    CHECK(error <= error_with(from, bfloat_of(outer / -8.0)) * 1.00001);
    const double square = static_cast<double>(outer) * static_cast<double>(outer);
    chosen += error / square;
    symmetric += error_with(from, bfloat_of(outer / 7.0)) / square;
  }
  CHECK(chosen < 0.8 * symmetric);  // of Gaussian values 0.71
}

TEST_CASE("int4: the relative error of known distributions") {
  std::mt19937 engine(20);
  std::normal_distribution<float> normal;
  std::student_t_distribution<float> student(5);
  std::vector<float> gaussian(1U << 20U);
  std::vector<float> heavy(1U << 20U);
  for (float& value : gaussian)
    value = normal(engine);
  for (float& value : heavy)
    value = student(engine);
  CHECK(relative_rms(Quantised(gaussian).loss) == doctest::Approx(0.0816).epsilon(0.005));
  CHECK(relative_rms(Quantised(heavy).loss) == doctest::Approx(0.1036).epsilon(0.02));
}

TEST_CASE("int4: zeros, values too small for a scale, the largest ones, and a group of one value") {
  std::vector<float> values(5 * kIntegerGroup, 0.0F);
  values[kIntegerGroup + 3] = 0x1p-120F;
  for (uint32_t i = 0; i < kIntegerGroup; ++i) {
    values[2 * kIntegerGroup + i] = i % 2 == 0 ? 3e38F : -3e38F;
    values[3 * kIntegerGroup + i] = 0.25F;
  }
  values[4 * kIntegerGroup + 31] = -5.0F;
  const Quantised got(values);
  for (size_t i = 0; i < 2 * kIntegerGroup; ++i)
    CHECK((got.code(i) == 0 && got.scale(i) == 1));
  for (size_t i = 2 * kIntegerGroup; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(std::isfinite(got.scale(i)));
    CHECK(std::abs(got.code(i) * got.scale(i) - static_cast<double>(values[i])) <=
          0.08 * std::abs(static_cast<double>(values[i])));
  }
  CHECK(std::isfinite(got.loss.squared_error));
}

TEST_CASE("int8: codes are the nearest for the scale of the largest magnitude, and the loss is theirs") {
  Random random;
  CAPTURE(random.seed());
  std::vector<float> values = random.normals(100 * kIntegerGroup);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] *= std::exp2(static_cast<float>(static_cast<int>(i / kIntegerGroup % 200) - 100));
  std::fill_n(values.begin(), kIntegerGroup, 0.0F);
  std::fill_n(values.begin() + kIntegerGroup, kIntegerGroup, -3e38F);
  std::vector<uint8_t> codes(values.size());
  std::vector<uint16_t> scales(values.size() / kIntegerGroup);
  const kernels::Loss loss = kernels::quantise_int8(values, codes, scales);
  double error = 0, square = 0;
  for (size_t group = 0; group < scales.size(); ++group) {
    CAPTURE(group);
    const auto from = std::span(values).subspan(group * kIntegerGroup, kIntegerGroup);
    float largest = 0;
    for (const float value : from)
      largest = std::max(largest, std::abs(value));
    const double scale = decode_bfloat(scales[group]);
    // One rounding of the quotient in FP32, one to BF16.
    if (largest >= 0x1p-100F) CHECK(scale == doctest::Approx(static_cast<double>(largest) / 127).epsilon(0x1p-8));
    for (uint32_t i = 0; i < kIntegerGroup; ++i) {
      const double code = codes[group * kIntegerGroup + i] - 128.0;
      const auto value = static_cast<double>(from[i]);
      CHECK(std::abs(code - std::clamp(value / scale, -128.0, 127.0)) <= 0.5 + 1e-4);
      error += (code * scale - value) * (code * scale - value);
      square += value * value;
    }
  }
  CHECK(loss.squared_error == doctest::Approx(error).epsilon(1e-9));
  CHECK(loss.squared_value == doctest::Approx(square).epsilon(1e-9));
  std::vector<float> gaussian = random.normals(1U << 18U);
  codes.resize(gaussian.size());
  scales.resize(gaussian.size() / kIntegerGroup);
  CHECK(relative_rms(kernels::quantise_int8(gaussian, codes, scales)) == doctest::Approx(0.0048).epsilon(0.03));
}

TEST_CASE("groups: every instruction set chooses the same codes and scales, of any number of groups") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t groups : {1U, 15U, 16U, 37U}) {
    CAPTURE(groups);
    std::vector<float> values = random.normals(size_t{groups} * kIntegerGroup);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = i % 97 == 0 ? 0
                              : std::clamp(values[i] * std::exp2(static_cast<float>(i / kIntegerGroup % 30) - 20),
                                           -10.0F, 10.0F);
    struct Form {
      const char* name;
      void (*kernels::CpuOps::*quantise)(kernels::QuantiseTask& task);
      size_t code_bytes, scale_bytes;  // of 32 values
      uint64_t groups;
    };
    const auto run = [&](const kernels::CpuOps& ops, const Form& form) {
      std::vector<uint8_t> bytes(groups * form.code_bytes);
      std::vector<uint16_t> scales(groups * form.scale_bytes / 2);
      kernels::QuantiseTask task{.values = values.data(),
                                 .groups = form.groups * groups,
                                 .codes = bytes.data(),
                                 .scales = scales.data(),
                                 .global = kernels::kNvfp4Global};
      (ops.*form.quantise)(task);
      return std::tuple(bytes, scales, task.squared_error, task.squared_value);
    };
    for (const Form& form : {Form{"int4", &kernels::CpuOps::quantise_int4, 16, 2, 1},
                             Form{"int8", &kernels::CpuOps::quantise_int8, 32, 2, 1},
                             Form{"NVFP4", &kernels::CpuOps::quantise_nvfp4, 16, 2, 2}}) {
      CAPTURE(form.name);
      const auto wanted = run(kernels::kScalarOps, form);
      for (const kernels::InstructionSet& set : kernels::instruction_sets()) {
        if (!set.runs_on(kernels::detect_cpu_features())) continue;
        CAPTURE(set.ops->name);
        CHECK(run(*set.ops, form) == wanted);
      }
    }
  }
}

}  // namespace dspack::test::quantise_integers_test
