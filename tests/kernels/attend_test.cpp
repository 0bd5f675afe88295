#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/cache_rows.h"
#include "tests/support/numeric.h"

namespace dspack::test::attend_test {
namespace {

struct AttendCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t latent = 16;
  uint32_t rope = 8;
  uint32_t first_position = 0;
  float sharpness = 1;  // factor of the queries
};

std::ostream& operator<<(std::ostream& out, const AttendCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads, latent " << c.latent
             << ", rope " << c.rope << ", sharpness " << c.sharpness;
}

struct AttendInput {
  std::vector<float> latent;  // queries [rows, heads, latent]
  std::vector<float> rope;    // queries [rows, heads, rope + 3], as if cut from a wider projection
  std::vector<float> cache;   // [positions, latent + rope]
};

constexpr uint32_t kRopeGap = 3;

AttendInput random_input(const AttendCase& c, Random& random) {
  AttendInput input;
  const size_t queries = size_t{c.rows} * c.heads;
  input.latent = random.normals(queries * c.latent);
  for (float& value : input.latent)
    value *= c.sharpness;
  input.rope = random.normals(queries * (c.rope + kRopeGap));
  input.cache = random.normals(size_t{c.first_position + c.rows} * (c.latent + c.rope));
  return input;
}

float softmax_scale(const AttendCase& c) {
  return 1.0F / std::sqrt(static_cast<float>(c.latent + c.rope));
}

/// The cache's rows as the device stores them.
kernels::Slice stored_cache(Lab& lab, const AttendInput& input, const AttendCase& c, Dtype dtype) {
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const uint32_t cols = c.latent + c.rope;
  const auto count = static_cast<uint32_t>(input.cache.size() / cols);
  const kernels::Rows rows{.data = lab.put(input.cache), .rows = count, .cols = cols, .stride = cols};
  const bool is_fp8 = dtype == Dtype::f8_e4m3;
  const std::vector<uint8_t> blank(count * cache_row_bytes(dtype, shape), 0xff);
  const kernels::Slice place = lab.raw(blank.data(), blank.size(), is_fp8 ? 16 : sizeof(float));
  if (is_fp8) {
    lab.queue().store_latents(place, shape, rows);
  } else {
    lab.queue().store_rows(place, dtype, rows);
  }
  return place;
}

/// The values of a cache of this type.
std::vector<float> stored_values(Lab& lab, const AttendInput& input, const AttendCase& c, Dtype dtype) {
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const size_t rows = input.cache.size() / (c.latent + c.rope);
  const kernels::Slice place = stored_cache(lab, input, c, dtype);
  return decoded_cache(lab.get<uint8_t>(place, rows * cache_row_bytes(dtype, shape)), dtype, shape);
}

/// `c.rows` rows of the input from row `first` on.
std::vector<float> run_attend(Lab& lab, const AttendInput& input, const AttendCase& c, uint32_t first,
                              Dtype dtype = Dtype::f32) {
  const size_t count = size_t{c.rows} * c.heads * c.latent;
  const kernels::Slice out = lab.poisoned(count);
  const uint32_t rope_stride = c.rope + kRopeGap;
  lab.queue().mla_attend({.query_latent = lab.put(input.latent).at(uint64_t{first} * c.heads * c.latent * 4),
                          .query_rope = lab.put(input.rope).at(uint64_t{first} * c.heads * rope_stride * 4),
                          .cache = stored_cache(lab, input, c, dtype),
                          .out = out,
                          .rows = c.rows,
                          .heads = c.heads,
                          .latent_dim = c.latent,
                          .rope_dim = c.rope,
                          .rope_row_stride = c.heads * rope_stride,
                          .rope_head_stride = rope_stride,
                          .first_position = c.first_position + first,
                          .scale = softmax_scale(c),
                          .cache_dtype = dtype});
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

KERNEL_CASE("mla_attend: agrees with naive attention in double precision") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c :
       {AttendCase{1, 1, 16, 8, 0, 1}, AttendCase{1, 3, 40, 6, 63, 1}, AttendCase{5, 4, 24, 2, 62, 1},
        AttendCase{3, 9, 33, 10, 200, 1}, AttendCase{2, 8, 512, 64, 130, 1}, AttendCase{70, 2, 16, 4, 0, 1},
        AttendCase{2, 5, 16, 0, 10, 1}, AttendCase{2, 3, 64, 8, 300, 200}}) {
    CAPTURE(c);
    Lab lab(Set::kName);
    const AttendInput input = random_input(c, random);
    const ErrorReport report = compare(run_attend(lab, input, c, 0), reference(input, c), c.latent);
    CAPTURE(report);
    CHECK(report.not_a_number == 0);
    // An error e of a score changes its weight by the factor 1 + e. Scores are sums of up to 576 terms, hence wrong by
    // about (576 / 16 + 5) u times their size, which is about the sharpness; weights and sums add a few u of their own.
    const double relative = 60 * kRoundoff * std::max(1.0F, c.sharpness);
    CHECK(report.nmse < relative * relative);
  }
}

