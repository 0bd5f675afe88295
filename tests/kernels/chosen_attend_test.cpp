// Attention over chosen positions alone, against the plainest way in double precision, and against attention over all
// where all are chosen.
#include <algorithm>
#include <numeric>

#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/cache_rows.h"
#include "tests/support/numeric.h"

namespace dspack::test::chosen_attend_test {
namespace {

struct ChosenCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t latent = 16;
  uint32_t rope = 8;
  uint32_t first_position = 0;
  uint32_t most = 8;
  Dtype dtype = Dtype::f32;
};

std::ostream& operator<<(std::ostream& out, const ChosenCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads, latent " << c.latent
             << ", rope " << c.rope << ", at most " << c.most << " of a cache in " << to_string(c.dtype);
}

struct ChosenInput {
  std::vector<float> latent;  // queries [rows, heads, latent]
  std::vector<float> rope;    // queries [rows, heads, rope]
  std::vector<float> cache;   // [positions, latent + rope]
  std::vector<uint32_t> ids;  // [rows, most]
  std::vector<uint32_t> counts;
};

constexpr uint32_t kNoPosition = 0xfffffff0;

/// Of the positions up to each row's own `most`, or all, or with `is_shorter` fewer.
void choose_some(ChosenInput& input, const ChosenCase& c, bool is_shorter, Random& random) {
  input.ids.assign(size_t{c.rows} * c.most, kNoPosition);
  input.counts.clear();
  for (uint32_t row = 0; row < c.rows; ++row) {
    std::vector<uint32_t> left(c.first_position + row + 1);
    std::iota(left.begin(), left.end(), 0U);
    uint32_t count = std::min<uint32_t>(c.most, static_cast<uint32_t>(left.size()));
    if (is_shorter) count = random.between(1, count);
    input.counts.push_back(count);
    for (uint32_t i = 0; i < count; ++i)
      std::swap(left[i], left[random.between(i, static_cast<uint32_t>(left.size()) - 1)]);
    std::sort(left.begin(), left.begin() + count);
    std::copy_n(left.begin(), count, input.ids.begin() + ptrdiff_t{row} * c.most);
  }
}

ChosenInput random_input(const ChosenCase& c, Random& random) {
  const size_t queries = size_t{c.rows} * c.heads;
  ChosenInput input;
  input.latent = random.normals(queries * c.latent);
  input.rope = random.normals(queries * c.rope);
  input.cache = random.normals(size_t{c.first_position + c.rows} * (c.latent + c.rope));
  choose_some(input, c, false, random);
  return input;
}

/// The cache's rows as the device stores them.
kernels::Slice stored_cache(Lab& lab, const ChosenInput& input, const ChosenCase& c) {
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const uint32_t cols = c.latent + c.rope;
  const auto count = static_cast<uint32_t>(input.cache.size() / cols);
  const kernels::Rows rows{.data = lab.put(input.cache), .rows = count, .cols = cols, .stride = cols};
  const bool is_fp8 = c.dtype == Dtype::f8_e4m3;
  const std::vector<uint8_t> blank(count * cache_row_bytes(c.dtype, shape));
  const kernels::Slice place = lab.raw(blank.data(), blank.size(), is_fp8 ? 16 : sizeof(float));
  if (is_fp8) {
    lab.queue().store_latents(place, shape, rows);
  } else {
    lab.queue().store_rows(place, c.dtype, rows);
  }
  return place;
}

struct Call {
  uint32_t first = 0;  // rows of the input
  uint32_t rows = 0;
  uint32_t live = 0;  // part of the position that the device reads
  bool is_chosen = true;
};

std::vector<float> run_attend(Lab& lab, const ChosenInput& input, const ChosenCase& c, const Call& call) {
  const size_t count = size_t{call.rows} * c.heads * c.latent;
  const kernels::Slice out = lab.poisoned(count);
  const auto floats_behind = [&](const std::vector<float>& values, uint64_t of_row) {
    return lab.put(values).at(call.first * of_row * sizeof(float));
  };
  kernels::MlaAttendArgs args{.query_latent = floats_behind(input.latent, uint64_t{c.heads} * c.latent),
                              .query_rope = floats_behind(input.rope, uint64_t{c.heads} * c.rope),
                              .cache = stored_cache(lab, input, c),
                              .out = out,
                              .rows = call.rows,
                              .heads = c.heads,
                              .latent_dim = c.latent,
                              .rope_dim = c.rope,
                              .rope_row_stride = c.heads * c.rope,
                              .rope_head_stride = c.rope,
                              .first_position = c.first_position + call.first - call.live,
                              .scale = 1.0F / std::sqrt(static_cast<float>(c.latent + c.rope)),
                              .cache_dtype = c.dtype};
  if (call.live > 0)
    args.live = {.value = lab.put(std::vector<uint32_t>{call.live}), .limit = c.first_position + c.rows};
  if (call.is_chosen) {
    args.choice = {.ids = lab.put(input.ids).at(uint64_t{call.first} * c.most * sizeof(uint32_t)),
                   .counts = lab.put(input.counts).at(call.first * sizeof(uint32_t)),
                   .most = c.most};
  }
  lab.queue().mla_attend(args);
  return lab.get(out, count);
}

Doubles reference(Lab& lab, const ChosenInput& input, const ChosenCase& c) {
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const size_t key = c.latent + c.rope;
  const uint64_t bytes = input.cache.size() / key * cache_row_bytes(c.dtype, shape);
  const auto cache = decoded_cache(lab.get<uint8_t>(stored_cache(lab, input, c), bytes), c.dtype, shape);
  Doubles out(size_t{c.rows} * c.heads * c.latent);
  for (size_t q = 0; q < size_t{c.rows} * c.heads; ++q) {
    const size_t row = q / c.heads;
    Doubles scores(input.counts[row]);
    for (size_t p = 0; p < scores.size(); ++p) {
      const float* of_key = cache.data() + input.ids[row * c.most + p] * key;
      for (size_t i = 0; i < c.latent; ++i)
        scores[p] += static_cast<double>(input.latent[q * c.latent + i]) * of_key[i];
      for (size_t i = 0; i < c.rope; ++i)
        scores[p] += static_cast<double>(input.rope[q * c.rope + i]) * of_key[c.latent + i];
      scores[p] /= std::sqrt(static_cast<double>(key));
    }
    const Doubles weights = softmax(scores);
    for (size_t p = 0; p < scores.size(); ++p) {
      for (size_t i = 0; i < c.latent; ++i)
        out[q * c.latent + i] += weights[p] * cache[input.ids[row * c.most + p] * key + i];
    }
  }
  return out;
}

constexpr Dtype kCacheTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3};

