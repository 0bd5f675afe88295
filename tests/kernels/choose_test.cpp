// The indexer's choice, against the plainest way to make it: every score in double precision, a stable sort. Where
// scores are exact in FP32 choices are equal; elsewhere what is chosen differs by rounding alone.
#include <algorithm>
#include <numeric>
#include <optional>

#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/weights.h"

namespace dspack::test::choose_test {
namespace {

struct ChooseCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t dim = 8;
  uint32_t first_position = 0;
  uint32_t most = 4;
};

std::ostream& operator<<(std::ostream& out, const ChooseCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads of " << c.dim
             << ", at most " << c.most;
}

struct ChooseInput {
  std::vector<float> queries;  // [rows, heads, dim]
  std::vector<float> weights;  // [rows, heads]
  RandomWeight keys;           // [positions, dim]
};

/// Keys as they are stored, a scale for each where they are FP8.
WeightCase key_case(const ChooseCase& c, Dtype dtype) {
  const bool is_fp8 = dtype == Dtype::f8_e4m3;
  return {dtype, c.first_position + c.rows, c.dim, is_fp8 ? 1U : 0U, is_fp8 ? c.dim : 0U};
}

ChooseInput random_input(const ChooseCase& c, Dtype dtype, Random& random) {
  return {.queries = random.normals(size_t{c.rows} * c.heads * c.dim),
          .weights = random.normals(size_t{c.rows} * c.heads),
          .keys = random_weight(key_case(c, dtype), random)};
}

/// Scores that are the given numbers: of one row with two heads of one value, score(j) = max(k, 0) - max(-k, 0).
ChooseInput input_with_scores(const std::vector<float>& scores) {
  ChooseInput input{.queries = {1, -1}, .weights = {1, -1}, .keys = {}};
  input.keys.shape = {Dtype::f32, static_cast<uint32_t>(scores.size()), 1, 0, 0};
  input.keys.bytes.resize(scores.size() * sizeof(float));
  std::memcpy(input.keys.bytes.data(), scores.data(), input.keys.bytes.size());
  input.keys.matrix = {static_cast<uint32_t>(scores.size()), 1, Doubles(scores.begin(), scores.end())};
  return input;
}

constexpr ChooseCase case_of_scores(uint32_t positions, uint32_t most) {
  return {.rows = 1, .heads = 2, .dim = 1, .first_position = positions - 1, .most = most};
}

using Ids = std::vector<uint32_t>;
constexpr uint32_t kUnwritten = 0xdeadbeef;
constexpr uint32_t kUnknown = UINT32_MAX;

/// What `rows` rows of the input from row `first` on choose. `live`: part of the position that the device reads; then
/// there are keys for `spare` more positions, which nobody sees.
std::vector<Ids> chosen(Lab& lab, const ChooseInput& input, const ChooseCase& c, uint32_t first, uint32_t rows,
                        uint32_t live = kUnknown) {
  kernels::Weight keys = input.keys.put(lab);
  const kernels::Slice ids = lab.put(Ids(size_t{rows} * c.most, kUnwritten));
  const kernels::Slice counts = lab.put(Ids(rows, kUnwritten));
  kernels::ChooseArgs args{.queries = lab.put(input.queries).at(uint64_t{first} * c.heads * c.dim * sizeof(float)),
                           .weights = lab.put(input.weights).at(uint64_t{first} * c.heads * sizeof(float)),
                           .keys = keys,
                           .choice = {.ids = ids, .counts = counts, .most = c.most},
                           .rows = rows,
                           .heads = c.heads,
                           .first_position = c.first_position + first};
  if (live != kUnknown) {
    args.first_position -= live;
    args.live = {.value = lab.put(Ids{live}), .limit = keys.out};
  }
  lab.queue().choose(args);
  const Ids all = lab.get<uint32_t>(ids, size_t{rows} * c.most);
  const Ids found = lab.get<uint32_t>(counts, rows);
  std::vector<Ids> choices;
  for (size_t row = 0; row < rows; ++row) {
    REQUIRE(found[row] <= c.most);
    const auto begin = all.begin() + static_cast<ptrdiff_t>(row * c.most);
    choices.emplace_back(begin, begin + found[row]);
    CHECK(std::ranges::is_sorted(choices.back(), std::less_equal()));
  }
  return choices;
}
std::vector<Ids> chosen(Lab& lab, const ChooseInput& input, const ChooseCase& c) {
  return chosen(lab, input, c, 0, c.rows);
}

/// The scores of row `row`, with the sums of their terms' magnitudes.
std::vector<Sum> scores_of(const ChooseInput& input, const ChooseCase& c, uint32_t row) {
  std::vector<Sum> scores(c.first_position + row + 1);
  for (uint32_t position = 0; position < scores.size(); ++position) {
    for (uint32_t head = 0; head < c.heads; ++head) {
      const size_t at = size_t{row} * c.heads + head;
      Sum product;
      for (uint32_t i = 0; i < c.dim; ++i)
        product.add(static_cast<double>(input.queries[at * c.dim + i]) * input.keys.matrix.at(position, i));
      const double weight = static_cast<double>(input.weights[at]);
      scores[position].value += weight * (product.value < 0 ? 0 : product.value);
      scores[position].magnitude += std::abs(weight) * product.magnitude;
    }
  }
  return scores;
}

/// NaN before all; of equals the lowest position.
Ids best_of(const std::vector<Sum>& scores, uint32_t most) {
  Ids ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0U);
  std::ranges::stable_sort(ids, [&](uint32_t a, uint32_t b) {
    const double first = scores[a].value;
    const double second = scores[b].value;
    if (std::isnan(first) || std::isnan(second)) return std::isnan(first) && !std::isnan(second);
    return first > second;
  });
  ids.resize(std::min<size_t>(ids.size(), most));
  std::ranges::sort(ids);
  return ids;
}

