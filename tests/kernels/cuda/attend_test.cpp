#include "kernels/cuda/attend.h"

#include <algorithm>

#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/numeric.h"

namespace dspack::test {
namespace {

using kernels::AttendChoice;

struct AttendCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t latent = 16;
  uint32_t rope = 8;
  uint32_t first_position = 0;
  float sharpness = 1;  // factor of the latent queries
  Dtype dtype = Dtype::f32;
  size_t cache_offset = 0;  // bytes behind an aligned place
};

std::ostream& operator<<(std::ostream& out, const AttendCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads, latent " << c.latent
             << ", rope " << c.rope << ", sharpness " << c.sharpness << ", cache " << to_string(c.dtype) << " at "
             << c.cache_offset;
}

constexpr uint32_t kRopeGap = 3;

struct AttendInput {
  std::vector<float> latent;  // queries [rows, heads, latent]
  std::vector<float> rope;    // queries [rows, heads, rope + 3], as if cut from a wider projection
  std::vector<float> cache;   // [positions, latent + rope], values of the cache's type
};

float stored_value(float value, Dtype dtype) {
  if (dtype == Dtype::bf16) return bf16_to_f32(f32_to_bf16(value));
  if (dtype == Dtype::f16) return f16_to_f32(f32_to_f16(value));
  return value;
}

AttendInput random_input(const AttendCase& c, Random& random) {
  AttendInput input;
  const size_t queries = size_t{c.rows} * c.heads;
  input.latent = random.normals(queries * c.latent);
  for (float& value : input.latent)
    value *= c.sharpness;
  input.rope = random.normals(queries * (c.rope + kRopeGap));
  input.cache = random.normals(size_t{c.first_position + c.rows} * (c.latent + c.rope));
  for (float& value : input.cache)
    value = stored_value(value, c.dtype);
  return input;
}

float softmax_scale(const AttendCase& c) {
  return 1.0F / std::sqrt(static_cast<float>(c.latent + c.rope));
}

const void* put_cache(GpuLab& lab, const AttendInput& input, const AttendCase& c) {
  if (c.dtype == Dtype::f32) return lab.put(input.cache, c.cache_offset);
  std::vector<uint16_t> bits;
  for (const float value : input.cache)
    bits.push_back(c.dtype == Dtype::bf16 ? f32_to_bf16(value) : f32_to_f16(value));
  return lab.put(bits, c.cache_offset);
}

enum class Position { known, live };

/// How the same rows are asked for.
struct Call {
  uint32_t first = 0;  // rows of the input
  uint32_t rows = 0;
  uint32_t capacity = 0;  // positions, for live ones
  Position position = Position::known;
  AttendChoice choice = AttendChoice::exact;
};

Call all_rows(const AttendCase& c) {
  return {.first = 0, .rows = c.rows, .capacity = c.first_position + c.rows};
}

std::vector<float> run_attend(GpuLab& lab, const AttendInput& input, const AttendCase& c, const Call& call) {
  const size_t count = size_t{call.rows} * c.heads * c.latent;
  const uint32_t rope_stride = c.rope + kRopeGap;
  const uint32_t position = c.first_position + call.first;
  float* out = lab.poisoned(count, sizeof(float));
  const uint32_t known = call.position == Position::live ? position / 3 : position;
  kernels::MlaAttendTask task{
      .query_latent = lab.put(input.latent, sizeof(float)) + size_t{call.first} * c.heads * c.latent,
      .query_rope = lab.put(input.rope, sizeof(float)) + size_t{call.first} * c.heads * rope_stride,
      .cache = put_cache(lab, input, c),
      .out = out,
      .rows = call.rows,
      .heads = c.heads,
      .latent_dim = c.latent,
      .rope_dim = c.rope,
      .rope_row_stride = c.heads * rope_stride,
      .rope_head_stride = rope_stride,
      .first_position = known,
      .position_limit = call.capacity,
      .scale = softmax_scale(c),
      .cache_dtype = c.dtype};
  if (call.position == Position::live) task.live_position = lab.put(std::vector<uint32_t>{position - known});
  task.partial = lab.poisoned(kernels::attend_scratch_bytes(shape_of(task)) / sizeof(float));
  if (call.choice == AttendChoice::exact) {
    attend_exact(lab.stream(), task);
  } else {
    REQUIRE(call.choice == AttendChoice::exact);
  }
  return lab.get(out, count);
}

Doubles reference(const AttendInput& input, const AttendCase& c) {
  Doubles out(size_t{c.rows} * c.heads * c.latent);
  const size_t key = c.latent + c.rope;
  for (size_t q = 0; q < size_t{c.rows} * c.heads; ++q) {
    Doubles scores(c.first_position + q / c.heads + 1);
    for (size_t p = 0; p < scores.size(); ++p) {
      for (size_t i = 0; i < c.latent; ++i) {
        scores[p] += static_cast<double>(input.latent[q * c.latent + i]) * input.cache[p * key + i];
      }
      for (size_t i = 0; i < c.rope; ++i) {
        scores[p] += static_cast<double>(input.rope[q * (c.rope + kRopeGap) + i]) * input.cache[p * key + c.latent + i];
      }
      scores[p] *= softmax_scale(c);
    }
    const Doubles weights = softmax(scores);
    for (size_t p = 0; p < scores.size(); ++p) {
      for (size_t i = 0; i < c.latent; ++i)
        out[q * c.latent + i] += weights[p] * input.cache[p * key + i];
    }
  }
  return out;
}

void check_exact(const AttendCase& c, Random& random) {
  CAPTURE(c);
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const ErrorReport report = compare(run_attend(lab, input, c, all_rows(c)), reference(input, c), c.latent);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  // As on the CPU: an error e of a score changes its weight by the factor 1 + e. Scores are sums of eight parts of up
  // to 72 terms, hence wrong by less than (72 + 8) u times their size, which is about the sharpness, and in the mean by
  // far less; weights, sums and merging add a few u of their own.
  const double relative = 60 * kRoundoff * std::max(1.0F, c.sharpness);
  CHECK(report.nmse < relative * relative);
}

}  // namespace