KERNEL_CASE("mla_attend: scores beyond the range of exp do no harm") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 2, 16, 4, 150, 1e6F};
  Lab lab(Set::kName);
  for (const float value : run_attend(lab, random_input(c, random), c, 0))
    CHECK(std::isfinite(value));
}

KERNEL_CASE("mla_attend: the bits depend on neither chunking, threads, nor instruction set") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  const AttendCase all{9, 11, 72, 12, 120, 3};
  const AttendInput input = random_input(all, random);
  Lab plainest(plainest_of(Set::kName), 1);
  const auto wanted = run_attend(plainest, input, all, 0);
  for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
    for (const uint32_t chunk : {1U, 2U, 7U, 9U}) {
      CAPTURE(threads);
      CAPTURE(chunk);
      Lab lab(Set::kName, threads);
      std::vector<float> got;
      for (uint32_t first = 0; first < all.rows; first += chunk) {
        AttendCase part = all;
        part.rows = std::min(chunk, all.rows - first);
        const auto rows = run_attend(lab, input, part, first);
        got.insert(got.end(), rows.begin(), rows.end());
      }
      CHECK(first_difference(got, wanted) == wanted.size());
    }
  }
}

KERNEL_CASE("mla_attend: a smaller cache gives the bits of an FP32 cache that holds its values") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const AttendCase& c :
       {AttendCase{1, 1, 16, 8, 0, 1}, AttendCase{3, 9, 33, 10, 200, 1}, AttendCase{2, 8, 512, 64, 130, 1},
        AttendCase{2, 5, 16, 0, 10, 1}, AttendCase{2, 3, 1104, 40, 70, 1}, AttendCase{2, 3, 1101, 7, 20, 1}}) {
    const AttendInput input = random_input(c, random);
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f8_e4m3}) {
      CAPTURE(c);
      CAPTURE(to_string(dtype));
      Lab lab(Set::kName);
      AttendInput rounded = input;
      rounded.cache = stored_values(lab, input, c, dtype);
      CHECK(rounded.cache != input.cache);
      Lab plainest(plainest_of(Set::kName), 1);
      const auto wanted = run_attend(plainest, rounded, c, 0);
      CHECK(first_difference(run_attend(lab, input, c, 0, dtype), wanted) == wanted.size());
    }
  }
}

KERNEL_CASE("store_rows: rows with gaps, every type") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 5;
  constexpr uint32_t kCols = 19;
  constexpr uint32_t kStride = 23;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    Lab lab(Set::kName);
    const std::vector<float> values = random.normals(size_t{kRows} * kStride);
    const std::vector<uint8_t> zeros(size_t{kRows} * kCols * (bits_of(dtype) / 8));
    const kernels::Slice stored = lab.raw(zeros.data(), zeros.size(), sizeof(float));
    lab.queue().store_rows(stored, dtype, {.data = lab.put(values), .rows = kRows, .cols = kCols, .stride = kStride});
    const auto got = decoded_rows(lab.get<uint8_t>(stored, zeros.size()), dtype);
    REQUIRE(got.size() == size_t{kRows} * kCols);
    for (size_t i = 0; i < got.size(); ++i) {
      const float value = values[i / kCols * kStride + i % kCols];
      const float wanted = dtype == Dtype::bf16  ? bf16_to_f32(f32_to_bf16(value))
                           : dtype == Dtype::f16 ? f16_to_f32(f32_to_f16(value))
                                                 : value;
      CHECK(got[i] == wanted);
    }
  }
}

}  // namespace
}  // namespace dspack::test::attend_test