/// That a choice is one of `most` positions, none of which has a score further below one that was left out than
/// rounding explains.
void check_choice(const Ids& choice, const std::vector<Sum>& scores, const ChooseCase& c) {
  REQUIRE(choice.size() == std::min<size_t>(scores.size(), c.most));
  std::vector<bool> is_chosen(scores.size());
  for (const uint32_t id : choice) {
    REQUIRE(id < scores.size());
    is_chosen[id] = true;
  }
  // Each term is rounded once in every sum that it goes into, and as a product.
  const double relative = (c.dim + c.heads + 10) * 0x1p-24;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  for (size_t position = 0; position < scores.size(); ++position) {
    const double error = relative * scores[position].magnitude;
    if (is_chosen[position]) {
      least = std::min(least, scores[position].value + error);
    } else {
      most = std::max(most, scores[position].value - error);
    }
  }
  CHECK(least >= most);
}

constexpr Dtype kKeyTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3};

KERNEL_CASE("choose: the largest scores, of keys of every type, for rows below, at and above the most") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const ChooseCase& c : {ChooseCase{1, 1, 8, 0, 4}, ChooseCase{7, 3, 40, 0, 4}, ChooseCase{5, 2, 33, 61, 64},
                              ChooseCase{3, 32, 64, 130, 50}, ChooseCase{2, 64, 128, 300, 37},
                              ChooseCase{2, 70, 24, 90, 1}, ChooseCase{2, 5, 300, 140, 20}}) {
    for (const Dtype dtype : kKeyTypes) {
      CAPTURE(c);
      CAPTURE(to_string(dtype));
      Lab lab(Set::kName);
      const ChooseInput input = random_input(c, dtype, random);
      const auto choices = chosen(lab, input, c);
      for (uint32_t row = 0; row < c.rows; ++row)
        check_choice(choices[row], scores_of(input, c, row), c);
    }
  }
}

/// Numbers that any order of summation adds up without rounding.
void make_whole(ChooseInput& input, Random& random) {
  for (auto* values : {&input.queries, &input.weights}) {
    for (float& value : *values)
      value = static_cast<float>(random.between(0, 4)) - 2;
  }
  for (size_t i = 0; i < input.keys.matrix.values.size(); ++i) {
    const float value = static_cast<float>(random.between(0, 4)) - 2;
    std::memcpy(input.keys.bytes.data() + i * sizeof value, &value, sizeof value);
    input.keys.matrix.values[i] = value;
  }
}

