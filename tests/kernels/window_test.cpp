// DeepSeek-V4's attention and experts, each operation against its definition in double precision, with the same bits on
// every instruction set: compressed entries, attention to a window and entries, routers, limited MLPs.
#include <algorithm>
#include <numeric>

#include "tests/kernels/definitions.h"

namespace dspack::test::window_test {
namespace {

using kernels::Rows;
using kernels::Slice;

struct Compression {
  uint32_t dim, every, rope_dim, positions;
  bool overlaps;
  [[nodiscard]] uint32_t width() const { return overlaps ? 2 * dim : dim; }
};

struct CompressionInput {
  std::vector<float> values, gates, ape, gain, cos_sin;
};

CompressionInput input_of(const Compression& c) {
  const size_t values = size_t{c.positions} * c.width();
  CompressionInput input{.values = numbers(1, values),
                         .gates = numbers(2, values, 2),
                         .ape = numbers(3, size_t{c.every} * c.width()),
                         .gain = numbers(4, c.dim),
                         .cos_sin = {}};
  for (uint32_t position = 0; position < c.positions; ++position) {
    for (uint32_t k = 0; k < c.rope_dim / 2; ++k) {
      input.cos_sin.push_back(std::cos(static_cast<float>(position * (k + 1)) * 0.1F));
      input.cos_sin.push_back(std::sin(static_cast<float>(position * (k + 1)) * 0.1F));
    }
  }
  return input;
}

Doubles entries_of(const Compression& c, const CompressionInput& in) {
  Doubles all;
  for (uint32_t block = 0; (block + 1) * c.every <= c.positions; ++block) {
    Doubles entry(c.dim);
    for (uint32_t channel = 0; channel < c.dim; ++channel) {
      double sum = 0;
      double total = 0;
      const auto add = [&](uint32_t position, uint32_t at) {
        const size_t i = size_t{position} * c.width() + at;
        const double weight = std::exp(static_cast<double>(in.gates[i]) + in.ape[position % c.every * c.width() + at]);
        sum += weight;
        total += weight * in.values[i];
      };
      for (uint32_t i = 0; i < c.every; ++i) {
        if (c.overlaps && block > 0) add((block - 1) * c.every + i, channel);
        add(block * c.every + i, c.overlaps ? c.dim + channel : channel);
      }
      entry[channel] = total / sum;
    }
    double squares = 0;
    for (const double value : entry)
      squares += value * value;
    for (uint32_t i = 0; i < c.dim; ++i)
      entry[i] *= in.gain[i] / std::sqrt(squares / c.dim + 1e-6);
    for (uint32_t k = 0; k < c.rope_dim / 2; ++k) {
      double& a = entry[c.dim - c.rope_dim + 2 * k];
      double& b = entry[c.dim - c.rope_dim + 2 * k + 1];
      const size_t angle = (size_t{block} * c.every * (c.rope_dim / 2) + k) * 2;
      const double cosine = in.cos_sin[angle];
      const double sine = in.cos_sin[angle + 1];
      std::tie(a, b) = std::pair(a * cosine - b * sine, a * sine + b * cosine);
    }
    all.insert(all.end(), entry.begin(), entry.end());
  }
  return all;
}

/// A position of which a part is known when the operation runs.
kernels::LivePosition live_position(Lab& lab, uint32_t behind, uint32_t limit) {
  if (behind == 0) return {};
  return {.value = lab.put(std::vector<uint32_t>{behind}), .limit = limit};
}

/// In calls of `rows` positions at a time, with a state as small as it may be; `is_live`: a part of the position is.
std::vector<float> compress(Lab& lab, const Compression& c, const CompressionInput& in, uint32_t rows, bool is_live) {
  const uint32_t state_rows = c.every * (c.overlaps ? 2 : 1) - 1;
  const Slice state = lab.poisoned(size_t{state_rows} * 2 * c.width());
  const Slice entries = lab.poisoned(size_t{c.positions / c.every} * c.dim);
  const Slice values = lab.put(in.values), gates = lab.put(in.gates), ape = lab.put(in.ape), gain = lab.put(in.gain),
              cos_sin = lab.put(in.cos_sin);
  for (uint32_t first = 0; first < c.positions; first += rows) {
    const uint32_t count = std::min(rows, c.positions - first);
    const auto part = [&](Slice all) {
      return Rows{all.at(size_t{first} * c.width() * sizeof(float)), count, c.width(), c.width()};
    };
    lab.queue().compress({.values = part(values),
                          .gates = part(gates),
                          .ape = ape,
                          .state = state,
                          .state_rows = state_rows,
                          .entries = entries,
                          .gain = gain,
                          .epsilon = 1e-6F,
                          .cos_sin = cos_sin,
                          .rope_dim = c.rope_dim,
                          .dim = c.dim,
                          .every = c.every,
                          .overlaps = c.overlaps,
                          .first_position = first - (is_live ? first / 2 : 0),
                          .live = live_position(lab, is_live ? first / 2 : 0, c.positions)});
  }
  return lab.get(entries, size_t{c.positions / c.every} * c.dim);
}

KERNEL_CASE("compress: entries are those of double precision, in calls of any length with the same bits") {
  SKIP_UNLESS_SET_RUNS();
  for (const Compression& c :
       {Compression{24, 4, 8, 41, true}, {32, 128, 8, 300, false}, {5, 4, 2, 16, true}, {16, 2, 16, 9, false}}) {
    CAPTURE(c.every);
    const CompressionInput in = input_of(c);
    Lab lab(Set::kName);
    const std::vector<float> whole = compress(lab, c, in, c.positions, false);
    CHECK(nmse(whole, entries_of(c, in)) <= 1e-13);
    for (const uint32_t rows : {1U, 3U, 7U, 130U})
      for (const bool is_live : {false, true})
        CHECK(compress(lab, c, in, rows, is_live) == whole);
    check_same_on_all_sets("entries of " + std::to_string(c.every) + " " + std::to_string(c.dim), whole);
  }
}

struct WindowCase {
  uint32_t rows, heads, dim, first_position, window, every;
  bool chosen;
};

KERNEL_CASE(
    "window_attend: a window in a ring, entries behind it, sinks of both signs; a row alone has the same bits") {
  SKIP_UNLESS_SET_RUNS();
  for (const WindowCase& c : {WindowCase{1, 1, 8, 0, 4, 0, false},
                              {3, 4, 32, 0, 128, 4, false},
                              {5, 20, 48, 190, 24, 4, true},
                              {2, 9, 33, 500, 70, 128, false},
                              {17, 8, 16, 63, 64, 4, false},
                              {9, 2, 40, 5000, 128, 4, false}}) {
    CAPTURE(c.first_position);
    const uint32_t positions = c.first_position + c.rows;
    const uint32_t ring_rows = c.window + c.rows + 3;
    const uint32_t entries = c.every == 0 ? 0 : positions / c.every;
    const uint32_t most = 6;
    const std::vector<float> queries = numbers(1, size_t{c.rows} * c.heads * c.dim);
    const std::vector<float> keys = numbers(2, size_t{positions} * c.dim);
    const std::vector<float> made = numbers(3, std::max<size_t>(1, size_t{entries} * c.dim));
    const std::vector<float> sinks = numbers(4, c.heads, 3);
    std::vector<float> ring(size_t{ring_rows} * c.dim, poison());
    for (uint32_t p = positions - std::min(positions, ring_rows); p < positions; ++p)
      std::copy_n(keys.begin() + size_t{p} * c.dim, c.dim, ring.begin() + size_t{p % ring_rows} * c.dim);
    std::vector<uint32_t> ids, counts;
    for (uint32_t row = 0; row < c.rows; ++row) {
      const uint32_t visible = c.every == 0 ? 0 : (c.first_position + row + 1) / c.every;
      counts.push_back(std::min(visible, most));
      for (uint32_t i = 0; i < most; ++i)
        ids.push_back(visible == 0 ? 0 : i * visible / most);
    }
    Lab lab(Set::kName);
    const float scale = 1 / std::sqrt(static_cast<float>(c.dim));
    const auto attend_rows = [&](Slice stored, Slice stored_entries, Dtype dtype, uint32_t live, uint32_t first,
                                 uint32_t rows) {
      const auto from = [&](const auto& all, size_t width) {
        return std::vector(all.begin() + static_cast<std::ptrdiff_t>(first * width),
                           all.begin() + static_cast<std::ptrdiff_t>((first + rows) * width));
      };
      kernels::Choice choice;
      if (c.chosen) choice = {.ids = lab.put(from(ids, most)), .counts = lab.put(from(counts, 1)), .most = most};
      const size_t values = size_t{c.heads} * c.dim;
      const Slice out = lab.poisoned(rows * values);
      lab.queue().window_attend({.queries = lab.put(from(queries, values)),
                                 .ring = stored,
                                 .ring_rows = ring_rows,
                                 .window = c.window,
                                 .entries = c.every == 0 ? Slice() : stored_entries,
                                 .every = c.every,
                                 .choice = choice,
                                 .sinks = lab.put(sinks),
                                 .out = out,
                                 .rows = rows,
                                 .heads = c.heads,
                                 .dim = c.dim,
                                 .first_position = c.first_position + first - live,
                                 .live = live_position(lab, live, positions),
                                 .scale = scale,
                                 .cache_dtype = dtype});
      return lab.get(out, rows * values);
    };
    const auto attend = [&](Slice stored, Slice stored_entries, Dtype dtype, uint32_t live = 0) {
      return attend_rows(stored, stored_entries, dtype, live, 0, c.rows);
    };
    const std::vector<float> got = attend(lab.put(ring), lab.put(made), Dtype::f32);
    if (c.first_position > 0) CHECK(attend(lab.put(ring), lab.put(made), Dtype::f32, c.first_position / 2) == got);
    for (const uint32_t row : {0U, c.rows - 1}) {  // alone
      const auto first = got.begin() + static_cast<std::ptrdiff_t>(size_t{row} * c.heads * c.dim);
      CHECK(attend_rows(lab.put(ring), lab.put(made), Dtype::f32, 0, row, 1) ==
            std::vector(first, first + c.heads * c.dim));
    }
    Doubles wanted;
    for (uint32_t row = 0; row < c.rows; ++row) {
      const uint32_t p = c.first_position + row;
      std::vector<const float*> seen;
      for (uint32_t at = p + 1 - std::min(p + 1, c.window); at <= p; ++at)
        seen.push_back(keys.data() + size_t{at} * c.dim);
      const uint32_t visible = c.every == 0 ? 0 : (p + 1) / c.every;
      for (uint32_t i = 0; i < (c.chosen ? counts[row] : visible); ++i)
        seen.push_back(made.data() + size_t{c.chosen ? ids[size_t{row} * most + i] : i} * c.dim);
      for (uint32_t head = 0; head < c.heads; ++head) {
        const float* q = queries.data() + (size_t{row} * c.heads + head) * c.dim;
        double sum = std::exp(static_cast<double>(sinks[head]));
        Doubles total(c.dim);
        for (const float* key : seen) {
          const double weight = std::exp(scale * std::inner_product(q, q + c.dim, key, 0.0));
          sum += weight;
          for (uint32_t i = 0; i < c.dim; ++i)
            total[i] += weight * key[i];
        }
        for (const double value : total)
          wanted.push_back(value / sum);
      }
    }
    CHECK(nmse(got, wanted) <= 1e-12);
    check_same_on_all_sets("attention " + std::to_string(c.first_position) + " " + std::to_string(c.dim), got);
    // Stored as BF16, with the bits of FP32 rows that have such values.
    const auto rounded = [&](const std::vector<float>& values) {
      std::vector<uint16_t> bits;
      for (const float value : values)
        bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U));
      return bits;
    };
    const auto widened = [&](const std::vector<uint16_t>& bits) {
      std::vector<float> values;
      for (const uint16_t one : bits)
        values.push_back(std::bit_cast<float>(uint32_t{one} << 16U));
      return values;
    };
    const std::vector<uint16_t> small_ring = rounded(ring), small_entries = rounded(made);
    CHECK(attend(lab.put(small_ring), lab.put(small_entries), Dtype::bf16) ==
          attend(lab.put(widened(small_ring)), lab.put(widened(small_entries)), Dtype::f32));
  }
}

