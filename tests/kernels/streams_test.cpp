// Residual streams of hyper-connections, against their definition in double precision, with the same bits on every
// instruction set.
#include "tests/kernels/definitions.h"

namespace dspack::test::streams_test {
namespace {

using kernels::Rows;
using kernels::Slice;

struct Mixture {
  Doubles pre, post, c;
};

/// Of one row, in double precision: C is made doubly stochastic by the definition of Sinkhorn's algorithm.
Mixture mixture_of(const std::vector<float>& logits, const std::vector<float>& base, const std::vector<float>& scale,
                   double mean, uint32_t n, uint32_t rounds, double norm_epsilon, double epsilon) {
  const auto at = [&](uint32_t i, uint32_t group) {
    return logits[i] / std::sqrt(mean + norm_epsilon) * scale[group] + base[i];
  };
  Mixture mixture;
  for (uint32_t j = 0; j < n; ++j) {
    mixture.pre.push_back(sigmoid(at(j, 0)) + epsilon);
    mixture.post.push_back(2 * sigmoid(at(n + j, 1)));
  }
  Doubles& c = mixture.c;
  for (uint32_t j = 0; j < n; ++j) {
    double sum = 0;
    for (uint32_t k = 0; k < n; ++k)
      sum += std::exp(at(2 * n + j * n + k, 2));
    for (uint32_t k = 0; k < n; ++k)
      c.push_back(std::exp(at(2 * n + j * n + k, 2)) / sum + epsilon);
  }
  const auto divide = [&](bool columns) {
    for (uint32_t i = 0; i < n; ++i) {
      double sum = 0;
      for (uint32_t j = 0; j < n; ++j)
        sum += columns ? c[j * n + i] : c[i * n + j];
      for (uint32_t j = 0; j < n; ++j)
        (columns ? c[j * n + i] : c[i * n + j]) /= sum + epsilon;
    }
  };
  divide(true);
  for (uint32_t round = 1; round < rounds; ++round) {
    divide(false);
    divide(true);
  }
  return mixture;
}

struct Streams {
  uint32_t rows, n, hidden, rounds;
  std::vector<float> streams, logits, base, scale;
  float epsilon = 1e-6F;
};

Streams random_streams(uint32_t rows, uint32_t n, uint32_t hidden, uint32_t rounds) {
  const uint32_t width = n * (2 + n);
  return {.rows = rows,
          .n = n,
          .hidden = hidden,
          .rounds = rounds,
          .streams = numbers(n, size_t{rows} * n * hidden),
          .logits = numbers(n + 1, size_t{rows} * width, 3),
          .base = numbers(n + 2, width),
          .scale = {0.7F, 1.3F, 0.9F}};
}

double mean_of_squares(const Streams& s, uint32_t row) {
  double sum = 0;
  for (size_t i = 0; i < size_t{s.n} * s.hidden; ++i)
    sum +=
        static_cast<double>(s.streams[row * size_t{s.n} * s.hidden + i]) * s.streams[row * size_t{s.n} * s.hidden + i];
  return sum / (size_t{s.n} * s.hidden);
}

KERNEL_CASE("streams: the mixture is that of double precision, and a block's output joins by it") {
  SKIP_UNLESS_SET_RUNS();
  for (const auto& [rows, n, hidden, rounds] : std::vector<std::array<uint32_t, 4>>{
           {1, 4, 64, 20}, {3, 2, 33, 20}, {2, 4, 7, 1}, {5, 8, 130, 3}, {2, 1, 16, 20}}) {
    CAPTURE(n);
    const Streams s = random_streams(rows, n, hidden, rounds);
    const uint32_t width = n * (2 + n);
    Lab lab(Set::kName);
    const Rows streams{lab.put(s.streams), rows, n * hidden, n * hidden};
    const Slice mix = lab.put(s.logits);
    const Rows y{lab.poisoned(size_t{rows} * hidden), rows, hidden, hidden};
    lab.queue().read_streams({.streams = streams,
                              .logits = mix,
                              .base = lab.put(s.base),
                              .scale = lab.put(s.scale),
                              .y = y,
                              .count = n,
                              .rounds = rounds,
                              .norm_epsilon = 1e-6F,
                              .epsilon = s.epsilon});
    const std::vector<float> got_mix = lab.get(mix, size_t{rows} * width);
    const std::vector<float> got_y = lab.get(y.data, size_t{rows} * hidden);
    const std::vector<float> output = numbers(n + 3, size_t{rows} * hidden);
    lab.queue().join_streams(
        {.streams = streams, .mix = mix, .y = {lab.put(output), rows, hidden, hidden}, .count = n});
    const std::vector<float> joined = lab.get(streams.data, s.streams.size());
    Doubles wanted_c, got_c_wide, wanted_y, wanted_joined(s.streams.size());
    std::vector<float> got_c;
    for (uint32_t row = 0; row < rows; ++row) {
      const std::vector<float> logits(s.logits.begin() + row * width, s.logits.begin() + (row + 1) * width);
      const Mixture m = mixture_of(logits, s.base, s.scale, mean_of_squares(s, row), n, rounds, 1e-6F, s.epsilon);
      wanted_c.insert(wanted_c.end(), m.c.begin(), m.c.end());
      got_c.insert(got_c.end(), got_mix.begin() + row * width + 2 * n, got_mix.begin() + (row + 1) * width);
      for (uint32_t i = 0; i < hidden; ++i) {
        double sum = 0;
        const size_t at = size_t{row} * n * hidden + i;
        for (uint32_t j = 0; j < n; ++j)
          sum += m.pre[j] * s.streams[at + size_t{j} * hidden];
        wanted_y.push_back(sum);
        for (uint32_t k = 0; k < n; ++k) {
          double join = m.post[k] * output[size_t{row} * hidden + i];
          for (uint32_t j = 0; j < n; ++j)
            join += m.c[j * n + k] * s.streams[at + size_t{j} * hidden];
          wanted_joined[at + size_t{k} * hidden] = join;
        }
      }
    }
    CHECK(nmse(got_c, wanted_c) <= 1e-14);
    CHECK(nmse(got_y, wanted_y) <= 1e-12);
    CHECK(nmse(joined, wanted_joined) <= 1e-12);
    check_same_on_all_sets("streams " + std::to_string(n) + " " + std::to_string(hidden), joined);
  }
}

KERNEL_CASE("streams: a round more, or no epsilon, is seen in C alone") {
  SKIP_UNLESS_SET_RUNS();
  const Streams s = random_streams(1, 4, 32, 20);
  const auto c_of = [&](uint32_t rounds, float epsilon) {
    Lab lab(Set::kName);
    const Slice mix = lab.put(s.logits);
    lab.queue().read_streams({.streams = {lab.put(s.streams), 1, 128, 128},
                              .logits = mix,
                              .base = lab.put(s.base),
                              .scale = lab.put(s.scale),
                              .y = {lab.poisoned(32), 1, 32, 32},
                              .count = 4,
                              .rounds = rounds,
                              .norm_epsilon = 1e-6F,
                              .epsilon = epsilon});
    const std::vector<float> mixed = lab.get(mix, 24);
    return std::vector<float>(mixed.begin() + 8, mixed.end());
  };
  const Mixture wanted = mixture_of(s.logits, s.base, s.scale, mean_of_squares(s, 0), 4, 20, 1e-6F, 1e-6F);
  CHECK(nmse(c_of(20, 1e-6F), wanted.c) <= 1e-14);
  CHECK(nmse(c_of(19, 1e-6F), wanted.c) > 1e-12);
  CHECK(nmse(c_of(20, 0), wanted.c) > 1e-14);
}

}  // namespace
}  // namespace dspack::test::streams_test