KERNEL_CASE("choose: of equal scores the lowest positions, with many heads and few") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  for (const ChooseCase& c :
       {ChooseCase{9, 1, 3, 60, 16}, ChooseCase{4, 6, 2, 700, 301}, ChooseCase{3, 40, 4, 257, 100}}) {
    CAPTURE(c);
    Lab lab(Set::kName);
    ChooseInput input = random_input(c, Dtype::f32, random);
    make_whole(input, random);
    const auto choices = chosen(lab, input, c);
    for (uint32_t row = 0; row < c.rows; ++row)
      CHECK(choices[row] == best_of(scores_of(input, c, row), c.most));
  }
}

void check_scores(const std::string& set, const std::vector<float>& scores, uint32_t most) {
  CAPTURE(scores.size());
  CAPTURE(most);
  Lab lab(set);
  std::vector<Sum> wanted(scores.size());
  for (size_t i = 0; i < scores.size(); ++i)
    wanted[i].value = static_cast<double>(scores[i]);
  const ChooseCase c = case_of_scores(static_cast<uint32_t>(scores.size()), most);
  CHECK(chosen(lab, input_with_scores(scores), c).front() == best_of(wanted, most));
}

KERNEL_CASE("choose: among thousands of scores of every kind") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto with = [&](size_t count, const auto& make) {
    std::vector<float> scores(count);
    for (float& score : scores)
      score = make();
    return scores;
  };
  check_scores(Set::kName, random.normals(3000), 512);
  check_scores(Set::kName, random.normals(9001), 2047);
  check_scores(Set::kName, random.normals(2049), 2048);
  // All alike, more than any list in between holds; zeros of both signs; one that differs.
  std::vector<float> alike = with(9000, [&] { return random.below(2) == 0 ? 0.0F : -0.0F; });
  check_scores(Set::kName, alike, 100);
  alike.back() = 1e-30F;
  alike[4000] = -1e-30F;
  check_scores(Set::kName, alike, 8999);
  check_scores(Set::kName, alike, 1);
  check_scores(Set::kName, with(6000, [&] { return -1.0F - static_cast<float>(random.below(3)) * 0x1p-23F; }), 2500);
  check_scores(Set::kName, with(1000, [&] { return random.below(3) == 0 ? -kInfinity : kInfinity; }), 700);
  // A NaN is the largest.
  check_scores(Set::kName, with(500, [&] { return random.below(9) == 0 ? std::nanf("") : random.normal(); }), 200);
  check_scores(Set::kName, with(500, [&] { return random.below(2) == 0 ? std::nanf("") : kInfinity; }), 200);
  // Sizes far apart, subnormal ones too.
  check_scores(Set::kName,
               with(4000, [&] { return std::ldexp(random.normal(), static_cast<int>(random.below(250)) - 140); }), 999);
}

KERNEL_CASE("choose: a row's choice depends on it alone, whoever knows its position") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  const ChooseCase c{11, 4, 20, 150, 40};
  const ChooseInput input = random_input(c, Dtype::bf16, random);
  Lab plainest(plainest_of(Set::kName), 1);
  const auto wanted = chosen(plainest, input, c);
  for (unsigned threads = 1; threads <= kMaxThreads; ++threads) {
    Lab lab(Set::kName, threads);
    for (const uint32_t piece : {1U, 3U, 11U}) {
      CAPTURE(piece);
      for (const uint32_t live : {kUnknown, 0U, 7U, 150U}) {
        std::vector<Ids> got;
        for (uint32_t first = 0; first < c.rows; first += piece) {
          const auto part = chosen(lab, input, c, first, std::min(piece, c.rows - first), live);
          got.insert(got.end(), part.begin(), part.end());
        }
        CHECK(got == wanted);
      }
    }
  }
}

KERNEL_CASE("choose: keys that a row does not see change nothing") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  const ChooseCase c{3, 2, 16, 70, 30};
  ChooseInput input = random_input(c, Dtype::f32, random);
  Lab lab(Set::kName);
  const auto wanted = chosen(lab, input, c);
  const float nan = std::nanf("");
  for (uint32_t i = 0; i < c.dim; ++i)  // of the last position, which only the last row sees
    std::memcpy(input.keys.bytes.data() + ((c.first_position + c.rows - 1) * c.dim + i) * sizeof nan, &nan, sizeof nan);
  const auto got = chosen(lab, input, c);
  CHECK(got[0] == wanted[0]);
  CHECK(got[1] == wanted[1]);
  CHECK(got[2].back() == c.first_position + c.rows - 1);  // a NaN is chosen
}

}  // namespace
}  // namespace dspack::test::choose_test
