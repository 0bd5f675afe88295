#include "kernels/cpu/streams.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/products.h"

namespace dspack::kernels {
namespace {

// Everything except the streams themselves is computed in double precision: a few dozen numbers per row, which would
// drift from other programs' results over twenty rounds of divisions.

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// Eight independent sums, so that additions overlap; their order is fixed.
double mean_of_squares(const float* x, uint64_t count) {
  constexpr uint64_t kSums = 8;
  std::array<double, kSums> sums = {};
  uint64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (uint64_t lane = 0; lane < kSums; ++lane)
      sums[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
  }
  for (; i < count; ++i)
    sums[0] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (const double one : sums)
    sum += one;
  return sum / static_cast<double>(count);
}

/// An n x n matrix; row j begins at n j.
using Square = std::array<double, size_t{kMaxStreams} * kMaxStreams>;

void softmax_rows(Square& c, uint32_t n, double epsilon) {
  for (uint32_t j = 0; j < n; ++j) {
    double* row = c.data() + size_t{j} * n;
    const double largest = *std::max_element(row, row + n);
    double sum = 0;
    for (uint32_t k = 0; k < n; ++k)
      sum += row[k] = std::exp(row[k] - largest);
    for (uint32_t k = 0; k < n; ++k)
      row[k] = row[k] / sum + epsilon;
  }
}

/// Divides n vectors, `apart` from each other, each of n numbers `step` apart, by (their sums + epsilon).
void divide_by_sums(Square& c, uint32_t n, uint32_t apart, uint32_t step, double epsilon) {
  for (uint32_t i = 0; i < n; ++i) {
    double sum = 0;
    for (uint32_t k = 0; k < n; ++k)
      sum += c[size_t{i} * apart + size_t{k} * step];
    for (uint32_t k = 0; k < n; ++k)
      c[size_t{i} * apart + size_t{k} * step] /= sum + epsilon;
  }
}

/// Sinkhorn's algorithm, beginning with the columns.
void make_doubly_stochastic(Square& c, uint32_t n, uint32_t rounds, double epsilon) {
  divide_by_sums(c, n, 1, n, epsilon);
  for (uint32_t round = 1; round < rounds; ++round) {
    divide_by_sums(c, n, n, 1, epsilon);
    divide_by_sums(c, n, 1, n, epsilon);
  }
}

}  // namespace

void read_streams_row(const ReadStreamsArgs& args, uint32_t row) {
  const uint32_t n = args.count;
  const uint32_t width = args.rounds == 0 ? n : n * (2 + n);
  const float* streams = floats(args.streams.data) + uint64_t{row} * args.streams.stride;
  float* logits = floats(args.logits) + uint64_t{row} * width;
  const float* base = floats(args.base);
  const float* scale = floats(args.scale);
  const double inverse = 1.0 / std::sqrt(mean_of_squares(streams, args.streams.cols) + args.norm_epsilon);
  const auto mixed = [&](uint32_t i, uint32_t group) { return logits[i] * inverse * scale[group] + base[i]; };
  if (args.rounds > 0) {
    Square c = {};
    for (uint32_t i = 0; i < n * n; ++i)
      c[i] = mixed(2 * n + i, 2);
    softmax_rows(c, n, args.epsilon);
    make_doubly_stochastic(c, n, args.rounds, args.epsilon);
    for (uint32_t i = 0; i < n * n; ++i)
      logits[2 * n + i] = static_cast<float>(c[i]);
    for (uint32_t j = 0; j < n; ++j)
      logits[n + j] = static_cast<float>(2 * sigmoid(mixed(n + j, 1)));
  }
  for (uint32_t j = 0; j < n; ++j)
    logits[j] = static_cast<float>(sigmoid(mixed(j, 0)) + args.epsilon);
  float* y = floats(args.y.data) + uint64_t{row} * args.y.stride;
  for (uint32_t i = 0; i < args.y.cols; ++i)
    y[i] = logits[0] * streams[i];
  for (uint32_t j = 1; j < n; ++j) {
    const float* stream = streams + uint64_t{j} * args.y.cols;
    for (uint32_t i = 0; i < args.y.cols; ++i)
      y[i] += logits[j] * stream[i];
  }
}

void join_streams_row(const JoinStreamsArgs& args, uint32_t row) {
  const uint32_t n = args.count;
  const uint64_t hidden = args.y.cols;
  float* streams = floats(args.streams.data) + uint64_t{row} * args.streams.stride;
  const float* mix = floats(args.mix) + uint64_t{row} * n * (2 + n);
  const float* post = mix + n;
  const float* c = mix + 2ULL * n;
  const float* y = floats(args.y.data) + uint64_t{row} * args.y.stride;
  // Computes some values of all streams before it changes any of them.
  constexpr uint64_t kAtOnce = 64;
  std::array<std::array<float, kAtOnce>, kMaxStreams> joined;
  for (uint64_t first = 0; first < hidden; first += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, hidden - first);
    for (uint32_t k = 0; k < n; ++k) {
      for (uint64_t i = 0; i < count; ++i)
        joined[k][i] = post[k] * y[first + i];
      for (uint32_t j = 0; j < n; ++j) {
        const float weight = c[j * n + k];
        const float* stream = streams + j * hidden + first;
        for (uint64_t i = 0; i < count; ++i)
          joined[k][i] += weight * stream[i];
      }
    }
    for (uint32_t k = 0; k < n; ++k)
      std::copy_n(joined[k].begin(), count, streams + k * hidden + first);
  }
}

}  // namespace dspack::kernels