KERNEL_CASE("store_in_ring: rows around the ring's end, in each type, at live positions too") {
  SKIP_UNLESS_SET_RUNS();
  constexpr uint32_t kRing = 7, kCols = 12, kStride = 15;
  Lab lab(Set::kName);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    CAPTURE(to_string(dtype));
    for (const uint32_t rows : {1U, 3U, kRing}) {
      for (const uint32_t first : {0U, 5U, 13U, 20U}) {
        CAPTURE(rows);
        CAPTURE(first);
        const Rows from{lab.put(numbers(first + 1, size_t{rows} * kStride)), rows, kCols, kStride};
        // Row by row by store_rows.
        const size_t words = size_t{kRing} * bytes_of(dtype, kCols) / sizeof(float);
        const Slice wanted = lab.poisoned(words);
        for (uint32_t row = 0; row < rows; ++row) {
          const Rows one{from.data.at(size_t{row} * kStride * sizeof(float)), 1, kCols, kStride};
          lab.queue().store_rows(wanted.at((first + row) % kRing * bytes_of(dtype, kCols)), dtype, one, {});
        }
        for (const uint32_t live : {0U, first / 2, first}) {
          const Slice ring = lab.poisoned(words);
          lab.queue().store_in_ring({.rows = from,
                                     .ring = ring,
                                     .ring_rows = kRing,
                                     .dtype = dtype,
                                     .first_position = first - live,
                                     .live = live_position(lab, live, 40)});
          CHECK(lab.get<uint32_t>(ring, words) == lab.get<uint32_t>(wanted, words));
        }
      }
    }
  }
}