KERNEL_CASE("mla_attend: over chosen positions agrees with naive attention over them, for every cache") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (ChosenCase c :
       {ChosenCase{1, 1, 16, 8, 40, 8}, ChosenCase{5, 3, 40, 6, 3, 5}, ChosenCase{3, 9, 33, 10, 300, 130},
        ChosenCase{2, 17, 24, 8, 500, 200}, ChosenCase{2, 20, 512, 64, 150, 90}, ChosenCase{2, 5, 16, 0, 100, 64}}) {
    for (const Dtype dtype : kCacheTypes) {
      c.dtype = dtype;
      CAPTURE(c);
      Lab lab(Set::kName);
      ChosenInput input = random_input(c, random);
      for (const bool is_shorter : {false, true}) {
        choose_some(input, c, is_shorter, random);
        const auto got = run_attend(lab, input, c, {.rows = c.rows});
        const ErrorReport report = compare(got, reference(lab, input, c), c.latent);
        CAPTURE(report);
        CHECK(report.not_a_number == 0);
        const double relative = 60 * kRoundoff;  // as in attend_test.cpp
        CHECK(report.nmse < relative * relative);
      }
    }
  }
}

KERNEL_CASE("mla_attend: a choice of all positions gives the bits of attention without a choice") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (ChosenCase c :
       {ChosenCase{6, 5, 40, 8, 0, 8}, ChosenCase{3, 9, 33, 10, 200, 203}, ChosenCase{2, 18, 64, 16, 130, 140}}) {
    for (const Dtype dtype : kCacheTypes) {
      c.dtype = dtype;
      CAPTURE(c);
      Lab lab(Set::kName);
      const ChosenInput input = random_input(c, random);
      const auto all = run_attend(lab, input, c, {.rows = c.rows, .is_chosen = false});
      CHECK(first_difference(run_attend(lab, input, c, {.rows = c.rows}), all) == all.size());
    }
  }
}

KERNEL_CASE("mla_attend: over a choice the bits depend on neither chunking, threads, nor who knows the position") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    const ChosenCase c{7, 11, 72, 12, 200, 100, dtype};
    CAPTURE(c);
    const ChosenInput input = random_input(c, random);
    Lab plainest(plainest_of(Set::kName), 1);
    const auto wanted = run_attend(plainest, input, c, {.rows = c.rows});
    for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
      for (const uint32_t piece : {1U, 2U, 7U}) {
        for (const uint32_t live : {0U, 150U}) {
          Lab lab(Set::kName, threads);
          std::vector<float> got;
          for (uint32_t first = 0; first < c.rows; first += piece) {
            const auto rows =
                run_attend(lab, input, c, {.first = first, .rows = std::min(piece, c.rows - first), .live = live});
            got.insert(got.end(), rows.begin(), rows.end());
          }
          CHECK(first_difference(got, wanted) == wanted.size());
        }
      }
    }
  }
}

}  // namespace
}  // namespace dspack::test::chosen_attend_test