TEST_CASE("cuda: exact attention agrees with naive attention in double precision") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c :
       {AttendCase{1, 1, 16, 8, 0}, AttendCase{1, 3, 40, 6, 63}, AttendCase{5, 4, 24, 2, 62},
        AttendCase{3, 9, 33, 10, 200}, AttendCase{70, 2, 16, 4, 0}, AttendCase{2, 5, 16, 0, 10},
        AttendCase{2, 3, 64, 8, 300, 200}, AttendCase{4, 17, 7, 5, 129}, AttendCase{3, 4, 80, 16, 66}})
    check_exact(c, random);
}

TEST_CASE("cuda: exact attention at DeepSeek-V3's sizes") {
  Random random;
  CAPTURE(random.seed());
  check_exact({1, 128, 512, 64, 70, 1, Dtype::bf16}, random);
  check_exact({2, 16, 512, 64, 130, 1, Dtype::f32}, random);
}

TEST_CASE("cuda: exact attention on keys that are wider than a panel, values wider than a block") {
  Random random;
  CAPTURE(random.seed());
  check_exact({2, 3, 560, 16, 40, 1, Dtype::bf16}, random);
  check_exact({2, 3, 1100, 100, 70, 1, Dtype::f16}, random);
  check_exact({1, 2, 1031, 30, 20, 1, Dtype::f32}, random);
}

TEST_CASE("cuda: exact attention over many positions") {
  Random random;
  CAPTURE(random.seed());
  check_exact({1, 2, 8, 2, 20'000}, random);
  // Around the position from which on splits are longer; both lengths in one block.
  check_exact({6, 2, 8, 4, 128 * 64 - 3}, random);
}

TEST_CASE("cuda: exact attention decodes every type of cache, aligned or not") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const size_t elements : {0, 1}) {
      check_exact({2, 3, 48, 16, 70, 1, dtype, elements * bits_of(dtype) / 8}, random);
      check_exact({2, 3, 31, 6, 70, 1, dtype, elements * bits_of(dtype) / 8}, random);
    }
  }
}

TEST_CASE("cuda: exact attention: scores beyond the range of exp do no harm") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 2, 16, 4, 150, 1e6F};
  GpuLab lab(random.seed());
  for (const float value : run_attend(lab, random_input(c, random), c, all_rows(c)))
    CHECK(std::isfinite(value));
}

TEST_CASE(
    "cuda: exact attention: a row's bits depend on neither its neighbours, capacity, nor who knows its position") {
  Random random;
  CAPTURE(random.seed());
  // 128 splits of 64 positions end within these rows.
  const AttendCase c{7, 3, 24, 8, 128 * 64 - 4, 3};
  const AttendInput input = random_input(c, random);
  const size_t row = size_t{c.heads} * c.latent;
  GpuLab lab(random.seed());
  const auto wanted = run_attend(lab, input, c, all_rows(c));
  for (const uint32_t rows : {1U, 2U}) {
    std::vector<float> got;
    for (uint32_t first = 0; first < c.rows; first += rows) {
      const uint32_t count = std::min(rows, c.rows - first);
      const auto part = run_attend(lab, input, c, {.first = first, .rows = count, .capacity = 0});
      got.insert(got.end(), part.begin(), part.end());
    }
    CHECK(first_difference(got, wanted) == wanted.size());
  }
  for (const uint32_t capacity : {c.first_position + c.rows, 163'840U}) {
    const auto live =
        run_attend(lab, input, c, {.first = 2, .rows = 3, .capacity = capacity, .position = Position::live});
    CHECK(first_difference(live, std::span(wanted).subspan(2 * row, 3 * row)) == live.size());
  }
}

TEST_CASE("cuda: exact attention: the order of threads and blocks changes no bit") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c : {AttendCase{3, 5, 33, 10, 150, 2}, AttendCase{1, 4, 512, 64, 65, 2, Dtype::bf16},
                              AttendCase{1, 2, 600, 20, 30, 2}}) {
    CAPTURE(c);
    const AttendInput input = random_input(c, random);
    GpuLab first(1);
    const auto wanted = run_attend(first, input, c, all_rows(c));
    for (const uint64_t seed : {2, 3, 4}) {
      GpuLab lab(seed);
      CHECK(first_difference(run_attend(lab, input, c, all_rows(c)), wanted) == wanted.size());
    }
  }
}

}  // namespace dspack::test