KERNEL_CASE("choose: keys that stand for several positions") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  // Keys with scores 0, 1, 2 ..: the best are the last that a row may see.
  std::vector<float> keys(10);
  std::iota(keys.begin(), keys.end(), 0.0F);
  kernels::Weight stored;
  stored.coding = kernels::Coding::f32;
  stored.out = 10;
  stored.in = 1;
  stored.planes[kernels::kCodes] = lab.put(keys);
  const Slice ids = lab.put(std::vector<uint32_t>(40 * 3, 99)), counts = lab.put(std::vector<uint32_t>(40, 99));
  lab.queue().choose({.queries = lab.put(std::vector<float>(40, 1.0F)),
                      .weights = lab.put(std::vector<float>(40, 1.0F)),
                      .keys = stored,
                      .choice = {.ids = ids, .counts = counts, .most = 3},
                      .rows = 40,
                      .heads = 1,
                      .first_position = 0,
                      .every = 4});
  const std::vector<uint32_t> got = lab.get<uint32_t>(ids, 40 * 3), found = lab.get<uint32_t>(counts, 40);
  for (uint32_t row = 0; row < 40; ++row) {
    CAPTURE(row);
    const uint32_t visible = (row + 1) / 4;
    REQUIRE(found[row] == std::min(visible, 3U));
    for (uint32_t i = 0; i < found[row]; ++i)
      CHECK(got[row * 3 + i] == visible - found[row] + i);
  }
}

}  // namespace
}  // namespace dspack::test::window_test
